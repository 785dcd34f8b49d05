#include "serve/grammar_program.h"

#include <stdlib.h>
#include <string.h>

/* What is being put together: frames to be looked at, and what was seen of them. */
struct closure {
    struct frame todo[2 * STATE_MAX_FRAMES];
    int n_todo;
    /* Places seen in this closure, hashed; stamp says which closure an entry is of. */
    struct seen {
        struct frame frame;
        uint32_t stamp;
    } seen[4 * STATE_MAX_FRAMES];
    uint32_t stamp;
    int32_t waiting[STATE_MAX_FRAMES];
    int32_t n_waiting, n_seen;
    bool ends, escapes, too_many;
};

static uint32_t mix(uint64_t h, uint64_t value) {
    h = (h ^ value) * 0x9E3779B97F4A7C15u;
    return (uint32_t)(h >> 32 ^ h);
}

static uint32_t hash_frame(const struct frame *f) {
    uint64_t place = (uint64_t)(uint32_t)f->pc << 32 | (uint32_t)f->parent;
    return mix(mix(1, place), (uint64_t)f->min << 32 | f->max);
}

static bool same_frame(const struct frame *a, const struct frame *b) {
    return a->pc == b->pc && a->parent == b->parent && a->min == b->min && a->max == b->max;
}

static bool grow(struct grammar *g, void *array, size_t *room, size_t element) {
    size_t wanted = *room ? *room * 2 : 256;
    void *old, *grown;
    memcpy(&old, array, sizeof old);
    grown = realloc(old, wanted * element);
    if (!grown) {
        g->trouble = ERR_MEMORY;
        return false;
    }
    memcpy(array, &grown, sizeof grown);
    g->memory += (wanted - *room) * element;
    *room = wanted;
    return true;
}

/* --- frames ---------------------------------------------------------------------------------- */

static int32_t *new_table(struct grammar *g, size_t slots) {
    int32_t *table = malloc(slots * sizeof *table);
    if (!table) g->trouble = ERR_MEMORY;
    else memset(table, 0xFF, slots * sizeof *table);
    if (table) g->memory += slots * sizeof *table;
    return table;
}

/* A table that is twice as large, or the first one; hash(g, i) of every element. */
static bool widen(struct grammar *g, int32_t **table, size_t *slots, size_t n,
                  uint32_t (*hash)(const struct grammar *g, size_t i)) {
    size_t wanted = *slots ? *slots * 2 : 1024;
    int32_t *wide = new_table(g, wanted);
    if (!wide) return false;
    for (size_t i = 0; i < n; i++) {
        size_t at = hash(g, i) & (wanted - 1);
        while (wide[at] >= 0) at = (at + 1) & (wanted - 1);
        wide[at] = (int32_t)i;
    }
    g->memory -= *slots * sizeof **table;
    free(*table);
    *table = wide;
    *slots = wanted;
    return true;
}

static uint32_t hash_of_frame(const struct grammar *g, size_t i) {
    return hash_frame(&g->frames[i]);
}

int32_t frame_of(struct grammar *g, struct frame frame) {
    if (2 * (g->n_frames + 1) > g->frame_slots &&
        !widen(g, &g->frame_table, &g->frame_slots, g->n_frames, hash_of_frame))
        return -1;
    size_t at = hash_frame(&frame) & (g->frame_slots - 1);
    for (; g->frame_table[at] >= 0; at = (at + 1) & (g->frame_slots - 1))
        if (same_frame(&g->frames[g->frame_table[at]], &frame)) return g->frame_table[at];
    if (g->n_frames == g->room_frames && !grow(g, &g->frames, &g->room_frames, sizeof *g->frames))
        return -1;
    g->frames[g->n_frames] = frame;
    g->frame_table[at] = (int32_t)g->n_frames;
    return (int32_t)g->n_frames++;
}

/* --- states ---------------------------------------------------------------------------------- */

static uint32_t hash_state(const int32_t *frames, int32_t n, bool ends, bool escapes) {
    uint32_t h = (uint32_t)(ends | escapes << 1);
    for (int32_t i = 0; i < n; i++) h = mix((uint64_t)h << 32 | (uint32_t)frames[i], (uint64_t)i);
    return h;
}

static uint32_t hash_of_state(const struct grammar *g, size_t i) {
    const struct state *s = &g->states[i];
    return hash_state(s->frames, s->n, s->ends, s->escapes);
}

