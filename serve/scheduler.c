#include "serve/scheduler.h"

#include <assert.h>
#include <stdlib.h>

struct list {
    struct sched_entry *first, *last;
    int32_t n;
};

struct scheduler {
    struct kv_blocks *kv;
    int32_t slots, block_size;
    struct list waiting; /* in the order of arrival */
    struct list live;    /* the first one's turn is next */
    uint64_t clock;      /* virtual time: the turn of the entry that was admitted last */
};

static void list_append(struct list *l, struct sched_entry *entry) {
    entry->next = NULL;
    if (l->last) l->last->next = entry;
    else l->first = entry;
    l->last = entry;
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

int scheduler_new(struct scheduler **out, int32_t slots, int32_t n_blocks, int32_t block_size,
                  struct error *e) {
    struct scheduler *s = calloc(1, sizeof *s);
    if (!s) return error_set(e, ERR_MEMORY, "no memory for the scheduler");
    int err = kv_blocks_new(&s->kv, n_blocks, e);
    if (err) {
        free(s);
        return err;
    }
    s->slots = slots;
    s->block_size = block_size;
    *out = s;
    return 0;
}

void scheduler_free(struct scheduler *s) {
    if (!s) return;
    assert(s->waiting.n == 0 && s->live.n == 0);
    kv_blocks_free(s->kv);
    free(s);
}

static int32_t blocks_of(const struct scheduler *s, const struct sched_entry *entry) {
    return (entry->n_positions + s->block_size - 1) / s->block_size;
}

int scheduler_add(struct scheduler *s, struct sched_entry *entry, struct error *e) {
    int32_t need = blocks_of(s, entry), total = kv_blocks_total(s->kv);
    if (need > total) {
        int err =
            error_set(e, ERR_MEMORY,
                      "a request of %d positions needs %d KV blocks, the cache has %d: ask for "
                      "fewer max_tokens or shorten the prompt",
                      entry->n_positions, need, total);
        error_note_number(e, "needed", need);
        error_note_number(e, "free", total);
        return err;
    }
    /* Fair queueing: every waiting entry of a group is served one turn after the one before it. */
    uint64_t turn = s->clock;
    for (struct sched_entry *w = s->waiting.first; w; w = w->next)
        if (w->group == entry->group && w->turn > turn) turn = w->turn;
    entry->turn = turn + 1;
    entry->live = false;
    entry->n_done = 0;
    entry->table = (struct kv_table){NULL, 0};
    list_append(&s->waiting, entry);
    return 0;
}

void scheduler_remove(struct scheduler *s, struct sched_entry *entry) {
    list_remove(entry->live ? &s->live : &s->waiting, entry);
    if (entry->live) kv_blocks_give(s->kv, &entry->table);
    entry->live = false;
}

static struct sched_entry *next_waiting(const struct scheduler *s) {
    struct sched_entry *best = NULL;
    for (struct sched_entry *w = s->waiting.first; w; w = w->next)
        if (!w->held && (!best || w->turn < best->turn)) best = w;
    return best;
}

static void admit(struct scheduler *s) {
    while (s->live.n < s->slots) {
        struct sched_entry *entry = next_waiting(s);
        if (!entry || kv_blocks_take(s->kv, &entry->table, blocks_of(s, entry), NULL) != 0) return;
        list_remove(&s->waiting, entry);
        list_append(&s->live, entry);
        entry->live = true;
        /* A held entry may come late, at a turn that is past. */
        if (entry->turn > s->clock) s->clock = entry->turn;
    }
}

bool scheduler_next(struct scheduler *s, struct sched_step *step) {
    admit(s);
    struct sched_entry *entry = s->live.first;
    while (entry && entry->held) entry = entry->next;
    if (!entry) return false;
    /* Its next turn comes after everybody else's. */
    list_remove(&s->live, entry);
    list_append(&s->live, entry);
    int32_t first = entry->n_done, n = 1;
    if (first < entry->n_prompt) {
        int32_t chunk_end = (first / entry->chunk_rows + 1) * entry->chunk_rows;
        n = (chunk_end < entry->n_prompt ? chunk_end : entry->n_prompt) - first;
    }
    assert(first + n <= entry->n_positions);
    entry->n_done += n;
    *step = (struct sched_step){entry, first, n};
    return true;
}

void scheduler_stats(const struct scheduler *s, struct sched_stats *out) {
    int32_t total = kv_blocks_total(s->kv);
    *out = (struct sched_stats){s->waiting.n, s->live.n, total, total - kv_blocks_available(s->kv)};
}
