/* Which tokens may follow: the vocabulary as a tree of bytes, walked along with the states of a
 * grammar.
 *
 * In a JSON string nearly all of the vocabulary may follow, and walking all of it takes about a
 * millisecond. But what a token does there depends on the rule of strings alone, until the string
 * ends. So the frames of a state are taken in groups of one parent, and the part of the mask that a
 * group gives is made with FRAME_HOLE in the parent's place and kept: it also says at which nodes of
 * the tree the rule may be left, and only from there on the walk has to be done with the state itself.
 * Counters that are far from their ends (further than a token is long) are the same for this purpose. */
#include "serve/grammar_program.h"

#include <stdlib.h>
#include <string.h>

/* Tokens of more bytes are never allowed. */
enum { MAX_TOKEN_BYTES = 255 };

/* In the order of a walk: a node, then all below it. */
struct node {
    int32_t parent; /* -1: at depth 0 */
    int32_t skip;  /* the first node that is not below it */
    int32_t token; /* -1: none ends here; else the first, others by vocab.same */
    uint8_t byte, depth;
};

struct grammar_vocab {
    const struct tokenizer *tokenizer;
    int32_t size;
    uint32_t longest;
    struct node *nodes; /* NULL before the first use */
    int32_t n_nodes;
    int32_t *same; /* [size] another token of the same bytes, or -1 */
};

/* What the frames of one parent give, whatever the parent is. */
struct mask_part {
    int32_t state;    /* of the frames, from FRAME_HOLE */
    uint64_t *mask;
    int32_t *leaves; /* [n] nodes, ascending, none below another: here the rule may be left, with more to come */
    int32_t n;
};

struct grammar_run {
    struct grammar *g;
    struct grammar_vocab *vocab;
    size_t words;
    int32_t n_ids;
    /* The state after `taken` tokens, which were these; of the grammar's epoch. */
    token_id *tokens;
    size_t n_taken, room;
    int32_t state;
    uint32_t epoch;
};

/* --- the vocabulary -------------------------------------------------------------------------- */

int grammar_vocab_new(struct grammar_vocab **out, const struct tokenizer *tokenizer,
                      struct error *e) {
    struct grammar_vocab *v = calloc(1, sizeof *v);
    if (!v) return error_set(e, ERR_MEMORY, "no memory for the vocabulary");
    v->tokenizer = tokenizer;
    v->size = tokenizer_size(tokenizer);
    *out = v;
    return 0;
}

void grammar_vocab_free(struct grammar_vocab *v) {
    if (!v) return;
    free(v->nodes);
    free(v->same);
    free(v);
}

struct spelling {
    const uint8_t *bytes;
    size_t from;
    uint32_t size;
    token_id id;
};

