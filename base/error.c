#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct error_class classes[ERR_KIND_COUNT] = {
    [ERR_NONE] = {ERR_NONE, 0, "none", 200, "", 0},
    [ERR_PARSE] = {ERR_PARSE, -32700, "parse_error", 400, "invalid_request_error", EXIT_BAD_DATA},
    [ERR_INVALID_REQUEST] = {ERR_INVALID_REQUEST, -32600, "invalid_request", 400,
                             "invalid_request_error", EXIT_BAD_DATA},
    [ERR_METHOD] = {ERR_METHOD, -32601, "method_not_found", 404, "invalid_request_error",
                    EXIT_USAGE},
    [ERR_PARAMS] = {ERR_PARAMS, -32602, "invalid_params", 400, "invalid_request_error",
                    EXIT_USAGE},
    [ERR_INTERNAL] = {ERR_INTERNAL, -32603, "internal", 500, "server_error", EXIT_INTERNAL},
    [ERR_OVERLOADED] = {ERR_OVERLOADED, -32001, "overloaded", 429, "rate_limit_error", EXIT_BUSY},
    [ERR_CONTEXT] = {ERR_CONTEXT, -32002, "context_too_long", 400, "invalid_request_error",
                     EXIT_BAD_DATA},
    [ERR_NOT_FOUND] = {ERR_NOT_FOUND, -32003, "not_found", 404, "not_found_error", EXIT_NO_FILE},
    [ERR_MEMORY] = {ERR_MEMORY, -32004, "out_of_memory", 503, "server_error", EXIT_BUSY},
    [ERR_CANCELLED] = {ERR_CANCELLED, -32005, "cancelled", 499, "server_error", EXIT_FAILED},
    [ERR_BAD_FILE] = {ERR_BAD_FILE, -32006, "bad_file", 400, "invalid_request_error",
                      EXIT_BAD_DATA},
    [ERR_NOT_PERMITTED] = {ERR_NOT_PERMITTED, -32007, "not_permitted", 403, "permission_error",
                           EXIT_NOT_PERMITTED},
    [ERR_SHUTTING_DOWN] = {ERR_SHUTTING_DOWN, -32008, "shutting_down", 503, "server_error",
                           EXIT_BUSY},
    [ERR_CONFLICT] = {ERR_CONFLICT, -32009, "conflict", 409, "conflict_error", EXIT_BUSY},
    [ERR_DEVICE] = {ERR_DEVICE, -32010, "device_failed", 500, "server_error", EXIT_INTERNAL},
    [ERR_IO] = {ERR_IO, -32011, "io_error", 500, "server_error", EXIT_IO},
    [ERR_USAGE] = {ERR_USAGE, -32012, "usage", 400, "invalid_request_error", EXIT_USAGE},
    [ERR_CONFIG] = {ERR_CONFIG, -32013, "bad_config", 500, "server_error", EXIT_BAD_CONFIG},
    [ERR_NO_MODEL] = {ERR_NO_MODEL, -32019, "no_model", 503, "server_error", EXIT_BUSY},
    [ERR_NO_KEY] = {ERR_NO_KEY, -32014, "invalid_api_key", 401, "authentication_error",
                    EXIT_NOT_PERMITTED},
    [ERR_TIMEOUT] = {ERR_TIMEOUT, -32015, "request_timeout", 408, "invalid_request_error",
                     EXIT_BUSY},
    [ERR_TOO_LARGE] = {ERR_TOO_LARGE, -32016, "request_too_large", 413, "invalid_request_error",
                       EXIT_BAD_DATA},
    [ERR_VERB] = {ERR_VERB, -32017, "method_not_allowed", 405, "invalid_request_error",
                  EXIT_USAGE},
    [ERR_MEDIA] = {ERR_MEDIA, -32018, "unsupported_media_type", 415, "invalid_request_error",
                   EXIT_USAGE},
};

const struct error_class *error_class(enum error_kind kind) {
    return &classes[(unsigned)kind < ERR_KIND_COUNT ? kind : ERR_INTERNAL];
}

const struct error_class *error_class_of_rpc(int rpc_code) {
    for (int i = 1; i < ERR_KIND_COUNT; i++)
        if (classes[i].rpc_code == rpc_code) return &classes[i];
    return &classes[ERR_INTERNAL];
}

