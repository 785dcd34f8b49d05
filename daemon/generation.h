/* daemon/generation.h: a call that runs on the engine: one request or several of the same prompt.
 *
 * generate and score make one, give it its prompt and start it; when every request has ended, it
 * hands itself to the method's `finish`, which makes the answer, and is freed. Loop's thread, but
 * for `finish`. */
#ifndef TPD_DAEMON_GENERATION_H
#define TPD_DAEMON_GENERATION_H

#include "daemon/rpc.h"
#include "serve/engine.h"

struct choice {
    struct generation *generation;
    struct gen_request *request; /* NULL before it is submitted */
    struct gen_event *end;       /* NULL until then */
    uint64_t seed;
};

struct generation {
    struct call *call;
    struct sampling sampling; /* of every choice but for the seed; owned */
    struct token_ids prompt;
    bool stream, score;
    size_t score_from;
    struct adapter_entry *adapter; /* counted in its users; NULL: the base alone */
    /* Writes the result, or fails with e. On a worker thread when the result is long. */
    int (*finish)(struct generation *g, struct json_out *out, struct error *e);
    struct json_out out; /* what finish has written */
    struct error error; /* kind ERR_NONE while all is well */
    int n, n_live;
    struct choice choices[];
};

/* n choices; it becomes the call's state. NULL when there is no memory: the call has then failed.
 */
struct generation *generation_new(struct call *call, int n);
/* Lets encode fill g->prompt (or g->error), on the worker pool when there is much text, and submits
 * every choice; or ends the call when that cannot be done or it was cancelled meanwhile. */
void generation_start(struct generation *g, void (*encode)(struct call *call), size_t text_bytes);
/* Ends the call with an error before anything was submitted. */
void generation_fail(struct generation *g, const struct error *e);

#endif
