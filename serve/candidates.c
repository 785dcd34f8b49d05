/* From a row's candidates to the token that the whole row would give.
 *
 * What the device sends are the best CANDIDATES logits, best first, and the sums of e^(l - max) over all. Every
 * other logit comes behind the last of them. So a greedy choice, a top_k of no more than these, and a min_p that
 * the last one does not reach are what they are in the whole row, and the same code makes the same draw of them.
 *
 * Penalties and biases that only lower logits leave the others where they are, behind the last candidate, or
 * push them further back: the candidates that are still above it are the best of the row, in their order.
 *
 * top_p without top_k cuts at a part of the sum of all weights. The device's sum is not the host's to the bit
 * (which weighs in fp32), but the two are never further apart than SUM_ERROR: where the cut is the same at
 * both ends of that, it is the host's; else the row is undecided, as where the candidates do not reach it.
 *
 * Without any of these filters a token is drawn by a race of the whole vocabulary (serve/logits.h). Then the device
 * sends those who arrive first, reckoned in fp32. The host reckons again, in double: where the first is ahead of the
 * second, and of what was not sent or comes further down the list, by more than rounding can make, it is the host's
 * winner. The rates are weights that stand on the best logit and were rounded once more, but not by RACE_ERROR.
 *
 * Log-probabilities need the sum at temperature 1, which both make in double. The best tokens of a race's row are
 * not known. */
#include "serve/sampler_private.h"

#include <math.h>
#include <string.h>

/* A weight's argument is rounded twice (relative 2^-24 each), at most 17 for what counts beside a vocabulary of
 * millions, and the host's exponential is within 2e-7. */
#define SUM_ERROR 1e-5
/* Weights are within 2e-7: a smaller logit may weigh this much more. */
#define WEIGHT_ERROR 1e-6

/* A key of a race (kernels.h) as the host's weights have it: their 2e-7, and 2^-23 of what the logit is behind the
 * best. That is 41 at most for who may come first: e^37 brings the least number above 0, and the best itself is late
 * by e^4. */
#define RACE_ERROR 1e-5

/* Rows that are asked for whole after an undecided one, for the next will hardly be another. */
enum { WHOLE_ROWS = 8 };

/* Candidates after penalties and bias, best first, as far as it is certain that nothing else is better. */
struct few {
    int32_t n;
    bool all; /* of the vocabulary */
    token_id id[CANDIDATES];
    float logit[CANDIDATES];
};

static bool only_lowers(const struct sampling *p) {
    for (size_t i = 0; i < p->n_logit_bias; i++)
        if (p->logit_bias[i].bias > 0) return false;
    return p->repetition_penalty >= 1 && p->presence_penalty >= 0 && p->frequency_penalty >= 0;
}

static bool has_changes(const struct sampler *s) {
    return s->count || s->sampling->n_logit_bias > 0;
}

/* top_p of the whole vocabulary: its sum is needed. */
static bool cuts_by_sum(const struct sampler *s) {
    const struct sampling *p = s->sampling;
    return p->temperature > 0 && p->top_p < 1 && p->top_k <= 0 && !has_changes(s) &&
           sampler_cold(s) > 0;
}

static bool is_bounded(const struct sampler *s) {
    const struct sampling *p = s->sampling;
    if (p->temperature == 0 || (p->top_k > 0 && p->top_k <= CANDIDATES)) return true;
    return cuts_by_sum(s) || (p->top_p == 1 && p->min_p > 0);
}

/* Of the whole vocabulary. Tokens that a draft model lacks have a logit of -1e30, and shall have no part in it. */
static bool is_race(const struct sampler *s) {
    const struct sampling *p = s->sampling;
    return p->temperature > 0 && !sampler_filters(p) && sampler_cold(s) > 1e-20f && p->logprobs <= 0;
}

static void wish_race(const struct sampler *s, uint64_t position, struct candidates_wish *out) {
    uint64_t bits = sampler_bits(s->sampling->seed, position);
    out->cold = sampler_cold(s);
    out->bits[0] = (uint32_t)bits;
    out->bits[1] = (uint32_t)(bits >> 32);
}