static int by_bytes(const void *a, const void *b) {
    const struct spelling *x = a, *y = b;
    int order = memcmp(x->bytes, y->bytes, x->size < y->size ? x->size : y->size);
    if (order) return order;
    if (x->size != y->size) return x->size < y->size ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* The bytes of all tokens that add text, one after the other, and where each stands. Returns their
 * number, or -1 without memory. *bytes is the caller's either way. */
static int32_t spell_all(const struct grammar_vocab *v, uint8_t **bytes, size_t *used,
                         struct spelling *out) {
    size_t room = 0;
    int32_t n = 0;
    *used = 0;
    for (token_id id = 0; id < v->size; id++) {
        if (room < *used + MAX_TOKEN_BYTES) {
            room = 2 * room + 64 * MAX_TOKEN_BYTES;
            uint8_t *grown = realloc(*bytes, room);
            if (!grown) return -1;
            *bytes = grown;
        }
        if (tokenizer_is_special(v->tokenizer, id)) continue;
        size_t size = tokenizer_bytes(v->tokenizer, id, *bytes + *used, MAX_TOKEN_BYTES);
        if (size == 0 || size > MAX_TOKEN_BYTES) continue;
        out[n++] = (struct spelling){.from = *used, .size = (uint32_t)size, .id = id};
        *used += size;
    }
    for (int32_t i = 0; i < n; i++) out[i].bytes = *bytes + out[i].from;
    return n;
}

static uint32_t common_bytes(const struct spelling *a, const struct spelling *b) {
    uint32_t n = 0;
    while (n < a->size && n < b->size && a->bytes[n] == b->bytes[n]) n++;
    return n;
}

/* spelled [n]: in order. Nodes [all their bytes] is room enough. */
static void plant(struct grammar_vocab *v, const struct spelling *spelled, size_t n) {
    int32_t open[MAX_TOKEN_BYTES + 1], at = 0; /* nodes on the way to the last token, by depth */
    uint32_t depth = 0;
    for (size_t i = 0; i < n; i++) {
        const struct spelling *s = &spelled[i];
        uint32_t shared = i ? common_bytes(&spelled[i - 1], s) : 0;
        for (; depth > shared; depth--) v->nodes[open[depth - 1]].skip = at;
        for (; depth < s->size; depth++) {
            v->nodes[at] = (struct node){depth ? open[depth - 1] : -1, -1, -1, s->bytes[depth],
                                         (uint8_t)depth};
            open[depth] = at++;
        }
        struct node *end = &v->nodes[open[s->size - 1]];
        v->same[s->id] = end->token;
        end->token = s->id;
        if (s->size > v->longest) v->longest = s->size;
    }
    for (; depth > 0; depth--) v->nodes[open[depth - 1]].skip = at;
    v->n_nodes = at;
}

static bool vocab_ready(struct grammar_vocab *v) {
    if (v->nodes) return true;
    uint8_t *bytes = NULL;
    size_t total = 0;
    struct spelling *spelled = malloc(((size_t)v->size + 1) * sizeof *spelled);
    int32_t n = spelled ? spell_all(v, &bytes, &total, spelled) : -1;
    if (n >= 0) v->nodes = malloc((total + 1) * sizeof *v->nodes);
    if (!v->same) v->same = malloc(((size_t)v->size + 1) * sizeof *v->same);
    if (v->nodes && v->same) {
        qsort(spelled, (size_t)n, sizeof *spelled, by_bytes);
        plant(v, spelled, (size_t)n);
        struct node *fitted = realloc(v->nodes, ((size_t)v->n_nodes + 1) * sizeof *fitted);
        if (fitted) v->nodes = fitted;
    } else {
        free(v->nodes);
        v->nodes = NULL;
    }
    free(bytes);
    free(spelled);
    return v->nodes != NULL;
}

/* --- walks ----------------------------------------------------------------------------------- */

struct walk {
    const struct grammar_run *run;
    uint64_t *mask;
    /* Places where the rule may be left; room grows. Only in the walk of a part. */
    int32_t *leaves;
    int32_t n_leaves, room;
};

static void allow(const struct walk *w, int32_t token) {
    for (; token >= 0; token = w->run->vocab->same[token])
        if (token < w->run->n_ids) w->mask[token / 64] |= (uint64_t)1 << (token % 64);
}

static void note_leaf(struct walk *w, int32_t node) {
    const struct node *nodes = w->run->vocab->nodes;
    if (nodes[node].skip == node + 1) return; /* nothing below it */
    if (w->n_leaves && node < nodes[w->leaves[w->n_leaves - 1]].skip) return; /* below one noted */
    if (w->n_leaves == w->room) {
        int32_t wanted = w->room ? w->room * 2 : 64;
        int32_t *grown = realloc(w->leaves, (size_t)wanted * sizeof *grown);
        if (!grown) w->run->g->trouble = ERR_MEMORY;
        if (!grown) return;
        w->leaves = grown;
        w->room = wanted;
    }
    w->leaves[w->n_leaves++] = node;
}

/* Nodes [from, to) of the tree; at[depth of the first of them]: the state before it. */
static void walk_nodes(struct walk *w, int32_t from, int32_t to, int32_t at[MAX_TOKEN_BYTES + 1]) {
    struct grammar *g = w->run->g;
    const struct node *nodes = w->run->vocab->nodes;
    for (int32_t i = from; i < to;) {
        const struct node *node = &nodes[i];
        int32_t state = state_step(g, at[node->depth], node->byte);
        if (state == STATE_DEAD) {
            i = node->skip;
            continue;
        }
        at[node->depth + 1] = state;
        if (node->token >= 0) allow(w, node->token);
        if (g->states[state].escapes) note_leaf(w, i);
        i++;
    }
}

/* What is below a node, with the state itself. */
static void walk_below(struct walk *w, int32_t start, int32_t leaf) {
    const struct node *nodes = w->run->vocab->nodes;
    int32_t at[MAX_TOKEN_BYTES + 1], depth = nodes[leaf].depth;
    uint8_t way[MAX_TOKEN_BYTES];
    for (int32_t node = leaf; node >= 0; node = nodes[node].parent)
        way[nodes[node].depth] = nodes[node].byte;
    at[0] = start;
    for (int32_t d = 0; d <= depth; d++) {
        at[d + 1] = state_step(w->run->g, at[d], way[d]);
        if (at[d + 1] == STATE_DEAD) return;
    }
    walk_nodes(w, leaf + 1, nodes[leaf].skip, at);
}

/* --- parts ----------------------------------------------------------------------------------- */

void mask_forget(struct grammar *g) {
    for (size_t i = 0; i < g->n_parts; i++) {
        free(g->parts[i].mask);
        free(g->parts[i].leaves);
    }
    free(g->parts);
    g->parts = NULL;
    g->n_parts = g->room_parts = 0;
}

static bool make_part(const struct grammar_run *run, struct mask_part *part) {
    struct walk w = {.run = run, .mask = calloc(run->words, sizeof *w.mask)};
    int32_t at[MAX_TOKEN_BYTES + 1] = {part->state};
    if (w.mask) walk_nodes(&w, 0, run->vocab->n_nodes, at);
    part->mask = w.mask;
    part->leaves = w.leaves;
    part->n = w.n_leaves;
    run->g->memory += run->words * sizeof *w.mask + (size_t)w.room * sizeof *w.leaves + sizeof *part;
    if (!w.mask) run->g->trouble = ERR_MEMORY;
    return run->g->trouble == ERR_NONE;
}

/* Index of the part of a state that hangs from FRAME_HOLE, or -1. Few enough to be looked through. */
static int32_t part_of(const struct grammar_run *run, int32_t state) {
    struct grammar *g = run->g;
    for (size_t i = 0; i < g->n_parts; i++)
        if (g->parts[i].state == state) return (int32_t)i;
    if (g->n_parts == g->room_parts) {
        size_t wanted = g->room_parts ? g->room_parts * 2 : 16;
        struct mask_part *grown = realloc(g->parts, wanted * sizeof *grown);
        if (!grown) {
            g->trouble = ERR_MEMORY;
            return -1;
        }
        g->parts = grown;
        g->room_parts = wanted;
    }
    struct mask_part *part = &g->parts[g->n_parts++];
    *part = (struct mask_part){.state = state};
    return make_part(run, part) ? (int32_t)(g->n_parts - 1) : -1;
}

static uint32_t near_end(uint32_t count, uint32_t far) {
    return count > far ? far : count;
}

static int by_number(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

/* frames [n] have one parent: the state of the same places, from FRAME_HOLE. */
static int32_t group_state(const struct grammar_run *run, const int32_t *frames, int32_t n) {
    struct grammar *g = run->g;
    int32_t moved[STATE_MAX_FRAMES], kept = 0;
    uint32_t far = run->vocab->longest + 2;
    for (int32_t i = 0; i < n; i++) {
        struct frame f = g->frames[frames[i]];
        f.parent = FRAME_HOLE;
        f.min = near_end(f.min, far);
        f.max = near_end(f.max, far);
        moved[i] = frame_of(g, f);
        if (moved[i] < 0) return STATE_DEAD;
    }
    qsort(moved, (size_t)n, sizeof *moved, by_number);
    for (int32_t i = 0; i < n; i++)
        if (kept == 0 || moved[i] != moved[kept - 1]) moved[kept++] = moved[i];
    return state_of(g, moved, kept, false, false);
}

/* --- a state's mask ---------------------------------------------------------------------------- */

static int by_parent(const void *a, const void *b) {
    const int32_t *x = a, *y = b;
    if (x[0] != y[0]) return x[0] < y[0] ? -1 : 1;
    return x[1] < y[1] ? -1 : x[1] > y[1];
}

/* Adds what one group gives; false when memory or work ran out. */
static bool add_group(struct walk *w, int32_t state, const int32_t *frames, int32_t n) {
    struct grammar *g = w->run->g;
    int32_t hole = group_state(w->run, frames, n);
    int32_t index = g->trouble ? -1 : part_of(w->run, hole);
    if (index < 0) return false;
    for (size_t k = 0; k < w->run->words; k++) w->mask[k] |= g->parts[index].mask[k];
    for (int32_t k = 0; k < g->parts[index].n && !g->trouble; k++)
        walk_below(w, state, g->parts[index].leaves[k]);
    return !g->trouble;
}

static bool fill_mask(struct walk *w, int32_t state) {
    struct grammar *g = w->run->g;
    int32_t pairs[STATE_MAX_FRAMES][2], group[STATE_MAX_FRAMES], n = g->states[state].n;
    for (int32_t i = 0; i < n; i++) {
        pairs[i][1] = g->states[state].frames[i];
        pairs[i][0] = g->frames[pairs[i][1]].parent;
    }
    qsort(pairs, (size_t)n, sizeof *pairs, by_parent);
    for (int32_t i = 0, size; i < n; i += size) {
        for (size = 0; i + size < n && pairs[i + size][0] == pairs[i][0]; size++)
            group[size] = pairs[i + size][1];
        if (!add_group(w, state, group, size)) return false;
    }
    return true;
}

static int say_trouble(struct grammar *g, struct error *e) {
    if (g->trouble != ERR_MEMORY)
        return error_set(e, ERR_PARAMS,
                         "the text so far can be read in too many ways under this grammar: let its "
                         "alternatives differ earlier");
    return error_set(e, ERR_MEMORY, "no memory to follow the grammar");
}

/* --- runs ------------------------------------------------------------------------------------ */

int grammar_run_new(struct grammar_run **out, struct grammar *g, struct grammar_vocab *vocab,
                    int32_t n_ids, struct error *e) {
    struct grammar_run *run = vocab_ready(vocab) ? calloc(1, sizeof *run) : NULL;
    if (!run) return error_set(e, ERR_MEMORY, "no memory to follow a grammar");
    run->g = grammar_share(g);
    run->vocab = vocab;
    run->n_ids = n_ids;
    run->words = ((size_t)n_ids + 63) / 64;
    run->state = -1;
    *out = run;
    return 0;
}

void grammar_run_free(struct grammar_run *run) {
    if (!run) return;
    grammar_release(run->g);
    free(run->tokens);
    free(run);
}

static bool remember(struct grammar_run *run, const token_id *tokens, size_t n) {
    if (n > run->room) {
        size_t wanted = n + n / 2 + 64;
        token_id *grown = realloc(run->tokens, wanted * sizeof *grown);
        if (!grown) {
            run->g->trouble = ERR_MEMORY;
            return false;
        }
        run->tokens = grown;
        run->room = wanted;
    }
    if (n > run->n_taken)
        memcpy(run->tokens + run->n_taken, tokens + run->n_taken,
               (n - run->n_taken) * sizeof *tokens);
    run->n_taken = n;
    return true;
}

static int32_t step_token(struct grammar_run *run, int32_t state, token_id id) {
    uint8_t bytes[MAX_TOKEN_BYTES];
    size_t n = tokenizer_bytes(run->vocab->tokenizer, id, bytes, sizeof bytes);
    if (n > sizeof bytes) return STATE_DEAD;
    for (size_t i = 0; i < n && state != STATE_DEAD; i++) state = state_step(run->g, state, bytes[i]);
    return state;
}

/* The state after tokens [n]: from where the run stands when they continue what it was shown. */
static bool follow_tokens(struct grammar_run *run, const token_id *tokens, size_t n) {
    struct grammar *g = run->g;
    grammar_trim(g);
    bool continues = run->state >= 0 && run->epoch == g->epoch && n >= run->n_taken &&
                     (run->n_taken == 0 ||
                      memcmp(tokens, run->tokens, run->n_taken * sizeof *tokens) == 0);
    if (!continues) {
        run->n_taken = 0;
        run->state = state_first(g);
        run->epoch = g->epoch;
    }
    for (size_t i = run->n_taken; i < n; i++) run->state = step_token(run, run->state, tokens[i]);
    if (!g->trouble && remember(run, tokens, n)) return true;
    run->state = -1;
    return false;
}

int grammar_run_mask(struct grammar_run *run, const token_id *tokens, size_t n,
                     const uint64_t **mask, bool *may_end, struct error *e) {
    struct grammar *g = run->g;
    if (!follow_tokens(run, tokens, n)) return say_trouble(g, e);
    int32_t at = run->state;
    /* No mask leads here, but for one that was made without knowing how many ways there are. */
    if (at == STATE_DEAD) return say_trouble(g, e);
    *may_end = g->states[at].ends;
    if (!g->states[at].mask) {
        struct walk w = {.run = run, .mask = calloc(run->words, sizeof *w.mask)};
        if (!w.mask) g->trouble = ERR_MEMORY;
        if (!w.mask || !fill_mask(&w, at)) {
            free(w.mask);
            run->state = -1;
            return say_trouble(g, e);
        }
        g->memory += run->words * sizeof *w.mask;
        g->states[at].mask = w.mask;
    }
    *mask = g->states[at].mask;
    for (size_t k = 0; k < run->words && !*may_end; k++)
        if ((*mask)[k]) return 0;
    if (*may_end) return 0;
    if (g->crowded) return say_trouble(g, e);
    return error_set(e, ERR_PARAMS,
                     "no token of this model's vocabulary continues the text as the grammar asks "
                     "(after %zu tokens)",
                     n);
}

bool grammar_run_must_end(struct grammar_run *run, const token_id *tokens, size_t n) {
    if (!follow_tokens(run, tokens, n)) return false;
    const struct state *s = &run->g->states[run->state];
    return s->ends && s->n == 0;
}
