/* client/lib/internal.h: what the files of libtpdclient share. */
#ifndef TPD_CLIENT_INTERNAL_H
#define TPD_CLIENT_INTERNAL_H

#include "tpd/client.h"

#include <poll.h>
#include <stdbool.h>
#include <sys/un.h>

/* Why a local failure happened; the table in fail.c gives code, word and exit code. */
enum fail_kind {
    FAIL_NO_DAEMON,
    FAIL_IO,
    FAIL_DEADLINE,
    FAIL_CANCELLED,
    FAIL_NOT_PERMITTED,
    FAIL_USAGE,
    FAIL_CONFIG,
    FAIL_BUSY,
    FAIL_MEMORY
};

/* Fills error (may be NULL) and returns -1. */
int client_fail(struct tpd_error *error, enum fail_kind kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Fills error from the error object of a response and returns -1. */
int client_fail_rpc(struct tpd_error *error, const json_t *rpc_error);

/* Lines that came and are not read yet. memory is [capacity] bytes, owned; those in [start, end)
 * wait; no newline lies before scanned. */
struct line_buffer {
    char *memory;
    size_t capacity, start, end, scanned;
};

struct tpd_client {
    int fd;             /* non-blocking; -1 once the connection is of no use */
    int cancel_pipe[2]; /* tpd_cancel writes a byte; both ends non-blocking */
    int64_t timeout_ms, next_id;
    size_t max_line;
    struct line_buffer in;
    char path[sizeof((struct sockaddr_un *)0)->sun_path];
};

/* Waits that end. deadline_ms is on the clock of client_now_ms; 0 = never. */
enum wait_result { WAIT_READY, WAIT_CANCEL, WAIT_DEADLINE, WAIT_FAILED };

int64_t client_now_ms(void);
/* Looks without waiting. WAIT_CANCEL takes one byte out of the cancel pipe. */
enum wait_result client_look(struct tpd_client *client, int64_t deadline_ms);
/* Waits until the socket can do one of events (POLLIN, POLLOUT). WAIT_FAILED leaves errno. */
enum wait_result client_wait(struct tpd_client *client, short events, int64_t deadline_ms);

/* Closes the connection: the stream of lines is lost. */
void client_break(struct tpd_client *client);
/* The same, and fails with FAIL_IO and "SOCKET: what". */
int client_lost(struct tpd_client *client, struct tpd_error *error, const char *what);

/* Sends what is left of text ([*sent, size)) as far as it goes without waiting. Returns 1 when all
 * is sent, 0 when the socket is full, -1 with error filled (what came before may still be read). */
int client_send(struct tpd_client *client, const char *text, size_t size, size_t *sent,
                struct tpd_error *error);
/* Takes the next line that is there: 1 with *line (borrowed until the next call; no newline), 0
 * when more must come first, -1 with error filled (end of file, over max_line). */
int client_take_line(struct tpd_client *client, const char **line, size_t *size,
                     struct tpd_error *error);

#endif
