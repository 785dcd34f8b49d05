/* train/epoch.c: which example is in which micro-batch of an epoch. Everything follows from the
 * view and the epoch's number, so a job that goes on needs to remember nothing but its place. */
#include "base/hash.h"
#include "train/dataset_private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct dataset_epoch {
    struct dataset_view view;
    int64_t n_bins, bins_per_batch;
    uint32_t *examples; /* by bin, in the order they were dealt */
    uint32_t *begin;    /* [n_bins + 1]: where a bin's examples begin */
};

/* --- chance ----------------------------------------------------------------------------------- */

/* Number `counter` of the stream that seed and key name: splitmix64's output function. */
static uint64_t random_at(uint64_t seed, uint64_t key, uint64_t counter) {
    uint64_t x = hash_mix(seed, key) + (counter + 1) * 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static void shuffle(uint32_t *order, int64_t n, uint64_t seed, uint64_t key) {
    for (int64_t i = n - 1; i > 0; i--) {
        unsigned __int128 wide =
            (unsigned __int128)random_at(seed, key, (uint64_t)i) * (uint64_t)(i + 1);
        int64_t j = (int64_t)(wide >> 64);
        uint32_t swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
}

/* --- which examples --------------------------------------------------------------------------- */

static int64_t count_held_out(int64_t n, double fraction) {
    int64_t k = llround(fraction * (double)n);
    if (fraction <= 0) return 0;
    if (fraction >= 1) return n;
    if (k > n - 1) k = n - 1;
    return k < 1 && n > 1 ? 1 : k;
}

/* order becomes the view's examples in file order; returns how many. */
static int64_t choose(const struct dataset_view *view, uint32_t *order, int64_t n) {
    static const uint64_t eval_key = UINT64_MAX; /* no epoch has this number */
    int64_t held_out = count_held_out(n, view->eval_fraction), kept = 0;
    uint8_t *out = calloc((size_t)n, 1);
    if (!out) return -1;
    for (int64_t i = 0; i < n; i++) order[i] = (uint32_t)i;
    shuffle(order, n, view->seed, eval_key);
    for (int64_t i = 0; i < held_out; i++) out[order[i]] = 1;
    for (int64_t i = 0; i < n; i++)
        if (out[i] == view->eval) order[kept++] = (uint32_t)i;
    free(out);
    return kept;
}

/* --- dealing into bins ------------------------------------------------------------------------ */

/* First fit among the newest bins that have room: looking at all would cost more than it saves. */
enum { OPEN_BINS = 128 };

struct open_bins {
    int n;
    uint32_t bin[OPEN_BINS];
    int32_t left[OPEN_BINS];
};

static void close_bin(struct open_bins *open, int i) {
    open->n--;
    memmove(open->bin + i, open->bin + i + 1, (size_t)(open->n - i) * sizeof *open->bin);
    memmove(open->left + i, open->left + i + 1, (size_t)(open->n - i) * sizeof *open->left);
}

static uint32_t deal(struct open_bins *open, int32_t rows, int32_t bin_rows, int64_t *n_bins) {
    int i = 0, fullest = 0;
    while (i < open->n && open->left[i] < rows) i++;
    if (i == open->n) {
        for (int k = 1; k < open->n; k++)
            if (open->left[k] < open->left[fullest]) fullest = k;
        if (open->n == OPEN_BINS) close_bin(open, fullest);
        i = open->n++;
        open->bin[i] = (uint32_t)(*n_bins)++;
        open->left[i] = bin_rows;
    }
    uint32_t bin = open->bin[i];
    open->left[i] -= rows;
    if (open->left[i] == 0) close_bin(open, i);
    return bin;
}

/* bin_of[i]: the bin of order[i]. Returns how many bins there are. */
static int64_t deal_all(const struct dataset_view *view, const uint32_t *order, int64_t n,
                        uint32_t *bin_of) {
    struct open_bins open = {0};
    int64_t n_bins = 0;
    for (int64_t i = 0; i < n; i++) {
        int32_t tokens;
        dataset_example(view->data, order[i], &tokens);
        bin_of[i] =
            view->packing ? deal(&open, tokens - 1, view->seq_len, &n_bins) : (uint32_t)n_bins++;
    }
    return n_bins;
}

/* Puts the examples of a bin side by side, in the order they were dealt. */
static int gather(struct dataset_epoch *ep, const uint32_t *order, const uint32_t *bin_of,
                  int64_t n) {
    ep->examples = malloc((size_t)(n + 1) * sizeof *ep->examples);
    ep->begin = calloc((size_t)ep->n_bins + 2, sizeof *ep->begin);
    if (!ep->examples || !ep->begin) return -1;
    uint32_t *next = ep->begin + 1; /* of a bin: where its next example goes; in the end, its end */
    for (int64_t i = 0; i < n; i++) next[bin_of[i] + 1]++;
    for (int64_t b = 1; b <= ep->n_bins; b++) next[b] += next[b - 1];
    for (int64_t i = 0; i < n; i++) ep->examples[next[bin_of[i]]++] = order[i];
    return 0;
}

static int fill_epoch(struct dataset_epoch *ep, int64_t epoch, struct error *e) {
    const struct dataset_view *view = &ep->view;
    int64_t n = view->data->cache.footer.n_examples;
    uint32_t *order = malloc((size_t)n * sizeof *order),
             *bin_of = malloc((size_t)n * sizeof *order);
    int64_t kept = order && bin_of ? choose(view, order, n) : -1;
    int err = 0;
    if (kept > 0) {
        if (!view->eval) shuffle(order, kept, view->seed, (uint64_t)epoch);
        ep->n_bins = deal_all(view, order, kept, bin_of);
    }
    if (kept < 0 || gather(ep, order, bin_of, kept) != 0)
        err = error_set(e, ERR_MEMORY, "no memory for the order of %lld examples", (long long)n);
    else if (kept == 0 && !view->eval)
        err = error_set(e, ERR_PARAMS, "eval_fraction leaves no examples to train on");
    free(order);
    free(bin_of);
    return err;
}

static int check_view(const struct dataset_view *view, struct error *e) {
    if (view->seq_len < view->data->seq_len || view->rows < view->seq_len)
        return error_set(e, ERR_PARAMS,
                         "micro-batches of %d rows in bins of %d cannot hold examples of %d",
                         view->rows, view->seq_len, view->data->seq_len);
    return 0;
}

int dataset_epoch_new(struct dataset_epoch **out, const struct dataset_view *view, int64_t epoch,
                      struct error *e) {
    int err = check_view(view, e);
    if (err) return err;
    struct dataset_epoch *ep = calloc(1, sizeof *ep);
    if (!ep) return error_set(e, ERR_MEMORY, "no memory for an epoch");
    ep->view = *view;
    ep->bins_per_batch = view->rows / view->seq_len;
    err = fill_epoch(ep, epoch, e);
    if (err) dataset_epoch_free(ep);
    else *out = ep;
    return err;
}

void dataset_epoch_free(struct dataset_epoch *ep) {
    if (!ep) return;
    free(ep->examples);
    free(ep->begin);
    free(ep);
}

/* --- micro-batches ---------------------------------------------------------------------------- */

int64_t dataset_epoch_batches(const struct dataset_epoch *ep) {
    return (ep->n_bins + ep->bins_per_batch - 1) / ep->bins_per_batch;
}

static void add_rows(struct dataset_rows *out, const token_id *marked, int32_t n_tokens) {
    int32_t first = out->n_rows, rows = n_tokens - 1;
    for (int32_t t = 0; t < rows; t++) {
        int32_t row = first + t;
        bool learnt = marked[t + 1] & TOKEN_TRAINED;
        out->ids[row] = token_of(marked[t]);
        out->labels[row] = learnt ? token_of(marked[t + 1]) : -1;
        out->pos[row] = t;
        out->first[row] = first;
        out->len[row] = rows;
        out->n_trained += learnt;
    }
    out->n_rows += rows;
}

void dataset_epoch_rows(const struct dataset_epoch *ep, int64_t i, struct dataset_rows *out) {
    int64_t bin = i * ep->bins_per_batch, end = bin + ep->bins_per_batch;
    if (end > ep->n_bins) end = ep->n_bins;
    out->n_rows = out->n_trained = 0;
    for (uint32_t k = ep->begin[bin]; k < ep->begin[end]; k++) {
        int32_t n;
        const token_id *marked = dataset_example(ep->view.data, ep->examples[k], &n);
        add_rows(out, marked, n);
    }
}
