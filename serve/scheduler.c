#include "serve/scheduler.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct list {
    struct sched_entry *first, *last;
    int32_t n;
};

struct scheduler {
    struct sched_limits limits;
    struct kv_blocks *kv;
    struct list waiting; /* in the order of arrival; who was set back stands first */
    struct list live;    /* who was served longest ago stands first */
    uint64_t clock;      /* virtual time: the turn of the entry that was admitted last */
    uint64_t last_age, step; /* the numbers that were given last */
    struct sched_stats counters;
    /* Room for the tables of live entries: [slots, max_blocks], and the free ones of it. */
    int32_t *rooms, **free_rooms;
    const struct kv_table **tables; /* [slots]; for scheduler_sound */
    /* the step that is being put together */
    struct sched_part *parts; /* [slots] */
    int32_t n_parts, rows_left, outs_left;
};

static int32_t min_of(int32_t a, int32_t b) {
    return a < b ? a : b;
}

static int32_t max_of(int32_t a, int32_t b) {
    return a > b ? a : b;
}

/* --- lists ------------------------------------------------------------------------------------- */

static void list_append(struct list *l, struct sched_entry *entry) {
    entry->next = NULL;
    if (l->last) l->last->next = entry;
    else l->first = entry;
    l->last = entry;
    l->n++;
}

static void list_prepend(struct list *l, struct sched_entry *entry) {
    entry->next = l->first;
    l->first = entry;
    if (!l->last) l->last = entry;
    l->n++;
}

static void list_remove(struct list *l, struct sched_entry *entry) {
    struct sched_entry **link = &l->first, *before = NULL;
    while (*link != entry) {
        before = *link;
        link = &before->next;
    }
    *link = entry->next;
    if (l->last == entry) l->last = before;
    l->n--;
}

/* --- making ------------------------------------------------------------------------------------ */

int scheduler_new(struct scheduler **out, const struct sched_limits *limits, struct error *e) {
    struct scheduler *s = calloc(1, sizeof *s);
    size_t slots = (size_t)limits->slots;
    if (s) {
        s->limits = *limits;
        s->parts = calloc(slots, sizeof *s->parts);
        s->rooms = calloc(slots * (size_t)limits->max_blocks, sizeof *s->rooms);
        s->free_rooms = calloc(slots, sizeof *s->free_rooms);
        s->tables = calloc(slots, sizeof *s->tables);
    }
    if (!s || !s->parts || !s->rooms || !s->free_rooms || !s->tables) {
        scheduler_free(s);
        return error_set(e, ERR_MEMORY, "no memory for the scheduler");
    }
    for (size_t i = 0; i < slots; i++)
        s->free_rooms[i] = s->rooms + i * (size_t)limits->max_blocks;
    int err = kv_blocks_new(&s->kv, limits->n_blocks, limits->block_size, e);
    if (err) {
        scheduler_free(s);
        return err;
    }
    *out = s;
    return 0;
}

void scheduler_free(struct scheduler *s) {
    if (!s) return;
    assert(s->waiting.n == 0 && s->live.n == 0);
    kv_blocks_free(s->kv);
    free(s->parts);
    free(s->rooms);
    free(s->free_rooms);
    free(s->tables);
    free(s);
}

/* --- coming and going -------------------------------------------------------------------------- */

static int32_t blocks_for(const struct scheduler *s, int32_t n_positions) {
    return (n_positions + s->limits.block_size - 1) / s->limits.block_size;
}

int scheduler_add(struct scheduler *s, struct sched_entry *entry, struct error *e) {
    int32_t need = blocks_for(s, entry->n_positions);
    int32_t most = min_of(s->limits.n_blocks, s->limits.max_blocks);
    if (need > most) {
        int err =
            error_set(e, ERR_MEMORY,
                      "a request of %d positions needs %d KV blocks, the cache has %d: ask for "
                      "fewer max_tokens or shorten the prompt",
                      entry->n_positions, need, most);
        error_note_number(e, "needed", need);
        error_note_number(e, "free", most);
        return err;
    }
    /* Fair queueing: every waiting entry of a group is served one turn after the one before it. */
    uint64_t turn = s->clock;
    for (struct sched_entry *w = s->waiting.first; w; w = w->next)
        if (w->group == entry->group && w->turn > turn) turn = w->turn;
    entry->turn = turn + 1;
    entry->live = entry->set_back = false;
    entry->n_done = entry->n_cached = 0;
    entry->age = entry->step = 0;
    entry->table = (struct kv_table){0};
    list_append(&s->waiting, entry);
    return 0;
}