/* Copies text into out as valid UTF-8 without control characters, ending in "..." when it is cut:
 * messages quote file contents and client input, and go to logs, terminals and JSON. */
static void copy_clean(char *out, size_t size, const char *text) {
    size_t n = 0;
    const unsigned char *s = (const unsigned char *)text;
    while (*s) {
        int len = *s < 0x80 ? 1 : (*s >> 5) == 6 ? 2 : (*s >> 4) == 14 ? 3 : (*s >> 3) == 30 ? 4 : 0;
        bool whole = len > 0;
        for (int i = 1; i < len && whole; i++) whole = (s[i] & 0xC0) == 0x80;
        if (whole && len == 2) whole = *s >= 0xC2;
        if (whole && len == 3)
            whole = !(*s == 0xE0 && s[1] < 0xA0) && !(*s == 0xED && s[1] >= 0xA0);
        if (whole && len == 4)
            whole = !(*s == 0xF0 && s[1] < 0x90) && (*s < 0xF4 || (*s == 0xF4 && s[1] < 0x90));
        size_t need = whole ? (size_t)len : 1;
        if (n + need + 4 > size) {
            memcpy(out + n, "...", 3);
            n += 3;
            break;
        }
        if (!whole || *s < 0x20 || *s == 0x7F) {
            out[n++] = whole ? ' ' : '?';
            s++;
        } else {
            memcpy(out + n, s, need);
            n += need;
            s += need;
        }
    }
    out[n] = '\0';
}

static void set_message(struct error *e, const char *format, va_list args) {
    char raw[2048];
    vsnprintf(raw, sizeof raw, format, args);
    copy_clean(e->message, sizeof e->message, raw);
}

int error_set(struct error *e, enum error_kind kind, const char *format, ...) {
    if (e) {
        va_list args;
        va_start(args, format);
        set_message(e, format, args);
        va_end(args);
        e->kind = kind;
        e->n_notes = 0;
    }
    return -(int)kind;
}

int error_prefix(struct error *e, const char *format, ...) {
    if (!e) return -(int)ERR_INTERNAL;
    char head[256], whole[sizeof head + sizeof e->message];
    va_list args;
    va_start(args, format);
    vsnprintf(head, sizeof head, format, args);
    va_end(args);
    snprintf(whole, sizeof whole, "%s%s", head, e->message);
    copy_clean(e->message, sizeof e->message, whole);
    return -(int)e->kind;
}

static struct error_note *note_slot(struct error *e, const char *key) {
    for (int i = 0; i < e->n_notes; i++)
        if (strcmp(e->notes[i].key, key) == 0) return &e->notes[i];
    return e->n_notes < ERROR_MAX_NOTES ? &e->notes[e->n_notes++] : NULL;
}

void error_note(struct error *e, const char *key, const char *text) {
    struct error_note *note = e ? note_slot(e, key) : NULL;
    if (!note) return;
    note->key = key;
    note->is_text = true;
    note->number = 0;
    copy_clean(note->text, sizeof note->text, text);
}

void error_note_number(struct error *e, const char *key, int64_t number) {
    struct error_note *note = e ? note_slot(e, key) : NULL;
    if (!note) return;
    note->key = key;
    note->is_text = false;
    note->number = number;
    note->text[0] = '\0';
}

int error_bad_file(struct error *e, const char *path, const char *where_key, const char *where,
                   const char *format, ...) {
    if (e) {
        va_list args;
        va_start(args, format);
        set_message(e, format, args);
        va_end(args);
        e->kind = ERR_BAD_FILE;
        e->n_notes = 0;
        error_prefix(e, "%s: ", path);
        error_note(e, "path", path);
        if (where_key) error_note(e, where_key, where);
    }
    return -(int)ERR_BAD_FILE;
}

int error_errno(struct error *e, int errnum, const char *path, const char *verb) {
    enum error_kind kind = errnum == ENOENT || errnum == ENOTDIR ? ERR_NOT_FOUND
                           : errnum == EACCES || errnum == EPERM ? ERR_NOT_PERMITTED
                           : errnum == ENOMEM                    ? ERR_MEMORY
                                                                 : ERR_IO;
    error_set(e, kind, "%s: cannot %s: %s", path, verb, strerror(errnum));
    error_note(e, "path", path);
    return -(int)kind;
}
