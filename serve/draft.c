#include "serve/draft.h"

#include "base/log.h"

#include <stdlib.h>
#include <string.h>

/* Rows of a sequence that the draft model computes at once. */
struct draft_part {
    struct sequence *s;
    int32_t first, n_rows;
    int wanted, made; /* guesses; wanted is 0 while it only catches up */
    bool going;       /* its last row's logits are wanted */
};

struct draft {
    struct runner *runner;
    struct scheduler *scheduler;
    int32_t max_rows, max_seqs, max_blocks, block_size, vocab;
    double seconds;
    struct pace pace;
    struct sequence **order;  /* [slots] those that live and draft, the oldest first */
    int32_t n_order;
    struct draft_part *parts; /* [max_seqs] */
    int32_t n_parts, rows_left;
    int32_t *ids, *pos, *len, *seq; /* [max_rows] */
    int32_t *out_rows, *blocks;     /* [max_seqs], [max_seqs, max_blocks] */
    float *logits;                  /* [max_seqs, vocab] */
    struct logits_wish *wishes;     /* [max_seqs] */
    struct candidates *few;         /* [max_seqs] */
};

int draft_new(struct draft **out, struct runner *runner, struct scheduler *scheduler,
              const struct shard_options *o, int32_t slots, struct error *e) {
    struct draft *d = calloc(1, sizeof *d);
    if (!d) return error_set(e, ERR_MEMORY, "no memory for the draft model's steps");
    size_t rows = (size_t)o->max_rows * sizeof(int32_t), seqs = (size_t)o->max_seqs;
    d->runner = runner;
    d->scheduler = scheduler;
    d->max_rows = o->max_rows;
    d->max_seqs = o->max_seqs;
    d->max_blocks = o->max_blocks;
    d->block_size = o->block_size;
    d->vocab = runner->draft_config->vocab;
    bool ok = (d->order = calloc((size_t)slots, sizeof(struct sequence *))) &&
              (d->parts = calloc(seqs, sizeof *d->parts)) && (d->ids = malloc(rows)) &&
              (d->pos = malloc(rows)) && (d->len = malloc(rows)) && (d->seq = malloc(rows)) &&
              (d->out_rows = malloc(seqs * sizeof *d->out_rows)) &&
              (d->blocks = calloc(seqs * (size_t)o->max_blocks, sizeof *d->blocks)) &&
              (d->logits = malloc(seqs * (size_t)d->vocab * sizeof *d->logits)) &&
              (d->wishes = malloc(seqs * sizeof *d->wishes)) && (d->few = malloc(seqs * sizeof *d->few));
    if (!ok) {
        draft_free(d);
        return error_set(e, ERR_MEMORY, "no memory for the draft model's steps");
    }
    *out = d;
    return 0;
}

void draft_free(struct draft *d) {
    if (!d) return;
    free(d->order);
    free(d->parts);
    free(d->ids);
    free(d->pos);
    free(d->len);
    free(d->seq);
    free(d->out_rows);
    free(d->blocks);
    free(d->logits);
    free(d->wishes);
    free(d->few);
    free(d);
}

double draft_seconds(const struct draft *d) {
    return d->seconds;
}

const struct pace *draft_pace(const struct draft *d) {
    return &d->pace;
}

/* --- a step of the draft model ------------------------------------------------------------------- */

/* The token at pos, a guess of this round perhaps. One that the draft model does not have is another to it. */
static token_id token_at(const struct draft *d, const struct sequence *s, int32_t pos) {
    int32_t n_known = s->entry.n_known;
    token_id id = pos < n_known ? s->entry.tokens[pos] : s->proposals[pos - n_known];
    return id < d->vocab ? id : 0;
}

