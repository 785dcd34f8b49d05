#include "base/log.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static _Atomic int threshold = LOG_INFO;
static _Atomic bool as_json = false;

void log_setup(enum log_level level, bool json) {
    threshold = (int)level;
    as_json = json;
}

static const char *level_name(enum log_level level) {
    switch (level) {
    case LOG_ERROR: return "error";
    case LOG_WARN: return "warn";
    case LOG_INFO: return "info";
    case LOG_DEBUG: return "debug";
    }
    return "";
}

/* "2026-01-31T12:00:00.123Z" */
static void time_now(char out[40]) {
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    size_t n = strftime(out, 30, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(out + n, 40 - n, ".%03ldZ", now.tv_nsec / 1000000);
}

static int write_json(char *line, size_t size, const char *when, enum log_level level,
                      const char *message) {
    json_t *object =
        json_pack("{s:s, s:s, s:s}", "time", when, "level", level_name(level), "message", message);
    size_t n = object ? json_dumpb(object, line, size - 1, JSON_COMPACT) : 0;
    json_decref(object);
    if (n == 0 || n > size - 1) return 0;
    line[n++] = '\n';
    return (int)n;
}

void log_line(enum log_level level, const char *format, ...) {
    if ((int)level > threshold) return;
    char message[1024], line[2400], when[40];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    time_now(when);
    int n = as_json ? write_json(line, sizeof line, when, level, message) : 0;
    if (n <= 0) n = snprintf(line, sizeof line, "%s %-5s %s\n", when, level_name(level), message);
    /* A log that cannot be written must not stop the daemon. */
    ssize_t written = write(STDERR_FILENO, line, (size_t)n);
    (void)written;
}
