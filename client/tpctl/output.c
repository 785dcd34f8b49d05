/* Writing: results to stdout, words about them to stderr, nothing a terminal would obey. */
#include "tpctl.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void complain(const char *format, ...) {
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    /* Words of the command line are quoted here: keep it one line and harmless. */
    for (char *c = line; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7F) *c = '?';
    fflush(stdout);
    fprintf(stderr, "tpctl: %s\n", line);
}

void put_json(const json_t *value) {
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
    if (text) puts(text);
    free(text);
}

/* A control character as its picture, U+2400 + code; C1 controls (0xC2 0x80 … 0x9F in UTF-8) are
 * obeyed by some terminals too. Returns the bytes taken. */
static size_t put_shown(const char *text, size_t left) {
    unsigned char c = (unsigned char)text[0];
    if (c < 0x20) {
        printf("\xE2\x90%c", 0x80 + c);
        return 1;
    }
    fputs(c == 0x7F ? "\xE2\x90\xA1" : "\xEF\xBF\xBD", stdout);
    return c == 0x7F || left < 2 ? 1 : 2;
}

static bool is_control(const char *text, size_t left) {
    unsigned char c = (unsigned char)text[0];
    bool c1 = c == 0xC2 && left > 1 && (unsigned char)text[1] < 0xA0;
    return c < 0x20 || c == 0x7F || c1;
}

void put_text(const struct tool *tool, const char *text, size_t size) {
    if (!tool->out_terminal) {
        fwrite(text, 1, size, stdout);
        return;
    }
    for (size_t i = 0; i < size;) {
        if (text[i] != '\n' && text[i] != '\t' && is_control(text + i, size - i))
            i += put_shown(text + i, size - i);
        else putchar(text[i++]);
    }
}

void put_string(const struct tool *tool, const json_t *string) {
    if (json_is_string(string))
        put_text(tool, json_string_value(string), json_string_length(string));
}

void put_field(const char *text, size_t size) {
    for (size_t i = 0; i < size; i++) {
        char c = text[i];
        if (c == '\t') fputs("\\t", stdout);
        else if (c == '\n') fputs("\\n", stdout);
        else if (c == '\\') fputs("\\\\", stdout);
        else if ((unsigned char)c < 0x20 || c == 0x7F) printf("\\x%02x", (unsigned char)c);
        else putchar(c);
    }
}

void put_quoted(const json_t *string) {
    char *text = json_dumps(string, JSON_ENCODE_ANY);
    if (text) fputs(text, stdout);
    free(text);
}

const char *bytes_text(double bytes, char buf[32]) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    int u = 0;
    while (bytes >= 1024 && u < 5) {
        bytes /= 1024;
        u++;
    }
    snprintf(buf, 32, u && bytes < 100 ? "%.1f %s" : "%.0f %s", bytes, units[u]);
    return buf;
}

const char *count_text(double n, char buf[32]) {
    static const char *const units[] = {"", " k", " M", " G", " T", " P", " E"};
    int u = 0;
    for (; n >= 1000 && u < 6; u++) n /= 1000;
    snprintf(buf, 32, u ? "%.1f%s" : "%.0f%s", n, units[u]);
    return buf;
}

const char *seconds_text(double seconds, char buf[32]) {
    long long s = seconds > 0 && seconds < 1e15 ? (long long)seconds : 0;
    if (s >= 86400) snprintf(buf, 32, "%lldd %lldh", s / 86400, s % 86400 / 3600);
    else if (s >= 3600) snprintf(buf, 32, "%lldh %lldm", s / 3600, s % 3600 / 60);
    else if (s >= 60) snprintf(buf, 32, "%lldm %llds", s / 60, s % 60);
    else snprintf(buf, 32, "%lld s", s);
    return buf;
}

const char *bold(const struct tool *tool) {
    return tool->color ? "\033[1m" : "";
}

const char *unbold(const struct tool *tool) {
    return tool->color ? "\033[0m" : "";
}

/* Whoever read our pipe went away (`tpctl … | head`): no news for the user. */
static bool reader_gone(void) {
    struct pollfd out = {STDOUT_FILENO, POLLOUT, 0};
    return poll(&out, 1, 0) > 0 && (out.revents & POLLERR);
}

static int write_failure; /* errno of the first flush that failed */

int flush_output(void) {
    errno = 0;
    int rc = fflush(stdout);
    if (rc != 0 && !write_failure) write_failure = errno;
    return rc;
}

int finish_output(void) {
    static bool complained;
    if (flush_output() == 0 && !ferror(stdout)) return EXIT_OK;
    const char *why = write_failure ? strerror(write_failure) : "an earlier write failed";
    if (!complained && !reader_gone()) complain("cannot write to stdout: %s", why);
    complained = true;
    return TPD_EXIT_IO;
}