static void fill_part(struct draft *d, const struct draft_part *part, struct step *step) {
    const struct sequence *s = part->s;
    const struct kv_table *table = &s->entry.table;
    int32_t n_prompt = (int32_t)s->request->n_prompt;
    for (int32_t pos = part->first; pos < part->first + part->n_rows; pos++) {
        int32_t row = step->n_rows++;
        d->ids[row] = token_at(d, s, pos);
        d->pos[row] = pos;
        d->len[row] = pos < n_prompt ? n_prompt : pos + 1;
        d->seq[row] = step->n_seqs;
    }
    if (part->going) {
        sequence_wish(s, part->first + part->n_rows - 1, &d->wishes[step->n_out]);
        d->few[step->n_out].n = 0;
        d->out_rows[step->n_out++] = step->n_rows - 1;
    }
    memcpy(d->blocks + (size_t)step->n_seqs * (size_t)d->max_blocks, table->blocks,
           (size_t)table->n * sizeof *d->blocks);
    step->n_seqs++;
}

/* Computes the rows of all parts that have some. */
static int forward(struct draft *d, struct error *e) {
    struct step step = {.ids = d->ids,
                        .pos = d->pos,
                        .len = d->len,
                        .seq = d->seq,
                        .blocks = d->blocks,
                        .out_rows = d->out_rows,
                        .wishes = d->wishes,
                        .candidates = d->few};
    for (int32_t i = 0; i < d->n_parts; i++)
        if (d->parts[i].n_rows > 0) fill_part(d, &d->parts[i], &step);
    if (step.n_out > 0) step.logits = d->logits;
    int64_t begin = clock_ns();
    int err = d->runner->ops->forward_draft(d->runner, &step, e);
    if (!err) pace_add(&d->pace, step.n_rows, (double)(clock_ns() - begin) / 1e9);
    for (int32_t i = 0; i < d->n_parts && !err; i++) {
        struct draft_part *part = &d->parts[i];
        if (part->n_rows > 0)
            scheduler_second_has(d->scheduler, &part->s->entry, part->first + part->n_rows);
    }
    return err;
}

/* From row `out` of the step; all of it where its candidates do not do. */
static int propose_from(struct draft *d, struct draft_part *part, int32_t out, struct error *e) {
    const struct runner_ops *ops = d->runner->ops;
    struct outcome row = {d->logits + (size_t)out * (size_t)d->vocab, d->vocab, &d->few[out]};
    if (row.n > part->s->limits->vocab) row.n = part->s->limits->vocab;
    int err = sequence_propose(part->s, part->made, &row, e);
    if (err != SAMPLER_UNDECIDED) return err;
    row.few = NULL;
    err = ops->whole_row(d->runner, true, out, row.values, e);
    return err ? err : sequence_propose(part->s, part->made, &row, e);
}

/* Where proposing fails (nothing can follow under a grammar) the round ends before that. */
static void propose(struct draft *d, struct draft_part *part, int32_t out) {
    struct sequence *s = part->s;
    struct error ignored;
    part->going = propose_from(d, part, out, &ignored) == 0;
    if (!part->going) return;
    token_id id = s->proposals[part->made++];
    part->going = part->made < part->wanted && !sequence_ends_at(s, id);
}

/* From the rows that were computed: a guess of each part that goes on, and the rows that follow. */
static int32_t propose_all(struct draft *d) {
    int32_t n_out = 0, n_going = 0;
    for (int32_t i = 0; i < d->n_parts; i++) {
        struct draft_part *part = &d->parts[i];
        if (part->going) propose(d, part, n_out++);
        part->first = part->s->entry.n_known + part->made - 1;
        part->n_rows = part->going;
        n_going += part->going;
    }
    return n_going;
}

/* --- who takes part ------------------------------------------------------------------------------ */

static bool drafts(const struct sequence *s) {
    const struct guess_terms *t = &s->guesser.terms[GUESS_DRAFT];
    return s->started && !s->over && s->entry.live && !s->entry.held && t->allowed &&
           s->request->n_prompt < t->reach;
}

/* All but the last of its tokens are computed: its guesses can be made. */
static bool is_due(const struct sequence *s) {
    return s->guesser.wanted > 0 && s->entry.n_done >= s->entry.n_known - 1;
}

