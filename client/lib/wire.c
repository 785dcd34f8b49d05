/* Bytes to and from the socket: waiting with a deadline and a way to be woken, whole lines out of
 * whatever pieces arrive, and a bound on what one line may cost. */
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { FIRST_CAPACITY = 64 << 10 };

int64_t client_now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int poll_ms(int64_t deadline_ms) {
    if (deadline_ms == 0) return -1;
    int64_t left = deadline_ms - client_now_ms();
    return left < 0 ? 0 : left > 1000000 ? 1000000 : (int)left;
}

enum wait_result client_look(struct tpd_client *client, int64_t deadline_ms) {
    char byte;
    if (read(client->cancel_pipe[0], &byte, 1) == 1) return WAIT_CANCEL;
    return deadline_ms && client_now_ms() >= deadline_ms ? WAIT_DEADLINE : WAIT_READY;
}

enum wait_result client_wait(struct tpd_client *client, short events, int64_t deadline_ms) {
    for (;;) {
        struct pollfd fds[] = {{client->cancel_pipe[0], POLLIN, 0}, {client->fd, events, 0}};
        if (poll(fds, 2, poll_ms(deadline_ms)) < 0 && errno != EINTR) return WAIT_FAILED;
        enum wait_result look = client_look(client, deadline_ms);
        if (look != WAIT_READY || fds[1].revents) return look;
    }
}

void tpd_cancel(struct tpd_client *client) {
    int saved = errno;
    /* A full pipe has enough bytes in it to cancel anything. */
    if (write(client->cancel_pipe[1], "c", 1) < 0) errno = 0;
    errno = saved;
}

void client_break(struct tpd_client *client) {
    if (client->fd >= 0) close(client->fd);
    client->fd = -1;
}

int client_lost(struct tpd_client *client, struct tpd_error *error, const char *what) {
    client_break(client);
    return client_fail(error, FAIL_IO, "%s: %s", client->path, what);
}

int client_send(struct tpd_client *client, const char *text, size_t size, size_t *sent,
                struct tpd_error *error) {
    while (*sent < size) {
        ssize_t n = send(client->fd, text + *sent, size - *sent, MSG_NOSIGNAL);
        if (n >= 0) *sent += (size_t)n;
        else if (errno == EAGAIN) return 0;
        else if (errno == EPIPE || errno == ECONNRESET)
            return client_fail(error, FAIL_IO, "%s: the daemon closed the connection",
                               client->path);
        else if (errno != EINTR)
            return client_fail(error, FAIL_IO, "%s: cannot send: %s", client->path,
                               strerror(errno));
    }
    return 1;
}

/* Makes room behind the waiting bytes; false when the line at hand is too long or memory ends. */
static bool make_room(struct line_buffer *in, size_t max_line) {
    if (in->start > 0) {
        memmove(in->memory, in->memory + in->start, in->end - in->start);
        in->scanned -= in->start;
        in->end -= in->start;
        in->start = 0;
    }
    if (in->end < in->capacity) return true;
    if (in->capacity > max_line) return false;
    size_t capacity = in->capacity ? in->capacity * 2 : FIRST_CAPACITY;
    if (capacity > max_line) capacity = max_line + 1;
    char *memory = realloc(in->memory, capacity);
    if (!memory) return false;
    in->memory = memory;
    in->capacity = capacity;
    return true;
}

static bool find_line(struct line_buffer *in, const char **line, size_t *size) {
    if (in->scanned == in->end) return false;
    char *from = in->memory + in->scanned;
    char *newline = memchr(from, '\n', in->end - in->scanned);
    if (!newline) {
        in->scanned = in->end;
        return false;
    }
    *line = in->memory + in->start;
    *size = (size_t)(newline - *line);
    in->start = in->scanned = (size_t)(newline - in->memory) + 1;
    return true;
}

int client_take_line(struct tpd_client *client, const char **line, size_t *size,
                     struct tpd_error *error) {
    struct line_buffer *in = &client->in;
    while (!find_line(in, line, size)) {
        if (in->end - in->start > client->max_line || !make_room(in, client->max_line))
            return client_lost(client, error, "the daemon sent a line that is too long; giving up");
        ssize_t n = recv(client->fd, in->memory + in->end, in->capacity - in->end, 0);
        if (n > 0) in->end += (size_t)n;
        else if (n < 0 && errno == EAGAIN) return 0;
        else if (n == 0 || errno == ECONNRESET)
            return client_lost(client, error,
                               "the daemon closed the connection before it answered");
        else if (errno != EINTR) return client_lost(client, error, strerror(errno));
    }
    return 1;
}
