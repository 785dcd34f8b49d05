/* The database of jobs: opened, checked, made or brought up to this version. */
#include "train/jobs_private.h"

#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    APPLICATION_ID = 0x7470646a, /* "tpdj", in the header of the file */
    BUSY_MS = 5000               /* somebody looks into the file with sqlite3 */
};

/* Element i brings a database of version i to version i + 1. */
static const char *const migrations[] = {
    "CREATE TABLE jobs("
    " id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, state TEXT NOT NULL,"
    " spec TEXT NOT NULL, once TEXT, step INTEGER NOT NULL DEFAULT 0,"
    " steps INTEGER NOT NULL DEFAULT 0, loss REAL, eval_loss REAL, error TEXT, result TEXT,"
    " created REAL NOT NULL, started REAL NOT NULL DEFAULT 0, ended REAL NOT NULL DEFAULT 0);"
    "CREATE INDEX jobs_state ON jobs(state, id);"
    "CREATE INDEX jobs_name ON jobs(name, id);"
    "CREATE UNIQUE INDEX jobs_once ON jobs(once)"
    " WHERE once IS NOT NULL AND state IN ('queued', 'running', 'paused');"
    "CREATE TABLE events("
    " cursor INTEGER PRIMARY KEY AUTOINCREMENT, job INTEGER NOT NULL, time REAL NOT NULL,"
    " fields TEXT NOT NULL);"
    "CREATE INDEX events_job ON events(job, cursor);",
    /* part: which bytes of its data a job trains on. learnt: what a name's last success had read of a
     * file, from its beginning. */
    "ALTER TABLE jobs ADD COLUMN deadline REAL NOT NULL DEFAULT 0;"
    "ALTER TABLE jobs ADD COLUMN part_from INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE jobs ADD COLUMN part_to INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE jobs ADD COLUMN part_hash INTEGER NOT NULL DEFAULT 0;"
    "CREATE TABLE learnt("
    " name TEXT NOT NULL, data TEXT NOT NULL, bytes INTEGER NOT NULL, hash INTEGER NOT NULL,"
    " job INTEGER NOT NULL, PRIMARY KEY(name, data));",
    "ALTER TABLE jobs ADD COLUMN eval_loss_before REAL;"
    "ALTER TABLE jobs ADD COLUMN activated INTEGER;"
    "ALTER TABLE jobs ADD COLUMN verdict TEXT;"
    "CREATE TABLE kept(key TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID;",
};
enum { VERSION = (int)(sizeof migrations / sizeof *migrations) };

int jobs_fail(const struct jobs *jobs, const char *doing, struct error *e) {
    int code = sqlite3_errcode(jobs->db) & 0xff; /* the primary code */
    const char *why = sqlite3_errmsg(jobs->db), *path = jobs->path;
    switch (code) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return error_bad_file(
            e, path, NULL, NULL,
            "is damaged or no database of jobs (%s): move it away, tpd then makes "
            "a new one",
            why);
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_AUTH:
    case SQLITE_CANTOPEN:
        return error_set(e, ERR_NOT_PERMITTED,
                         "%s: cannot %s: %s; the daemon must be able to write the file and its "
                         "directory",
                         path, doing, why);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return error_set(e, ERR_CONFLICT, "%s: cannot %s: another process holds it", path, doing);
    case SQLITE_FULL: return error_set(e, ERR_IO, "%s: cannot %s: the disk is full", path, doing);
    case SQLITE_NOMEM: return error_set(e, ERR_MEMORY, "no memory to %s", doing);
    default: return error_set(e, ERR_IO, "%s: cannot %s: %s", path, doing, why);
    }
}

int jobs_exec(struct jobs *jobs, const char *sql, const char *doing, struct error *e) {
    return sqlite3_exec(jobs->db, sql, NULL, NULL, NULL) == SQLITE_OK ? 0
                                                                      : jobs_fail(jobs, doing, e);
}