/* Another one of this step computes the block that the part would begin in. */
static bool is_computed_beside(const struct draft *d, const struct draft_part *part) {
    int32_t i = part->first / d->block_size, block = part->s->entry.table.blocks[i];
    for (int32_t k = 0; k < d->n_parts; k++) {
        const struct draft_part *other = &d->parts[k];
        const struct kv_table *table = &other->s->entry.table;
        if (i < table->n && table->blocks[i] == block && other->first < (i + 1) * d->block_size &&
            other->first + other->n_rows > i * d->block_size)
            return true;
    }
    return false;
}

/* Rows up to position `end` that the draft model lacks, as many as there is room for. False: some are left
 * for later. */
static bool add_part(struct draft *d, struct sequence *s, int32_t end, bool due) {
    struct draft_part part = {.s = s, .first = scheduler_second(d->scheduler, &s->entry)};
    if (due && part.first >= end) part.first = end - 1; /* its logits are wanted in any case */
    if (part.first >= end) return true;
    if (d->n_parts == d->max_seqs || d->rows_left == 0 || is_computed_beside(d, &part)) return false;
    int32_t lacks = end - part.first;
    part.n_rows = lacks < d->rows_left ? lacks : d->rows_left;
    part.going = due && part.n_rows == lacks;
    if (part.going) part.wanted = s->guesser.wanted;
    d->rows_left -= part.n_rows;
    d->parts[d->n_parts++] = part;
    return part.n_rows == lacks;
}

static int by_age(const void *a, const void *b) {
    uint64_t x = (*(struct sequence *const *)a)->entry.age, y = (*(struct sequence *const *)b)->entry.age;
    return (x > y) - (x < y);
}

/* Those whose guesses are awaited, the oldest first, then those whose prompts are read. Room is made before
 * rows are put together, because younger ones may lose their blocks for it. */
static bool put_together(struct draft *d, struct sequence *sequences) {
    bool more = false;
    d->n_parts = 0;
    d->rows_left = d->max_rows;
    d->n_order = 0;
    for (struct sequence *s = sequences; s; s = s->next)
        if (drafts(s)) d->order[d->n_order++] = s;
    qsort(d->order, (size_t)d->n_order, sizeof(struct sequence *), by_age);
    for (int32_t i = 0; i < d->n_order; i++) {
        struct sequence *s = d->order[i];
        s->has_room = s->entry.live && is_due(s) &&
                      scheduler_reserve(d->scheduler, &s->entry, s->entry.n_known + s->guesser.wanted - 1);
    }
    for (int32_t i = 0; i < d->n_order; i++) {
        struct sequence *s = d->order[i];
        if (s->has_room) more |= !add_part(d, s, s->entry.n_known, true);
    }
    for (int32_t i = 0; i < d->n_order; i++) {
        struct sequence *s = d->order[i];
        bool reads = s->n_reports == 0 ? guess_will_ask(&s->guesser) : s->guesser.wanted > 0;
        if (s->entry.live && !is_due(s) && reads) add_part(d, s, s->entry.n_done, false);
    }
    return more;
}

/* Guesses are a help, not a need: without them the sequences go on. */
static void give_up(struct draft *d, const struct error *why) {
    log_warn("the draft model failed, requests go on without it: %s", why->message);
    for (int32_t i = 0; i < d->n_parts; i++) {
        struct sequence *s = d->parts[i].s;
        s->guesser.terms[GUESS_DRAFT].allowed = false;
        sequence_guessed(s, 0);
    }
}

bool draft_run(struct draft *d, struct sequence *sequences) {
    struct error e = {0};
    int64_t begin = clock_ns();
    bool more = put_together(d, sequences);
    if (d->n_parts == 0) return more;
    int err = forward(d, &e);
    while (!err && propose_all(d) > 0) err = forward(d, &e);
    if (err) give_up(d, &e);
    for (int32_t i = 0; i < d->n_parts && !err; i++)
        if (d->parts[i].wanted > 0) sequence_guessed(d->parts[i].s, d->parts[i].made);
    d->seconds += (double)(clock_ns() - begin) / 1e9;
    return more;
}
