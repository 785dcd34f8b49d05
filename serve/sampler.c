#include "serve/sampler_private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Penalties and bias may push a logit anywhere; within this bound differences stay finite. */
#define LOGIT_BOUND 1e30

/* --- random numbers ------------------------------------------------------------------------------
 */

static void philox_round(uint32_t c[4], const uint32_t key[2]) {
    uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
    uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ key[0], (uint32_t)b,
                        (uint32_t)(a >> 32) ^ c[3] ^ key[1], (uint32_t)a};
    memcpy(c, next, sizeof next);
}

uint64_t sampler_bits(uint64_t seed, uint64_t position) {
    uint32_t c[4] = {(uint32_t)position, (uint32_t)(position >> 32), 0, 0};
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    for (int round = 0; round < 10; round++) {
        philox_round(c, key);
        key[0] += 0x9E3779B9u;
        key[1] += 0xBB67AE85u;
    }
    return (uint64_t)c[1] << 32 | c[0];
}

/* --- log-probabilities ----------------------------------------------------------------------- */

static int check_finite(const float *logits, int32_t vocab, struct error *e) {
    if (logit_loops()->all_finite(logits, vocab)) return 0;
    int32_t row = 0;
    while (isfinite(logits[row])) row++;
    return error_set(
        e, ERR_DEVICE,
        "the model computed a logit that is not a number for token %d (%s): its weights "
        "or the device are damaged; check the file with tpd inspect",
        row, isnan(logits[row]) ? "NaN" : "infinite");
}

static float max_of(const float *x, int32_t n) {
    return logit_loops()->max(x, n);
}

static double sum_of(const float *x, int32_t n) {
    return logit_loops()->sum(x, n);
}

static double log_sum_exp(const float *logits, int32_t vocab) {
    double max = max_of(logits, vocab), sum = 0;
    for (int32_t i = 0; i < vocab; i++) sum += exp(logits[i] - max);
    return max + log(sum);
}

float sampler_floored(double logprob) {
    return (float)(logprob > -100 ? logprob : -100);
}

/* Insertion into a short list, best first; equals keep the order of their ids. */
static int top_tokens(const float *logits, int32_t vocab, int n, struct token_logprob *top) {
    int have = 0;
    for (int32_t i = 0; i < vocab; i++) {
        if (have == n && !(n > 0 && logits[i] > top[n - 1].logprob)) continue;
        int at = have < n ? have++ : n - 1;
        for (; at > 0 && logits[i] > top[at - 1].logprob; at--) top[at] = top[at - 1];
        top[at] = (struct token_logprob){i, logits[i]};
    }
    return have;
}

static void fill_report(const float *logits, int32_t vocab, token_id id, int n_top,
                        struct token_report *report) {
    double norm = log_sum_exp(logits, vocab);
    report->id = id;
    report->has_logprob = true;
    report->logprob = sampler_floored(logits[id] - norm);
    report->n_top = top_tokens(logits, vocab, n_top, report->top);
    for (int i = 0; i < report->n_top; i++)
        report->top[i].logprob = sampler_floored(report->top[i].logprob - norm);
}

int logprob_report(const float *logits, int32_t vocab, token_id id, int n_top,
                   struct token_report *report, struct error *e) {
    int err = check_finite(logits, vocab, e);
    if (!err) fill_report(logits, vocab, id, n_top, report);
    return err;
}

/* --- penalties and bias ---------------------------------------------------------------------- */

static float bounded(double x) {
    return (float)(x > LOGIT_BOUND ? LOGIT_BOUND : x < -LOGIT_BOUND ? -LOGIT_BOUND : x);
}

static void count_token(struct sampler *s, token_id id, bool made, int32_t by) {
    s->count[id].seen += by;
    if (made) s->count[id].made += by;
}