static int ask_number(struct jobs *jobs, const char *sql, int64_t *out, struct error *e) {
    sqlite3_stmt *s;
    if (sqlite3_prepare_v2(jobs->db, sql, -1, &s, NULL) != SQLITE_OK)
        return jobs_fail(jobs, "read it", e);
    int rc = sqlite3_step(s) == SQLITE_ROW ? 0 : jobs_fail(jobs, "read it", e);
    if (rc == 0) *out = sqlite3_column_int64(s, 0);
    sqlite3_finalize(s);
    return rc;
}

/* SQLite's own look at the file: a damaged one is refused before anybody trusts it. */
static int check_whole(struct jobs *jobs, struct error *e) {
    sqlite3_stmt *s;
    if (sqlite3_prepare_v2(jobs->db, "PRAGMA quick_check(1)", -1, &s, NULL) != SQLITE_OK)
        return jobs_fail(jobs, "check it", e);
    const char *word =
        sqlite3_step(s) == SQLITE_ROW ? (const char *)sqlite3_column_text(s, 0) : NULL;
    int rc = !word                ? jobs_fail(jobs, "check it", e)
             : strcmp(word, "ok") ? error_bad_file(e, jobs->path, NULL, NULL,
                                                   "is damaged (%.200s): move it away, tpd then "
                                                   "makes a new one",
                                                   word)
                                  : 0;
    sqlite3_finalize(s);
    return rc;
}

/* Which version the file has; 0 for an empty one. A database of something else is refused. */
static int read_version(struct jobs *jobs, int64_t *version, struct error *e) {
    int64_t application = 0, tables = 0;
    int rc = ask_number(jobs, "PRAGMA application_id", &application, e);
    if (rc == 0) rc = ask_number(jobs, "SELECT count(*) FROM sqlite_master", &tables, e);
    if (rc != 0) return rc;
    *version = 0;
    if (application == 0 && tables == 0) return 0;
    if (application != APPLICATION_ID)
        return error_bad_file(e, jobs->path, NULL, NULL,
                              "is a database of another program: move it away, or choose another "
                              "state_dir");
    rc = ask_number(jobs, "SELECT version FROM schema_version", version, e);
    if (rc != 0 || (*version >= 1 && *version <= VERSION)) return rc;
    return error_bad_file(e, jobs->path, NULL, NULL,
                          "was written by a newer tpd (version %lld of the jobs' tables; this one "
                          "knows %d): run that tpd, or move the file away",
                          (long long)*version, VERSION);
}

static int migrate(struct jobs *jobs, int64_t version, struct error *e) {
    char stamp[256];
    if (version == VERSION) return 0;
    int rc = jobs_exec(jobs, "BEGIN EXCLUSIVE", "make its tables", e);
    if (rc != 0) return rc;
    for (int64_t v = version; rc == 0 && v < VERSION; v++)
        rc = jobs_exec(jobs, migrations[v], "make its tables", e);
    snprintf(stamp, sizeof stamp,
             "CREATE TABLE IF NOT EXISTS schema_version(version INTEGER NOT NULL);"
             "DELETE FROM schema_version; INSERT INTO schema_version VALUES(%d);"
             "PRAGMA application_id=%d",
             VERSION, APPLICATION_ID);
    if (rc == 0) rc = jobs_exec(jobs, stamp, "make its tables", e);
    if (rc == 0) rc = jobs_exec(jobs, "COMMIT", "make its tables", e);
    if (rc != 0) sqlite3_exec(jobs->db, "ROLLBACK", NULL, NULL, NULL);
    return rc;
}

int jobs_open_database(struct jobs *jobs, struct error *e) {
    int fd = open(jobs->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600); /* not for other users' eyes */
    if (fd < 0) return error_errno(e, errno, jobs->path, "open");
    close(fd);
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX;
    if (sqlite3_open_v2(jobs->path, &jobs->db, flags, NULL) != SQLITE_OK) {
        if (jobs->db) return jobs_fail(jobs, "open it", e);
        return error_set(e, ERR_MEMORY, "no memory to open %s", jobs->path);
    }
    sqlite3_busy_timeout(jobs->db, BUSY_MS);
    int64_t version = 0;
    int rc = read_version(jobs, &version, e);
    if (rc == 0) rc = check_whole(jobs, e);
    if (rc == 0)
        rc = jobs_exec(jobs, "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL", "write it", e);
    return rc == 0 ? migrate(jobs, version, e) : rc;
}
