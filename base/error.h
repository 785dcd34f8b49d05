/* base/error.h: an error is a value.
 *
 * Functions that can fail return 0 or a negative number and, when they can explain themselves, take
 * `struct error *` as their last argument. The caller owns the struct (it holds no heap memory, so
 * it needs no free and may live on the stack); it may be NULL when nobody will read it.
 * Any thread may use its own struct error.
 *
 * A message is one sentence for a person: what is wrong, where (file, line, field, tensor), what to
 * do. Notes are the same facts for programs; they become `data` of a JSON-RPC error.
 *
 * The table in error.c is the only place that maps a kind to its JSON-RPC code, its stable word, its
 * HTTP status, its OpenAI type and its exit code.
 */
#ifndef TPD_BASE_ERROR_H
#define TPD_BASE_ERROR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum error_kind {
    ERR_NONE = 0,
    ERR_PARSE,           /* -32700 the line is not JSON as we take it */
    ERR_INVALID_REQUEST, /* -32600 JSON, but not a request */
    ERR_METHOD,          /* -32601 */
    ERR_PARAMS,          /* -32602 notes: field, expected, got */
    ERR_INTERNAL,        /* -32603 a bug of ours */
    ERR_OVERLOADED,      /* -32001 notes: retry_after_s */
    ERR_CONTEXT,         /* -32002 notes: prompt_tokens, context */
    ERR_NOT_FOUND,       /* -32003 no such job, adapter, file */
    ERR_MEMORY,          /* -32004 notes: needed, free */
    ERR_CANCELLED,       /* -32005 */
    ERR_BAD_FILE,        /* -32006 notes: path and line, tensor or offset */
    ERR_NOT_PERMITTED,   /* -32007 */
    ERR_SHUTTING_DOWN,   /* -32008 */
    ERR_CONFLICT,        /* -32009 */
    ERR_DEVICE,          /* -32010 a device failed or a peer did not answer */
    ERR_IO,              /* -32011 reading or writing failed for a reason outside the file's content */
    ERR_USAGE,           /* -32012 command line */
    ERR_CONFIG,          /* -32013 configuration of the daemon */
    ERR_NO_MODEL,        /* -32019 none is loaded */
    /* What only HTTP tells apart. */
    ERR_NO_KEY,    /* no API key, or a wrong one */
    ERR_TIMEOUT,   /* the client did not end its request */
    ERR_TOO_LARGE, /* the request is over a limit */
    ERR_VERB,      /* the path is there, but not with this method */
    ERR_MEDIA,     /* a body of another content type than the path takes */
    ERR_KIND_COUNT
};

struct error_class {
    enum error_kind kind;
    int rpc_code;
    const char *name; /* stable word for programs: data.kind */
    int http_status;
    const char *openai_type;
    int exit_code;
};

/* A fact for programs: key = text, or key = number. */
struct error_note {
    const char *key; /* a string literal */
    bool is_text;    /* it may be empty */
    int64_t number;
    char text[228];
};

enum { ERROR_MAX_NOTES = 4 };

struct error {
    enum error_kind kind;
    int n_notes;
    struct error_note notes[ERROR_MAX_NOTES];
    char message[512]; /* valid UTF-8, one line, cut with "..." when too long */
};

/* Sets kind and message, drops earlier notes; returns -(int)kind, so `return error_set(e, …)`. */
int error_set(struct error *e, enum error_kind kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts context in front of the message that is there ("config.json: " + …). Returns -(int)kind. */
int error_prefix(struct error *e, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Adds a note; a note over ERROR_MAX_NOTES is dropped, one with a key already there replaces it. */
void error_note(struct error *e, const char *key, const char *text);
void error_note_number(struct error *e, const char *key, int64_t number);

/* ERR_BAD_FILE with notes path and (when where_key is not NULL) where_key = where; the message
 * becomes "PATH: message". */
int error_bad_file(struct error *e, const char *path, const char *where_key, const char *where,
                   const char *format, ...) __attribute__((format(printf, 5, 6)));

/* ERR_NOT_FOUND for ENOENT, ERR_NOT_PERMITTED for EACCES and EPERM, ERR_MEMORY for ENOMEM, else
 * ERR_IO; the message is "PATH: cannot VERB: strerror". Returns -(int)kind. */
int error_errno(struct error *e, int errnum, const char *path, const char *verb);

const struct error_class *error_class(enum error_kind kind);
/* The class with this JSON-RPC code, or that of ERR_INTERNAL. */
const struct error_class *error_class_of_rpc(int rpc_code);

/* Exit codes that belong to no error kind. */
enum {
    EXIT_FAILED = 1,
    EXIT_USAGE = 64,
    EXIT_BAD_DATA = 65,
    EXIT_NO_FILE = 66,
    EXIT_NO_DAEMON = 69,
    EXIT_INTERNAL = 70,
    EXIT_IO = 74,
    EXIT_BUSY = 75,
    EXIT_NOT_PERMITTED = 77,
    EXIT_BAD_CONFIG = 78,
    EXIT_DEADLINE = 124,
    EXIT_INTERRUPTED = 130
};

#ifdef __cplusplus
}
#endif

#endif
