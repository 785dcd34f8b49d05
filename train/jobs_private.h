/* train/jobs_private.h: what jobs.c and jobs_schema.c share. */
#ifndef TPD_TRAIN_JOBS_PRIVATE_H
#define TPD_TRAIN_JOBS_PRIVATE_H

#include "train/jobs.h"

#include <pthread.h>
#include <sqlite3.h>

enum jobs_statement {
    SQL_INSERT,
    SQL_FIND_ONCE,
    SQL_LAST_ONCE,
    SQL_GET_ID,
    SQL_GET_NAME,
    SQL_LIST,
    SQL_NEXT,
    SQL_TAKE,
    SQL_MOVE,
    SQL_DONE,
    SQL_KEEP,
    SQL_KEPT,
    SQL_RESULT,
    SQL_RUNNING,
    SQL_DELETE,
    SQL_DELETE_EVENTS,
    SQL_PROGRESS,
    SQL_DEADLINE,
    SQL_LATE,
    SQL_PART,
    SQL_LEARNT,
    SQL_LEARN,
    SQL_LOG,
    SQL_EVENTS,
    SQL_COUNT
};

struct jobs {
    char *path;
    pthread_mutex_t mutex;
    sqlite3 *db;
    sqlite3_stmt *statements[SQL_COUNT];
    void (*listener)(void *user); /* NULL: nobody */
    void *listener_user;
};

/* Opens jobs->path into jobs->db with the tables of this version, or says why it is refused. */
int jobs_open_database(struct jobs *jobs, struct error *e);
/* The error of the last call on the database; doing: "list jobs". */
int jobs_fail(const struct jobs *jobs, const char *doing, struct error *e);
int jobs_exec(struct jobs *jobs, const char *sql, const char *doing, struct error *e);

#endif