/* A live entry gives slot and blocks back. */
static void leave(struct scheduler *s, struct sched_entry *entry, bool distrust) {
    list_remove(&s->live, entry);
    kv_blocks_give(s->kv, &entry->table, distrust);
    s->free_rooms[s->live.n] = entry->table.blocks;
    entry->table = (struct kv_table){0};
    entry->live = false;
    entry->n_done = 0;
}

void scheduler_remove(struct scheduler *s, struct sched_entry *entry, bool distrust) {
    if (entry->live) leave(s, entry, distrust);
    else list_remove(&s->waiting, entry);
}

/* Its full blocks stay cached as long as there is room, so it may not have lost much. */
static void set_back(struct scheduler *s, struct sched_entry *entry) {
    leave(s, entry, false);
    list_prepend(&s->waiting, entry);
    entry->set_back = true;
    s->counters.set_back++;
}

/* The live entry that has to give way first: the youngest of the held ones, else (younger_than not
 * NULL) the youngest of all but those that are older than that. */
static struct sched_entry *first_to_go(const struct scheduler *s,
                                       const struct sched_entry *younger_than) {
    struct sched_entry *held = NULL, *young = NULL;
    for (struct sched_entry *l = s->live.first; l; l = l->next) {
        if (l == younger_than) continue;
        if (l->held && (!held || l->age > held->age)) held = l;
        if (younger_than && l->age > younger_than->age && (!young || l->age > young->age))
            young = l;
    }
    return held ? held : young;
}

/* --- the cache --------------------------------------------------------------------------------- */

/* Takes over what others have computed already of what it is about to compute. The row that its
 * next logits come from is always its own. Returns how many positions. */
static int32_t share(struct scheduler *s, struct sched_entry *entry) {
    int32_t size = s->limits.block_size;
    /* Blocks that it has beyond what it has computed are its own to fill. */
    if (entry->n_done != entry->table.n * size) return 0;
    int32_t n = kv_blocks_share(s->kv, &entry->table, entry->tokens, entry->out_from) * size;
    if (!entry->set_back && entry->n_done == entry->n_cached) entry->n_cached += n;
    entry->n_done += n;
    return n;
}

/* Whether the block that the entry would begin is one that the other is in, or would begin too. */
static bool same_block(const struct scheduler *s, const struct sched_entry *entry,
                       const struct sched_entry *other) {
    int32_t size = s->limits.block_size, first = entry->n_done;
    return other != entry && !other->held && !other->waits && other->table.name == entry->table.name &&
           other->n_done / size == first / size && other->n_known >= first + size &&
           memcmp(other->tokens + first, entry->tokens + first,
                  (size_t)size * sizeof *entry->tokens) == 0;
}

/* Whether somebody has begun, or begins in this step, the whole block that the entry would begin
 * with. Whoever is within a block has it and can go on, so nobody waits in vain. */
static bool computed_by_another(const struct scheduler *s, const struct sched_entry *entry) {
    int32_t size = s->limits.block_size, first = entry->n_done;
    if (first % size != 0 || first + size > entry->out_from) return false;
    for (int32_t i = 0; i < s->n_parts; i++)
        if (same_block(s, entry, s->parts[i].entry)) return true;
    for (const struct sched_entry *l = s->live.first; l; l = l->next)
        if (l->n_done > first && same_block(s, entry, l)) return true;
    return false;
}

/* --- becoming live ----------------------------------------------------------------------------- */

static struct sched_entry *next_waiting(const struct scheduler *s) {
    struct sched_entry *best = NULL;
    for (struct sched_entry *w = s->waiting.first; w; w = w->next)
        if (!w->held && (!best || w->turn < best->turn)) best = w;
    return best;
}