void sampler_slide_window(struct sampler *s, const token_id *history, size_t n, size_t n_prompt) {
    size_t last_n = s->sampling->penalty_last_n < 0 ? n : (size_t)s->sampling->penalty_last_n;
    size_t from = n > last_n ? n - last_n : 0, i;
    for (; s->window_to < n; s->window_to++)
        count_token(s, history[s->window_to], s->window_to >= n_prompt, 1);
    for (; s->window_from < from; s->window_from++)
        count_token(s, history[s->window_from], s->window_from >= n_prompt, -1);
    while (s->window_from > from) {
        i = --s->window_from;
        count_token(s, history[i], i >= n_prompt, 1);
    }
    while (s->window_to > n) {
        i = --s->window_to;
        count_token(s, history[i], i >= n_prompt, -1);
    }
}

float sampler_penalised(const struct sampler *s, token_id id, float logit) {
    const struct sampling *p = s->sampling;
    double l = logit;
    l = l > 0 ? l / p->repetition_penalty : l * p->repetition_penalty;
    if (s->count[id].made > 0) l -= p->presence_penalty + p->frequency_penalty * s->count[id].made;
    return bounded(l);
}

static void apply_penalties(struct sampler *s, float *logits, const token_id *history, size_t n,
                            size_t n_prompt) {
    sampler_slide_window(s, history, n, n_prompt);
    for (size_t i = s->window_from; i < n; i++) {
        token_id id = history[i];
        struct count *count = &s->count[id];
        if (count->seen < 0) continue;
        count->seen = -count->seen; /* it has had its penalty */
        logits[id] = sampler_penalised(s, id, logits[id]);
    }
    for (size_t i = s->window_from; i < n; i++)
        s->count[history[i]].seen = abs(s->count[history[i]].seen);
}

float sampler_biased(float logit, double bias) {
    return bounded((double)logit + bias);
}

static void apply_bias(const struct sampling *p, float *logits) {
    for (size_t i = 0; i < p->n_logit_bias; i++) {
        float *l = &logits[p->logit_bias[i].id];
        *l = sampler_biased(*l, p->logit_bias[i].bias);
    }
}

/* --- cuts ------------------------------------------------------------------------------------ */

/* A prefix of the candidates in the order (logit descending, id ascending): all with a key over
 * `key`, and the first `ties` with exactly that key. */
struct cut {
    uint32_t key;
    int32_t ties;
};

