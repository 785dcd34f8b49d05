/* daemon/server.h: the daemon as one value: its loop, socket, connections, model and engine.
 *
 * All of it belongs to the loop's thread. Other threads reach it only through its mailbox.
 */
#ifndef TPD_DAEMON_SERVER_H
#define TPD_DAEMON_SERVER_H

#include "daemon/config.h"
#include "daemon/conn.h"
#include "daemon/lifecycle.h"
#include "daemon/device.h"
#include "daemon/listener.h"
#include "daemon/mailbox.h"
#include "daemon/metrics.h"
#include "daemon/speed.h"
#include "daemon/structured.h"
#include "daemon/tensors.h"
#include "serve/engine.h"

#include <stdatomic.h>
#include <uv.h>

struct training;
struct chat;

/* The load or unload that a client asked for. */
struct model_change {
    struct call *call; /* NULL: nobody waits */
    bool load;
    struct error error; /* why a load turned into an unload */
};

struct server {
    const struct daemon_config *config; /* settings */
    struct daemon_config settings;      /* as given to server_run, with what model.load changed */
    char *loaded_path, *loaded_draft;   /* settings.model and .draft when model.load named them; owned */
    uv_loop_t loop;
    struct listener listener;
    int state_lock_fd;
    uv_pipe_t pipe;         /* listens */
    uv_tcp_t tcp;           /* likewise, when has_tcp */
    bool has_tcp;
    uv_signal_t signals[3]; /* SIGTERM, SIGINT, SIGHUP */
    uv_timer_t drain_timer;
    struct mailbox mailbox;  /* from the engine's thread */
    char read_buffer[65536]; /* what one read brings, for whichever connection reads */

    uv_timer_t accept_timer; /* daemon/accept.c */
    bool accept_waits[2];    /* a connection of the socket, of TCP, waits for memory */
    int64_t accept_said_ns;
    int64_t max_connections; /* what descriptors leave of the setting */

    struct conn *conns;
    int64_t n_conns;
    int64_t n_held, most_held; /* closing ones included; the most since the heap was trimmed */
    uint64_t n_accepted;
    size_t input_bytes;  /* in line buffers of all connections */
    size_t param_bytes;  /* that parameters of live requests take, about */
    int64_t n_calls;     /* live requests, those of closed connections included */
    int64_t n_model_calls; /* those of them that need the model */
    struct call *parked; /* wait until the model is open, oldest first */

    enum server_state state; /* server_enter changes it */
    bool was_ready;          /* once; from then on a load that fails does not end the daemon */
    int64_t load_began_ns;   /* the first load begins with the daemon */
    struct model_change change;
    uv_timer_t unload_timer; /* daemon/unloading.c */
    int exit_code;
    int64_t started_ns;

    struct devices devices;      /* chosen when the model is open */
    char *quant_dir;             /* in state_dir: quantised weights that are kept */
    atomic_bool abandon_loading; /* nobody waits for the model any more */
    char *tuning_path;           /* in state_dir: which all-reduces are the fastest on these GPUs */
    struct model *model;         /* NULL until it is open */
    struct model *draft;         /* the same; NULL too where there is none */
    struct tokenizer *tokenizer; /* the same */
    struct chat *chat;           /* the same */
    struct engine *engine;       /* NULL until it is started */
    struct engine_stats past;    /* counters of the engines of models that were unloaded */
    struct training *training;   /* fine-tune jobs */
    struct metrics metrics;
    struct adapters *adapters; /* daemon/adapters.c */
    struct structured_cache structured;
    struct tensor_sharing sharing;
    struct speed speed;        /* of this machine, once a plan has asked for it; else zeros */
};

/* Runs the daemon until it is told to end; returns the exit code. */
int server_run(const struct daemon_config *config);

/* Ends after live requests (drain), at latest after timeout_ms; without drain cancels them first. */
void server_shutdown(struct server *server, bool drain, int64_t timeout_ms);
/* What the daemon cannot live without has failed: says so and ends with that error's exit code. */
void server_fail(struct server *server, const struct error *e);
/* The metrics in Prometheus' text form, to be freed; NULL: no memory. */
char *server_metrics_text(const struct server *server);
/* One live request more or fewer; with the last one a drain is over. */
void server_call_begins(struct server *server);
void server_call_ends(struct server *server);
/* Where most connections of a crowd have gone, and their requests: what they took goes back to the system, as the
 * allocator does not do by itself. */
void server_tidy_up(struct server *server);

#endif