/* Blocks that live entries still need for what they know, and one more for each. */
static int32_t blocks_promised(const struct scheduler *s) {
    int32_t n = 0;
    for (struct sched_entry *l = s->live.first; l; l = l->next)
        if (!l->held) n += 1 + max_of(0, blocks_for(s, l->n_known) - l->table.n);
    return n;
}

/* Makes it live if its blocks are there. */
static bool admit(struct scheduler *s, struct sched_entry *entry) {
    int32_t promised = blocks_promised(s);
    entry->table.blocks = s->free_rooms[s->live.n];
    entry->table.name = entry->root;
    int32_t cached = share(s, entry);
    int32_t need = blocks_for(s, entry->n_known) - entry->table.n;
    if (s->live.n > 0 && need + promised > kv_blocks_available(s->kv)) {
        kv_blocks_give(s->kv, &entry->table, false);
        entry->n_done = 0;
        if (!entry->set_back) entry->n_cached = 0;
        return false;
    }
    s->counters.tokens_asked += (uint64_t)entry->n_known;
    s->counters.tokens_cached += (uint64_t)cached;
    list_remove(&s->waiting, entry);
    list_append(&s->live, entry);
    entry->live = true;
    if (!entry->age) entry->age = ++s->last_age;
    /* A held entry may come late, at a turn that is past. */
    if (entry->turn > s->clock) s->clock = entry->turn;
    return true;
}

static void admit_all(struct scheduler *s) {
    for (struct sched_entry *entry; (entry = next_waiting(s));) {
        if (s->live.n < s->limits.slots && admit(s, entry)) continue;
        struct sched_entry *idle = first_to_go(s, NULL);
        if (!idle) return;
        set_back(s, idle);
    }
}

/* --- a step ------------------------------------------------------------------------------------ */

static int32_t n_ready(const struct sched_entry *entry) {
    return entry->n_known - entry->waits;
}

static int32_t outs_of(const struct sched_part *p) {
    return max_of(0, p->first + p->n_rows - max_of(p->first, p->entry->out_from));
}

static void drop_part(struct scheduler *s, const struct sched_entry *entry) {
    for (int32_t i = 0; i < s->n_parts; i++) {
        if (s->parts[i].entry != entry) continue;
        s->rows_left += s->parts[i].n_rows;
        s->outs_left += outs_of(&s->parts[i]);
        s->n_parts--;
        memmove(&s->parts[i], &s->parts[i + 1], (size_t)(s->n_parts - i) * sizeof *s->parts);
        return;
    }
}

/* Lengthens the entry's table to hold n positions; others give way where they must. Returns how
 * many positions it holds. */
static int32_t make_room(struct scheduler *s, struct sched_entry *entry, int32_t n) {
    int32_t wanted = blocks_for(s, n);
    while (!kv_blocks_extend(s->kv, &entry->table, max_of(wanted, entry->table.n))) {
        struct sched_entry *other = first_to_go(s, entry);
        if (other) {
            drop_part(s, other);
            set_back(s, other);
        } else wanted = entry->table.n + kv_blocks_available(s->kv);
    }
    return min_of(n, entry->table.n * s->limits.block_size);
}

/* Puts as many rows of the entry into the step as fit. */
static bool add_part(struct scheduler *s, struct sched_entry *entry) {
    struct sched_part part = {entry, entry->n_done, 0};
    int32_t end = min_of(n_ready(entry), part.first + s->rows_left);
    end = min_of(end, max_of(part.first, entry->out_from) + s->outs_left);
    if (end > part.first) end = make_room(s, entry, end);
    if (end <= part.first) return false;
    part.n_rows = end - part.first;
    s->rows_left -= part.n_rows;
    s->outs_left -= outs_of(&part);
    s->parts[s->n_parts++] = part;
    return true;
}

static bool has_one_row(const struct sched_entry *entry) {
    return n_ready(entry) - entry->n_done == 1;
}

static struct sched_entry *next_in_turn(const struct scheduler *s, bool one_row) {
    struct sched_entry *l = s->live.first;
    while (l && (l->held || l->step == s->step || has_one_row(l) != one_row)) l = l->next;
    return l;
}