/* Unsigned keys in the order of the floats. -0 counts as 0. */
static uint32_t order_key(float x) {
    uint32_t bits;
    x += 0.0f;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static float float_of_key(uint32_t key) {
    uint32_t bits = key & 0x80000000u ? key & 0x7FFFFFFFu : ~key;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

enum { RADIX_BITS = 11, RADIX_SIZE = 1 << RADIX_BITS };

/* The shortest prefix whose weights (1 each when weights is NULL) sum to at least need; never
 * empty. Not all weights may be 0. Radix selection: three looks at 11, 11 and 10 bits of the key,
 * each only at the candidates of the bucket where the sum reaches need. */
static struct cut find_cut(const float *logits, const float *weights, int32_t n, double need,
                           int32_t *bucket) {
    static const int shifts[] = {21, 10, 0};
    uint32_t prefix = 0;
    double sum = 0;
    int32_t n_bucket = n;
    for (int level = 0; level < 3; level++) {
        double mass[RADIX_SIZE] = {0};
        int shift = shifts[level];
        uint32_t mask = level == 2 ? (1u << 10) - 1 : RADIX_SIZE - 1;
        for (int32_t j = 0; j < n_bucket; j++) {
            int32_t i = level ? bucket[j] : j;
            uint32_t digit = order_key(logits[i]) >> shift & mask;
            mass[digit] += weights ? weights[i] : 1;
        }
        int32_t chosen = -1;
        for (int32_t d = (int32_t)mask; d >= 0; d--) {
            if (mass[d] <= 0) continue;
            /* Rounding may leave the whole sum just under need: then the last one is the cut. */
            if (chosen >= 0) sum += mass[chosen];
            chosen = d;
            if (sum + mass[d] >= need) break;
        }
        prefix |= (uint32_t)chosen << shift;
        int32_t kept = 0;
        for (int32_t j = 0; j < n_bucket; j++) {
            int32_t i = level ? bucket[j] : j;
            if ((order_key(logits[i]) >> shift & mask) == (uint32_t)chosen) bucket[kept++] = i;
        }
        n_bucket = kept;
    }
    struct cut cut = {prefix, 0};
    while (cut.ties < n_bucket) {
        sum += weights ? weights[bucket[cut.ties]] : 1;
        cut.ties++;
        if (sum >= need) break;
    }
    return cut;
}

/* Keeps the candidates whose x (their logits or weights) is at least least, in the order they had.
 * Returns how many. */
static int32_t keep_from(struct sampler *s, float *logits, const float *x, int32_t n, float least) {
    int32_t kept = 0;
    for (int32_t i = 0; i < n; i++) {
        if (x[i] < least) continue;
        logits[kept] = logits[i];
        s->ids[kept] = s->ids[i];
        s->weights[kept] = s->weights[i];
        kept++;
    }
    return kept;
}

/* Keeps what is inside the cut, in the order it had. Returns how many. */
static int32_t apply_cut(struct sampler *s, float *logits, int32_t n, struct cut cut) {
    int32_t kept = 0;
    for (int32_t i = 0; i < n; i++) {
        uint32_t key = order_key(logits[i]);
        if (key < cut.key || (key == cut.key && cut.ties-- <= 0)) continue;
        logits[kept] = logits[i];
        s->ids[kept] = s->ids[i];
        s->weights[kept] = s->weights[i];
        kept++;
    }
    return kept;
}

/* --- the choice ------------------------------------------------------------------------------ */

static bool is_allowed(const struct sampler *s, token_id id) {
    return !s->run || (s->allowed[id / 64] >> (id % 64) & 1);
}

static void set_allowed(struct sampler *s, token_id id, bool allowed) {
    if (id < 0 || id >= s->vocab) return;
    uint64_t bit = (uint64_t)1 << (id % 64);
    if (allowed) s->allowed[id / 64] |= bit;
    else s->allowed[id / 64] &= ~bit;
}

/* What the grammar allows after the tokens that were generated. */
static int ask_grammar(struct sampler *s, const token_id *made, size_t n, struct error *e) {
    const struct sampling *p = s->sampling;
    const uint64_t *mask;
    bool may_end;
    int err = grammar_run_mask(s->run, made, n, &mask, &may_end, e);
    if (err) return err;
    memcpy(s->allowed, mask, ((size_t)s->vocab + 63) / 64 * sizeof *mask);
    for (size_t i = 0; i < s->n_ends; i++)
        set_allowed(s, s->ends[i], may_end && !p->ignore_eos);
    for (size_t i = 0; i < p->n_stop_token_ids; i++) set_allowed(s, p->stop_token_ids[i], may_end);
    for (size_t k = 0; k < ((size_t)s->vocab + 63) / 64; k++)
        if (s->allowed[k]) return 0;
    return error_set(e, ERR_PARAMS,
                     "nothing can follow the text under its grammar, and the model has no token "
                     "that ends it here (ignore_eos, or stop_token_ids that the text needs)");
}

static token_id best_allowed(const struct sampler *s, const float *logits) {
    token_id best = -1;
    for (token_id i = 0; i < s->vocab; i++)
        if (is_allowed(s, i) && (best < 0 || logits[i] > logits[best])) best = i;
    return best;
}

static token_id best_token(const float *logits, int32_t vocab) {
    float max = max_of(logits, vocab);
    token_id best = 0;
    while (logits[best] != max) best++;
    return best;
}

/* By a race, candidate i with probability weight i / sum. When one arrives depends on its own number and weight
 * alone, so that two distributions which are alike mostly have the same winner: that is why a draft model's
 * proposals come true. */
token_id sampler_draw(const struct sampler *s, const token_id *ids, const float *logits, int32_t n, uint64_t position) {
    uint64_t bits = sampler_bits(s->sampling->seed, position);
    int32_t first = s->loops->race(bits, ids, logits, n, max_of(logits, n), sampler_cold(s));
    return ids ? ids[first] : first;
}

/* Most candidates are far from the best k: the k-th of the maxima of runs is a bound that at least
 * k reach, and what is below it needs no selection. */
static int32_t cut_top_k(struct sampler *s, float *logits, int32_t n, int64_t k) {
    enum { RUN = 64 };
    int32_t runs = n / RUN;
    if (runs > k) {
        float *maxima = s->weights;
        for (int32_t i = 0; i < runs; i++) maxima[i] = s->loops->max(logits + (size_t)i * RUN, RUN);
        struct cut cut = find_cut(maxima, NULL, runs, (double)k, s->bucket);
        n = keep_from(s, logits, logits, n, float_of_key(cut.key));
    }
    return apply_cut(s, logits, n, find_cut(logits, NULL, n, (double)k, s->bucket));
}

/* Likewise: all that are lighter than the n-th part of what may be cut off are cut off for sure. */
static int32_t cut_top_p(struct sampler *s, float *logits, int32_t n, double p) {
    double sum = sum_of(s->weights, n);
    n = keep_from(s, logits, s->weights, n, (float)((1 - p) * sum / n * 0.999));
    return apply_cut(s, logits, n, find_cut(logits, s->weights, n, p * sum, s->bucket));
}

bool sampler_filters(const struct sampling *p) {
    return p->top_k > 0 || p->top_p < 1 || p->min_p > 0;
}

float sampler_cold(const struct sampler *s) {
    return (float)fmin(1 / s->sampling->temperature, 1e38); /* finite: 0 * cold is 0 */
}

int32_t sampler_filter(struct sampler *s, float *logits, int32_t n, double top_p) {
    const struct sampling *p = s->sampling;
    if (p->top_k > 0 && p->top_k < n) n = cut_top_k(s, logits, n, p->top_k);
    /* The best weight is exactly 1 at any temperature. */
    s->loops->weigh(logits, n, max_of(logits, n), sampler_cold(s), s->weights);
    if (top_p < 1) n = cut_top_p(s, logits, n, top_p);
    if (p->min_p > 0) n = keep_from(s, logits, s->weights, n, (float)p->min_p);
    return n;
}

/* The candidates that the filters leave: their ids and logits. Returns how many. */
static int32_t distribution(struct sampler *s, float *logits) {
    int32_t n = 0;
    if (!s->run)
        for (; n < s->vocab; n++) s->ids[n] = n;
    else
        for (int32_t i = 0; i < s->vocab; i++) {
            if (!is_allowed(s, i)) continue;
            logits[n] = logits[i];
            s->ids[n++] = i;
        }
    return sampler_filter(s, logits, n, s->sampling->top_p);
}

/* A draw from the row. */
static token_id draw(struct sampler *s, float *logits, uint64_t position) {
    if (sampler_filters(s->sampling)) {
        int32_t n = distribution(s, logits);
        return sampler_draw(s, s->ids, logits, n, position);
    }
    for (int32_t i = 0; s->run && i < s->vocab; i++)
        if (!is_allowed(s, i)) logits[i] = -INFINITY;
    return sampler_draw(s, NULL, logits, s->vocab, position);
}

static bool has_penalties(const struct sampling *p) {
    return p->penalty_last_n != 0 &&
           (p->repetition_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0);
}

int sampler_new(struct sampler **out, const struct sampling *sampling, int32_t vocab,
                struct error *e) {
    struct sampler *s = calloc(1, sizeof *s);
    bool ok = s;
    size_t n = (size_t)vocab;
    if (ok) {
        s->sampling = sampling;
        s->loops = logit_loops();
        s->vocab = vocab;
        if (has_penalties(sampling)) ok = (s->count = calloc(n, sizeof *s->count));
    }
    if (ok && sampling->temperature > 0 && sampler_filters(sampling))
        ok = (s->ids = malloc(n * sizeof *s->ids)) &&
             (s->weights = malloc(n * sizeof *s->weights)) &&
             (s->bucket = malloc(n * sizeof *s->bucket));
    if (ok && sampling->logprobs >= 0) ok = (s->raw = malloc(n * sizeof *s->raw));
    if (!ok) {
        sampler_free(s);
        return error_set(e, ERR_MEMORY, "no memory to sample from %d tokens", vocab);
    }
    *out = s;
    return 0;
}

void sampler_free(struct sampler *s) {
    if (!s) return;
    free(s->count);
    free(s->ids);
    free(s->weights);
    free(s->bucket);
    free(s->raw);
    free(s->draft);
    free(s->allowed);
    grammar_run_free(s->run);
    free(s);
}

int sampler_constrain(struct sampler *s, struct grammar_run *run, const token_id *ends,
                      size_t n_ends, struct error *e) {
    s->run = run;
    s->ends = ends;
    s->n_ends = n_ends;
    s->allowed = calloc(((size_t)s->vocab + 63) / 64, sizeof *s->allowed);
    return s->allowed ? 0 : error_set(e, ERR_MEMORY, "no memory to follow a grammar");
}

bool sampler_must_end(struct sampler *s, const token_id *history, size_t n_history,
                      uint64_t position) {
    return s->run &&
           grammar_run_must_end(s->run, history + (n_history - (size_t)position), (size_t)position);
}

/* Penalties, bias, and what a grammar allows. */
static int prepare(struct sampler *s, float *logits, const token_id *history, size_t n_history,
                   uint64_t position, struct error *e) {
    size_t n_prompt = n_history > position ? n_history - (size_t)position : 0;
    if (s->count) apply_penalties(s, logits, history, n_history, n_prompt);
    apply_bias(s->sampling, logits);
    return s->run ? ask_grammar(s, history + n_prompt, n_history - n_prompt, e) : 0;
}

/* The choice from a row that is prepared. */
static token_id choose(struct sampler *s, float *logits, uint64_t position) {
    if (s->sampling->temperature > 0) return draw(s, logits, position);
    return s->run ? best_allowed(s, logits) : best_token(logits, s->vocab);
}

int sampler_pick(struct sampler *s, float *logits, const token_id *history, size_t n_history,
                 uint64_t position, struct token_report *report, struct error *e) {
    int err = check_finite(logits, s->vocab, e);
    if (s->whole_rows > 0) s->whole_rows--;
    if (err) return err;
    if (s->raw) memcpy(s->raw, logits, (size_t)s->vocab * sizeof *logits);
    err = prepare(s, logits, history, n_history, position, e);
    if (err) return err;
    memset(report, 0, sizeof *report);
    report->id = choose(s, logits, position);
    if (s->raw) fill_report(s->raw, s->vocab, report->id, s->sampling->logprobs, report);
    return 0;
}

/* A draft model's logits as a row of this vocabulary. */
static int take_draft_row(struct sampler *s, const float *logits, int32_t n, struct error *e) {
    size_t bytes = (size_t)s->vocab * sizeof *s->draft;
    if (!s->draft && !(s->draft = malloc(bytes)))
        return error_set(e, ERR_MEMORY, "no memory to sample from a draft model");
    memcpy(s->draft, logits, (size_t)n * sizeof *logits);
    for (int32_t i = n; i < s->vocab; i++) s->draft[i] = (float)-LOGIT_BOUND;
    return check_finite(s->draft, s->vocab, e);
}

int sampler_propose(struct sampler *s, const float *logits, int32_t n_logits, const token_id *history,
                    size_t n_history, size_t n_open, uint64_t position, token_id *out, struct error *e) {
    int err = take_draft_row(s, logits, n_logits, e);
    if (!err) err = prepare(s, s->draft, history, n_history, position, e);
    if (s->count) sampler_slide_window(s, history, n_history - n_open, n_history - (size_t)position);
    if (!err) *out = choose(s, s->draft, position);
    return err;
}
