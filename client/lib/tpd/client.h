/* tpd/client.h: libtpdclient, a plain blocking client of the daemon tpd over its Unix socket.
 *
 * It needs jansson and nothing else; link with `pkg-config --libs tpdclient`.
 *
 *     struct tpd_client *client;
 *     struct tpd_error error = {0};
 *     json_t *result = NULL;
 *     if (tpd_connect(&client, NULL, &error) == 0) {
 *         json_t *params = json_pack("{s:s, s:i}", "prompt", "Once", "max_tokens", 20);
 *         if (tpd_call(client, "generate", params, &result, &error) == 0)
 *             puts(json_string_value(json_object_get(result, "text")));
 *         json_decref(params);
 *         json_decref(result);
 *         tpd_close(client);
 *     }
 *     if (error.code) fprintf(stderr, "%s\n", error.message);
 *     tpd_error_clear(&error);
 *
 * Threads: a client belongs to one thread at a time and has one call in flight; several clients may
 * live in several threads. Only tpd_cancel may be called from anywhere, signal handlers included.
 *
 * Functions return 0, or -1 with *error filled. An error may be NULL when nobody will read it;
 * otherwise it must start zeroed, each function clears what an earlier one left in it, and
 * tpd_error_clear releases the last.
 */
#ifndef TPD_CLIENT_H
#define TPD_CLIENT_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TPD_CLIENT_VERSION "0.1.0"

/* JSON-RPC codes beyond those of the daemon, for what fails on this side. */
enum {
    TPD_CODE_IO = -32011,        /* the connection broke or brought what is not an answer */
    TPD_CODE_CANCELLED = -32005, /* tpd_cancel, or a callback that asked for it */
    TPD_CODE_NO_DAEMON = -32050, /* nobody answers on the socket */
    TPD_CODE_DEADLINE = -32051   /* the timeout passed first */
};

/* What a program that fails with an error should exit with (those of tpctl). */
enum {
    TPD_EXIT_FAILED = 1,
    TPD_EXIT_USAGE = 64,
    TPD_EXIT_BAD_DATA = 65,
    TPD_EXIT_NO_FILE = 66,
    TPD_EXIT_NO_DAEMON = 69,
    TPD_EXIT_INTERNAL = 70,
    TPD_EXIT_IO = 74,
    TPD_EXIT_BUSY = 75,
    TPD_EXIT_NOT_PERMITTED = 77,
    TPD_EXIT_BAD_CONFIG = 78,
    TPD_EXIT_DEADLINE = 124,
    TPD_EXIT_INTERRUPTED = 130
};

struct tpd_error {
    int code;          /* JSON-RPC code; 0 = no error */
    int exit_code;     /* one of TPD_EXIT_… */
    char kind[32];     /* a stable word for programs: "overloaded", "no_daemon", … */
    char message[512]; /* a sentence for people: one line of valid UTF-8 */
    json_t *data;      /* the daemon's further facts, an object; owned; NULL when there are none */
};

/* Releases data and zeroes the rest. */
void tpd_error_clear(struct tpd_error *error);

struct tpd_client;

struct tpd_options {
    const char *socket; /* NULL: $TPD_SOCKET; when unset, each of tpd_default_socket in turn */
    int64_t timeout_ms; /* for connecting and for each call; 0 = wait for ever */
    size_t max_line;    /* longest answer taken, in bytes; 0 = 64 MiB */
};

/* The i-th place where a client looks when neither an option nor $TPD_SOCKET names a socket:
 * $XDG_RUNTIME_DIR/tpd/tpd.sock, /run/tpd/tpd.sock, ~/.tpd/tpd.sock. Writes the path into buf and
 * returns 0, or -1 when i is past the last. */
int tpd_default_socket(int i, char *buf, size_t size);

/* Connects. options may be NULL. The daemon must run as this user, as root or as the user `tpd`;
 * anyone else's socket is refused (TPD_EXIT_NOT_PERMITTED). On success *client is the caller's, to
 * be ended with tpd_close; on failure it is NULL. */
int tpd_connect(struct tpd_client **client, const struct tpd_options *options,
                struct tpd_error *error);
/* Closes the connection, which ends what the daemon still does for it. NULL is fine. */
void tpd_close(struct tpd_client *client);
/* The socket in use; borrowed from the client. */
const char *tpd_socket(const struct tpd_client *client);
/* For the calls that follow; 0 = wait for ever. */
void tpd_set_timeout(struct tpd_client *client, int64_t timeout_ms);

/* A notification that belongs to the running call. params is borrowed and ends with the callback.
 * Returns 0 to go on; anything else cancels the call, and no further notification is given. */
typedef int tpd_notify_fn(void *user, const char *method, const json_t *params);

/* Sends the request and waits for its answer. params is borrowed and may be NULL. *result becomes
 * the caller's (json_decref); result may be NULL when it is of no interest.
 *
 * A call that is cancelled or meets its timeout asks the daemon to end it and waits a moment for
 * what it has: the call then fails with TPD_CODE_CANCELLED or TPD_CODE_DEADLINE, and *result holds
 * that partial answer, or NULL when none came. On all other failures *result is NULL. After
 * TPD_CODE_IO the client is of no more use but for tpd_close. */
int tpd_call(struct tpd_client *client, const char *method, json_t *params, json_t **result,
             struct tpd_error *error);

/* The same, with notifications (a request whose params say "stream": true) given to notify. */
int tpd_stream(struct tpd_client *client, const char *method, json_t *params, tpd_notify_fn *notify,
               void *user, json_t **result, struct tpd_error *error);

/* A tensor of the model that is loaded, mapped read-only from the ranks' own memory: no copy is made. It
 * stays readable when the daemon unloads the model or ends. */
struct tpd_tensor;

/* Exports and maps it; name as tensor.list tells it. *tensor is the caller's, to be ended with
 * tpd_tensor_unmap. */
int tpd_tensor_map(struct tpd_client *client, const char *name, struct tpd_tensor **tensor,
                   struct tpd_error *error);
void tpd_tensor_unmap(struct tpd_tensor *tensor);
/* The answer of tensor.export: shape, dtype, and of each shard rank, rows, cols and layout, which says
 * how it stands in memory (docs/tensors.md). Borrowed from the tensor. */
const json_t *tpd_tensor_about(const struct tpd_tensor *tensor);
int tpd_tensor_shards(const struct tpd_tensor *tensor);
/* What the offsets of a shard's layout begin at, and how many bytes may be read there. NULL for a shard
 * in a GPU's memory: its handle is for cudaIpcOpenMemHandle. */
const void *tpd_tensor_memory(const struct tpd_tensor *tensor, int shard, size_t *bytes);

/* Cancels the call in flight, or the next one when there is none. Called twice during one call, it
 * no longer waits for the daemon. Any thread; async-signal-safe; errno is kept. The client must not
 * be closed meanwhile. */
void tpd_cancel(struct tpd_client *client);

#ifdef __cplusplus
}
#endif

#endif