void sampler_wish(const struct sampler *s, uint64_t position, struct logits_wish *out) {
    const struct sampling *p = s->sampling;
    memset(out, 0, sizeof *out);
    out->whole = s->run || s->whole_rows > 0 || (has_changes(s) && !only_lowers(p)) ||
                 (!is_bounded(s) && !is_race(s));
    if (out->whole) return;
    if (is_race(s)) wish_race(s, position, &out->few);
    if (cuts_by_sum(s)) out->few.factor[0] = sampler_cold(s);
    if (p->logprobs >= 0) out->few.factor[1] = 1;
}

static float changed(const struct sampler *s, token_id id, float logit) {
    const struct sampling *p = s->sampling;
    if (s->count && s->count[id].seen > 0) logit = sampler_penalised(s, id, logit);
    for (size_t i = 0; i < p->n_logit_bias; i++)
        if (p->logit_bias[i].id == id) logit = sampler_biased(logit, p->logit_bias[i].bias);
    return logit;
}

static void insert(struct few *f, token_id id, float logit) {
    int32_t at = f->n++;
    for (; at > 0 && (logit > f->logit[at - 1] || (logit == f->logit[at - 1] && id < f->id[at - 1])); at--) {
        f->id[at] = f->id[at - 1];
        f->logit[at] = f->logit[at - 1];
    }
    f->id[at] = id;
    f->logit[at] = logit;
}

static void take(const struct sampler *s, const struct candidates *c, struct few *f) {
    bool any = !has_changes(s);
    f->n = 0;
    f->all = c->n == c->of && c->of == s->vocab;
    for (int32_t i = 0; i < c->n; i++) {
        if (c->id[i] >= s->vocab) continue; /* a draft model's own */
        float logit = changed(s, c->id[i], c->logit[i]);
        if (any || f->all || logit > c->logit[c->n - 1]) insert(f, c->id[i], logit);
    }
}

/* How many of them the whole row would keep by top_p, or -1: it is not certain. */
static int32_t certain_top_p(struct sampler *s, const struct few *f, double sum) {
    double low = s->sampling->top_p * sum * (1 - SUM_ERROR), high = s->sampling->top_p * sum * (1 + SUM_ERROR);
    double mass = 0;
    s->loops->weigh(f->logit, f->n, f->logit[0], sampler_cold(s), s->weights);
    for (int32_t i = 0; i < f->n; i++) {
        mass += s->weights[i];
        if (mass >= high) return i + 1;
        if (mass >= low) return -1;
    }
    return -1;
}

/* Whether no other logit reaches min_p: none weighs more than the last of these. */
static bool is_certain_min_p(struct sampler *s, const struct few *f) {
    float last;
    s->loops->weigh(&f->logit[f->n - 1], 1, f->logit[0], sampler_cold(s), &last);
    return last * (1 + WEIGHT_ERROR) < s->sampling->min_p;
}

/* The n best as the filters take them. */
static void by_id(struct sampler *s, const struct few *f, int32_t n, float *logits) {
    for (int32_t i = 0; i < n; i++) {
        int32_t at = i;
        for (; at > 0 && s->ids[at - 1] > f->id[i]; at--) {
            s->ids[at] = s->ids[at - 1];
            logits[at] = logits[at - 1];
        }
        s->ids[at] = f->id[i];
        logits[at] = f->logit[i];
    }
}

/* What the filters leave of the row: how many ids and logits [CANDIDATES], or -1: it is not certain. */
static int32_t distribution(struct sampler *s, const struct few *f, const struct candidates *c, float *logits) {
    const struct sampling *p = s->sampling;
    int32_t n = f->n;
    double top_p = p->top_p;
    if (!f->all && (p->top_k <= 0 || p->top_k > n)) {
        if (cuts_by_sum(s)) {
            n = certain_top_p(s, f, c->sum[0]);
            top_p = 1;
        } else if (p->top_p < 1 || !is_certain_min_p(s, f)) n = -1;
    }
    if (n < 0) return n;
    by_id(s, f, n, logits);
    return sampler_filter(s, logits, n, top_p);
}