/* Each of those with one row, or of the others, has its turn, while there is room for rows. */
static void go_round(struct scheduler *s, bool one_row) {
    struct sched_entry *entry;
    while (s->rows_left > 0 && (entry = next_in_turn(s, one_row))) {
        entry->step = s->step;
        if (!one_row) s->counters.tokens_cached += (uint64_t)share(s, entry);
        /* Who lets another go ahead has been served by it. */
        if ((one_row || !computed_by_another(s, entry)) && !add_part(s, entry)) continue;
        list_remove(&s->live, entry);
        list_append(&s->live, entry);
    }
}

/* Guesses take what nobody else has asked for. */
static void add_guesses(struct scheduler *s) {
    int32_t size = s->limits.block_size;
    for (int32_t i = 0; i < s->n_parts; i++) {
        struct sched_part *part = &s->parts[i];
        struct kv_table *table = &part->entry->table;
        int32_t first = part->entry->n_known;
        int32_t end = first + min_of(part->entry->n_guessed, min_of(s->rows_left, s->outs_left));
        end = min_of(end, part->entry->n_positions);
        if (end > table->n * size && !kv_blocks_extend(s->kv, table, blocks_for(s, end)))
            end = table->n * size;
        if (end <= first) continue;
        part->n_rows += end - first;
        s->rows_left -= end - first;
        s->outs_left -= end - first;
    }
}

int32_t scheduler_next(struct scheduler *s, const struct sched_part **parts) {
    enum { CHUNK_PART = 4 }; /* of a step, beside generating sequences */
    s->step++;
    s->n_parts = 0;
    s->rows_left = s->limits.rows;
    s->outs_left = s->limits.outs;
    admit_all(s);
    go_round(s, true);
    add_guesses(s);
    if (s->n_parts > 0)
        s->rows_left = min_of(s->rows_left, max_of(1, s->limits.rows / CHUNK_PART));
    go_round(s, false);
    *parts = s->parts;
    return s->n_parts;
}

void scheduler_done(struct scheduler *s, const struct sched_part *part, int32_t n_right) {
    struct sched_entry *entry = part->entry;
    assert(entry->live && entry->n_done == part->first);
    entry->n_done += n_right;
    kv_blocks_name(s->kv, &entry->table, entry->tokens, entry->n_done);
}

/* --- between steps ------------------------------------------------------------------------------ */

bool scheduler_reserve(struct scheduler *s, struct sched_entry *entry, int32_t n) {
    s->n_parts = 0;
    return make_room(s, entry, n) == n;
}

int32_t scheduler_second(const struct scheduler *s, const struct sched_entry *entry) {
    return kv_blocks_second(s->kv, &entry->table);
}

void scheduler_second_has(struct scheduler *s, const struct sched_entry *entry, int32_t n) {
    kv_blocks_second_has(s->kv, &entry->table, n);
}

void scheduler_second_lost(struct scheduler *s, const struct sched_entry *entry, int32_t n) {
    kv_blocks_second_lost(s->kv, &entry->table, n);
}

/* --- books ------------------------------------------------------------------------------------- */

void scheduler_stats(const struct scheduler *s, struct sched_stats *out) {
    *out = s->counters;
    out->waiting = s->waiting.n;
    out->live = s->live.n;
    out->blocks = s->limits.n_blocks;
    out->blocks_used = s->limits.n_blocks - kv_blocks_available(s->kv);
    out->blocks_cached = kv_blocks_cached(s->kv);
}

bool scheduler_sound(const struct scheduler *s) {
    size_t n = 0;
    for (const struct sched_entry *l = s->live.first; l; l = l->next) {
        int32_t size = s->limits.block_size;
        if (n == (size_t)s->limits.slots || !l->live || l->n_done > l->n_known ||
            l->table.n * size < l->n_done || l->table.n_named != l->n_done / size)
            return false;
        s->tables[n++] = &l->table;
    }
    for (const struct sched_entry *w = s->waiting.first; w; w = w->next)
        if (w->live || w->table.n != 0) return false;
    return n == (size_t)s->live.n && kv_blocks_sound(s->kv, s->tables, n);
}
