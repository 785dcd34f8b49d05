/* daemon/generation.h: a call that runs on the engine: n requests of each of its prompts.
 *
 * A method makes one, gives it prompts and a form, and starts it; pieces and ends go to the form as they
 * come, and when every request has ended the form's `finish` makes the answer. Loop's thread, but for
 * `finish`. */
#ifndef TPD_DAEMON_GENERATION_H
#define TPD_DAEMON_GENERATION_H

#include "daemon/call.h"
#include "serve/engine.h"

struct choice {
    struct generation *generation;
    struct gen_request *request; /* NULL before it is submitted */
    struct gen_event *end;       /* NULL until then */
    uint64_t seed;
    /* the form's: how much of it was told, and the text so far (freed with free()) */
    int64_t told;
    char *text;
    size_t text_size;
};

/* How an answer looks. */
struct generation_form {
    /* A piece of a choice's text, when g->stream. */
    void (*piece)(struct choice *choice, const struct gen_event *event);
    /* A choice has ended (choice->end), well or cancelled; others may live. NULL: not told. */
    void (*ended)(struct choice *choice);
    /* Writes the result, or fails with e. On a worker thread when the result is long. */
    int (*finish)(struct generation *g, struct json_out *out, struct error *e);
};

struct generation {
    struct call *call;
    const struct generation_form *form;
    struct sampling sampling; /* of every choice but for the seed; owned */
    struct token_ids *prompts; /* [n_prompts] */
    const char *prompt_field;  /* the parameter that has them, for generation_encode_prompts */
    bool stream, score, embed, embed_last;
    size_t score_from;
    struct adapter_entry *adapter; /* counted in its users; NULL: the base alone */
    void *about;   /* the form's own, freed with free() */
    json_t *tools; /* likewise: what a chat may call, or NULL */
    struct json_out out; /* what finish has written */
    struct error error;  /* kind ERR_NONE while all is well */
    int n_prompts, n; /* n: choices of all prompts, those of the first prompt first */
    int n_submitted, n_live; /* the first so many, and those of them that have not ended */
    struct choice choices[];
};

/* Each prompt gets n_each choices; it becomes the call's state. NULL when there is no memory: the call
 * has then failed. */
struct generation *generation_new(struct call *call, int n_prompts, int n_each);
/* Which of the choices, and of the prompts, this is. */
int choice_index(const struct choice *choice);
int choice_prompt(const struct choice *choice);
/* Lets encode fill g->prompts (or g->error), on the worker pool when there is much text, and submits
 * the choices, many of them as earlier ones end; or ends the call when that cannot be done or it was
 * cancelled meanwhile. */
void generation_start(struct generation *g, void (*encode)(struct call *call), size_t text_bytes);
/* The form's piece in JSON-RPC: a `token` notification. */
void generation_notify(struct choice *choice, const struct gen_event *event);
/* An encode: the prompts are those of prompt_field (prompt.h), with the special tokens that the tokenizer
 * adds to a text; one that has no token at all is refused. */
void generation_encode_prompts(struct call *call);
/* Ends the call with an error before anything was submitted. */
void generation_fail(struct generation *g, const struct error *e);

#endif