static int by_number(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

static bool same_state(const struct state *s, const int32_t *frames, int32_t n, bool ends,
                       bool escapes) {
    return s->n == n && s->ends == ends && s->escapes == escapes &&
           (n == 0 || memcmp(s->frames, frames, (size_t)n * sizeof *frames) == 0);
}

int32_t state_of(struct grammar *g, int32_t *frames, int32_t n, bool ends, bool escapes) {
    if (2 * (g->n_states + 1) > g->state_slots &&
        !widen(g, &g->state_table, &g->state_slots, g->n_states, hash_of_state))
        return STATE_DEAD;
    if (n > 1) qsort(frames, (size_t)n, sizeof *frames, by_number);
    size_t at = hash_state(frames, n, ends, escapes) & (g->state_slots - 1);
    for (; g->state_table[at] >= 0; at = (at + 1) & (g->state_slots - 1))
        if (same_state(&g->states[g->state_table[at]], frames, n, ends, escapes))
            return g->state_table[at];
    if (g->n_states == g->room_states && !grow(g, &g->states, &g->room_states, sizeof *g->states))
        return STATE_DEAD;
    int32_t *copy = malloc((size_t)(n ? n : 1) * sizeof *copy);
    if (!copy) {
        g->trouble = ERR_MEMORY;
        return STATE_DEAD;
    }
    if (n) memcpy(copy, frames, (size_t)n * sizeof *copy);
    g->memory += (size_t)n * sizeof *copy + 16;
    g->states[g->n_states] = (struct state){.frames = copy, .n = n, .ends = ends, .escapes = escapes};
    g->state_table[at] = (int32_t)g->n_states;
    return (int32_t)g->n_states++;
}

/* --- closures: all that can be reached without a byte ------------------------------------------ */

static void begin_closure(struct closure *c) {
    if (++c->stamp == 0) {
        memset(c->seen, 0, sizeof c->seen);
        c->stamp = 1;
    }
    c->n_todo = c->n_waiting = c->n_seen = 0;
    c->ends = c->escapes = c->too_many = false;
}

/* Puts a place on the list unless it was there. */
static void visit(struct closure *c, struct frame frame) {
    size_t slots = sizeof c->seen / sizeof *c->seen, at = hash_frame(&frame) & (slots - 1);
    for (; c->seen[at].stamp == c->stamp; at = (at + 1) & (slots - 1))
        if (same_frame(&c->seen[at].frame, &frame)) return;
    if (c->n_seen == 2 * STATE_MAX_FRAMES) {
        c->too_many = true;
        return;
    }
    c->seen[at] = (struct seen){frame, c->stamp};
    c->n_seen++;
    c->todo[c->n_todo++] = frame; /* as many as seen, at most */
}

static void go(struct closure *c, struct frame f, int32_t pc) {
    f.pc = pc;
    visit(c, f);
}

static void return_from(struct grammar *g, struct closure *c, int32_t parent) {
    if (parent == FRAME_ROOT) c->ends = true;
    else if (parent == FRAME_HOLE) c->escapes = true;
    else visit(c, g->frames[parent]);
}

/* A call at the end of a rule needs no frame to come back to. */
static void call(struct grammar *g, struct closure *c, struct frame f, const struct inst *i) {
    int32_t parent = f.parent;
    if (g->code[i->y].op != OP_RETURN) {
        f.pc = i->y;
        parent = frame_of(g, f);
        if (parent < 0) return;
    }
    visit(c, (struct frame){.pc = i->x, .parent = parent});
}

static void test(struct closure *c, struct frame f, const struct inst *i) {
    if (f.max > 0) go(c, f, i->x);
    if (f.min > 0) return;
    f.max = 0;
    go(c, f, i->y);
}

static void follow(struct grammar *g, struct closure *c, struct frame f) {
    const struct inst *i = &g->code[f.pc];
    switch ((enum op)i->op) {
    case OP_BYTE: {
        int32_t frame = frame_of(g, f);
        if (frame < 0) return;
        if (c->n_waiting == STATE_MAX_FRAMES) c->too_many = true;
        else c->waiting[c->n_waiting++] = frame;
        return;
    }
    case OP_SPLIT:
        go(c, f, i->x);
        go(c, f, i->y);
        return;
    case OP_CALL: call(g, c, f, i); return;
    case OP_RETURN: return_from(g, c, f.parent); return;
    case OP_COUNT:
        f.min = (uint32_t)i->x;
        f.max = (uint32_t)i->y;
        go(c, f, f.pc + 1);
        return;
    case OP_TEST: test(c, f, i); return;
    case OP_DOWN:
        if (f.min > 0) f.min--;
        if (f.max != COUNT_NO_END) f.max--;
        go(c, f, i->x);
        return;
    }
}

static int32_t end_closure(struct grammar *g, struct closure *c) {
    while (c->n_todo && !c->too_many && !g->trouble) follow(g, c, c->todo[--c->n_todo]);
    g->work += (size_t)c->n_seen;
    if (g->work > GRAMMAR_WORK || g->memory > 2 * (size_t)GRAMMAR_MEMORY) g->trouble = ERR_PARAMS;
    g->crowded = g->crowded || c->too_many;
    if (c->too_many || g->trouble) return STATE_DEAD;
    return state_of(g, c->waiting, c->n_waiting, c->ends, c->escapes);
}

/* STATE_DEAD comes first of all. */
static bool ready(struct grammar *g) {
    if (!g->closure && !(g->closure = calloc(1, sizeof *g->closure))) g->trouble = ERR_MEMORY;
    if (!g->trouble && g->n_states == 0) state_of(g, NULL, 0, false, false);
    return !g->trouble;
}

int32_t state_first(struct grammar *g) {
    if (g->first >= 0 || !ready(g)) return g->trouble ? STATE_DEAD : g->first;
    begin_closure(g->closure);
    visit(g->closure, (struct frame){.pc = g->start, .parent = FRAME_ROOT});
    int32_t first = end_closure(g, g->closure);
    if (!g->trouble) g->first = first;
    return first;
}

static int32_t make_step(struct grammar *g, int32_t state, uint8_t byte) {
    struct closure *c = g->closure;
    begin_closure(c);
    for (int32_t k = 0; k < g->states[state].n; k++) {
        struct frame f = g->frames[g->states[state].frames[k]];
        const struct inst *i = &g->code[f.pc];
        if (byte >= i->lo && byte <= i->hi) go(c, f, i->x);
    }
    return end_closure(g, c);
}

int32_t state_step(struct grammar *g, int32_t state, uint8_t byte) {
    struct state *s = &g->states[state];
    int class = g->class_of[byte];
    if (state == STATE_DEAD) return STATE_DEAD;
    if (!s->next) {
        size_t bytes = (size_t)g->n_classes * sizeof *s->next;
        s->next = malloc(bytes);
        if (!s->next) {
            g->trouble = ERR_MEMORY;
            return STATE_DEAD;
        }
        memset(s->next, 0xFF, bytes);
        g->memory += bytes;
    }
    if (s->next[class] >= 0) return s->next[class];
    int32_t next = make_step(g, state, byte);
    if (!g->trouble) g->states[state].next[class] = next;
    return next;
}

/* --- memory ---------------------------------------------------------------------------------- */

static void forget(struct grammar *g) {
    for (size_t i = 0; i < g->n_states; i++) {
        free(g->states[i].frames);
        free(g->states[i].next);
        free(g->states[i].mask);
    }
    mask_forget(g);
    free(g->states);
    free(g->frames);
    free(g->frame_table);
    free(g->state_table);
    g->states = NULL;
    g->frames = NULL;
    g->frame_table = g->state_table = NULL;
    g->n_frames = g->room_frames = g->n_states = g->room_states = 0;
    g->frame_slots = g->state_slots = g->memory = 0;
    g->first = -1;
    g->trouble = ERR_NONE;
    g->crowded = false;
}

bool grammar_trim(struct grammar *g) {
    g->work = 0;
    if (g->memory < GRAMMAR_MEMORY && !g->trouble) return false;
    forget(g);
    g->epoch++;
    return true;
}

struct grammar *grammar_share(struct grammar *g) {
    if (g) atomic_fetch_add(&g->users, 1);
    return g;
}

void grammar_release(struct grammar *g) {
    if (!g || atomic_fetch_sub(&g->users, 1) > 1) return;
    forget(g);
    free(g->closure);
    free(g->code);
    free(g);
}

/* --- whole texts ------------------------------------------------------------------------------- */

static int32_t run_text(struct grammar *g, const char *text, size_t size) {
    grammar_trim(g);
    int32_t state = state_first(g);
    for (size_t i = 0; i < size && state != STATE_DEAD; i++)
        state = state_step(g, state, (uint8_t)text[i]);
    return state;
}

bool grammar_accepts(struct grammar *g, const char *text, size_t size) {
    int32_t state = run_text(g, text, size);
    return state != STATE_DEAD && g->states[state].ends;
}

bool grammar_begins(struct grammar *g, const char *text, size_t size) {
    return run_text(g, text, size) != STATE_DEAD;
}