static void fill_report(const struct candidates *c, int n_top, struct token_report *report) {
    double norm = c->max + log(c->sum[1]);
    int32_t at = 0;
    while (c->id[at] != report->id) at++;
    report->has_logprob = true;
    report->logprob = sampler_floored(c->logit[at] - norm);
    report->n_top = n_top < c->n ? n_top : c->n;
    for (int i = 0; i < report->n_top; i++)
        report->top[i] = (struct token_logprob){c->id[i], sampler_floored(c->logit[i] - norm)};
}

/* How far the device's fp32 may have brought another token before one of this key: 2^-24 of l * cold and of key, each,
 * of both tokens, and 2^-20 for the logarithms. The other one's l * cold is not below that of the best by more than
 * 40, or it is no danger. */
static double order_error(double key, double most) {
    return 0x1p-20 * (fabs(key) + 2 * fabs(most) + 64);
}

/* The winner of a race, or -1: it is not certain. Keys stand on the best logit. */
static token_id first_of_race(const struct sampler *s, const struct candidates *c, uint64_t position) {
    struct candidates_wish wish;
    double first = -INFINITY, second = -INFINITY, cold = sampler_cold(s), most = c->max * cold;
    token_id id = -1;
    wish_race(s, position, &wish);
    if (!(fabs(most) < 1e30)) return -1; /* the device's l * cold may be infinite */
    for (int32_t i = 0; i < c->n; i++) {
        double key = race_key(wish.bits, c->id[i], ((double)c->logit[i] - c->max) * cold);
        bool clear = first - second > 2 * RACE_ERROR;
        if (!isfinite(key)) return -1;
        if (clear && first > key + order_error(key, most)) return id;
        if (c->id[i] >= s->vocab) continue; /* a draft model's own */
        float logit = changed(s, c->id[i], c->logit[i]);
        if (logit != c->logit[i]) key = race_key(wish.bits, c->id[i], ((double)logit - c->max) * cold);
        if (key > first) id = c->id[i];
        second = fmax(second, fmin(first, key));
        first = fmax(first, key);
    }
    return c->n == c->of && first - second > 2 * RACE_ERROR ? id : -1;
}

/* The token, or -1: it is not certain. The window is where it belongs. */
static token_id choose(struct sampler *s, const struct candidates *c, uint64_t position) {
    struct few f;
    float logits[CANDIDATES];
    if (c->strange) return -1;
    if (is_race(s)) return first_of_race(s, c, position);
    take(s, c, &f);
    if (f.n == 0 || s->sampling->temperature == 0) return f.n ? f.id[0] : -1;
    int32_t n = distribution(s, &f, c, logits);
    return n < 0 ? -1 : sampler_draw(s, s->ids, logits, n, position);
}

static int undecided(struct sampler *s) {
    if (!is_race(s)) s->whole_rows = WHOLE_ROWS;
    return SAMPLER_UNDECIDED;
}

int sampler_pick_few(struct sampler *s, const struct candidates *few, const token_id *history, size_t n_history,
                     uint64_t position, struct token_report *report) {
    size_t n_prompt = n_history > position ? n_history - (size_t)position : 0;
    if (s->count) sampler_slide_window(s, history, n_history, n_prompt);
    memset(report, 0, sizeof *report);
    report->id = choose(s, few, position);
    if (report->id < 0) return undecided(s);
    if (s->sampling->logprobs >= 0) fill_report(few, s->sampling->logprobs, report);
    return 0;
}

int sampler_propose_few(struct sampler *s, const struct candidates *few, const token_id *history,
                        size_t n_history, size_t n_open, uint64_t position, token_id *out) {
    size_t n_prompt = n_history - (size_t)position;
    if (s->count) sampler_slide_window(s, history, n_history, n_prompt);
    *out = choose(s, few, position);
    if (s->count) sampler_slide_window(s, history, n_history - n_open, n_prompt);
    return *out < 0 ? undecided(s) : 0;
}
