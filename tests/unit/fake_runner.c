#include "tests/unit/fake_runner.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint32_t mix(uint32_t h, uint32_t x) {
    h = (h ^ x) * 0x9E3779B1u;
    return h ^ h >> 15;
}

static uint32_t hash_of(const token_id *tokens, size_t n) {
    uint32_t h = 17;
    for (size_t i = 0; i < n; i++) h = mix(h, (uint32_t)tokens[i]);
    return h;
}

token_id fake_next(const token_id *tokens, size_t n) {
    if (tokens[0] == FAKE_ENDS && n == 12) return FAKE_EOS;
    return (token_id)(10 + hash_of(tokens, n) % (FAKE_VOCAB - 10));
}

static void fill_logits(const token_id *tokens, size_t n, float *logits) {
    uint32_t h = hash_of(tokens, n);
    for (uint32_t v = 0; v < FAKE_VOCAB; v++) logits[v] = (float)(mix(h, v) >> 8) * 0x1p-22f;
    logits[fake_next(tokens, n)] = 6;
    if (tokens[n - 1] == FAKE_NAN) logits[5] = NAN;
}

static void *run_driver(void *arg) {
    struct fake_runner *self = arg;
    self->driver(self->driver_arg);
    return NULL;
}

static int fake_start(struct runner *r, void (*driver)(void *arg), void *arg, struct error *e) {
    struct fake_runner *self = (struct fake_runner *)r;
    self->driver = driver;
    self->driver_arg = arg;
    if (pthread_create(&self->thread, NULL, run_driver, self) != 0)
        return error_set(e, ERR_INTERNAL, "no thread");
    self->running = true;
    return 0;
}

static size_t fake_kv_block_bytes(const struct runner *r, int32_t block_size, enum dtype kv_type) {
    (void)r;
    (void)block_size;
    (void)kv_type;
    return FAKE_BLOCK_BYTES;
}

static size_t fake_memory_left(struct runner *r) {
    return ((struct fake_runner *)r)->memory_left;
}

static int fake_cache_room(struct runner *r, const struct shard_options *options, double fraction,
                           size_t *out, struct error *e) {
    (void)options;
    (void)e;
    *out = (size_t)(fraction * (double)((struct fake_runner *)r)->memory_left);
    return 0;
}

static int fake_load(struct runner *r, const struct shard_options *options, struct error *e) {
    struct fake_runner *self = (struct fake_runner *)r;
    while (atomic_load(&self->closed)) {
        if (atomic_load(options->abandon)) return error_set(e, ERR_CANCELLED, "given up");
        usleep(200);
    }
    atomic_fetch_add(&self->loads, 1);
    if (self->load_fails) return error_set(e, ERR_BAD_FILE, "the weights are not there");
    self->options = *options;
    size_t n = (size_t)options->kv_blocks * (size_t)options->block_size;
    self->cache = calloc(n, sizeof *self->cache);
    self->draft_cache = calloc(n, sizeof *self->draft_cache);
    return 0;
}

static int32_t *place(const struct fake_runner *self, int32_t *cache, const struct step *step, int32_t seq,
                      int32_t pos) {
    int32_t size = self->options.block_size;
    int32_t block = step->blocks[seq * self->options.max_blocks + pos / size];
    return &cache[block * size + pos % size];
}

static int32_t *cache_at(struct fake_runner *self, const struct step *step, int32_t seq,
                         int32_t pos) {
    return place(self, self->cache, step, seq, pos);
}

static int fake_forward(struct runner *r, const struct step *step, struct error *e) {
    struct fake_runner *self = (struct fake_runner *)r;
    while (atomic_load(&self->closed)) usleep(200);
    atomic_fetch_add(&self->steps, 1);
    atomic_fetch_add(&self->rows, step->n_rows);
    if (step->n_out > atomic_load(&self->largest_out))
        atomic_store(&self->largest_out, step->n_out);
    for (int32_t i = 0; i < step->n_rows; i++) {
        *cache_at(self, step, step->seq[i], step->pos[i]) = step->ids[i];
        if (step->ids[i] == FAKE_BREAKS)
            return error_set(e, ERR_DEVICE, "the device broke at position %d", step->pos[i]);
    }
    for (int32_t o = 0; o < step->n_out; o++) {
        token_id tokens[FAKE_CTX];
        int32_t row = step->out_rows[o], n = step->pos[row] + 1;
        for (int32_t p = 0; p < n; p++) tokens[p] = *cache_at(self, step, step->seq[row], p);
        fill_logits(tokens, (size_t)n, step->logits + (size_t)o * FAKE_VOCAB);
    }
    return 0;
}

/* What is far enough behind a row is no guess, and the model has computed it: both hold the same. */
static int fake_forward_draft(struct runner *r, const struct step *step, struct error *e) {
    struct fake_runner *self = (struct fake_runner *)r;
    atomic_fetch_add(&self->draft_steps, 1);
    if (atomic_load(&self->draft_breaks)) return error_set(e, ERR_DEVICE, "the draft model broke");
    for (int32_t i = 0; i < step->n_rows; i++)
        *place(self, self->draft_cache, step, step->seq[i], step->pos[i]) = step->ids[i];
    for (int32_t o = 0; o < step->n_out; o++) {
        token_id tokens[FAKE_CTX];
        int32_t row = step->out_rows[o], n = step->pos[row] + 1;
        for (int32_t p = 0; p < n; p++) {
            tokens[p] = *place(self, self->draft_cache, step, step->seq[row], p);
            if (p + 9 < n && tokens[p] != *cache_at(self, step, step->seq[row], p))
                atomic_fetch_add(&self->draft_faults, 1);
        }
        float *logits = step->logits + (size_t)o * FAKE_VOCAB;
        fill_logits(tokens, (size_t)n, logits);
        if (n % FAKE_DRAFT_ERRS == 0) logits[9] = 9;
    }
    return 0;
}

static void fake_unload(struct runner *r) {
    struct fake_runner *self = (struct fake_runner *)r;
    atomic_fetch_add(&self->unloads, 1);
    free(self->cache);
    free(self->draft_cache);
    self->cache = self->draft_cache = NULL;
}

static struct ranks *fake_ranks(struct runner *r) {
    (void)r;
    return NULL;
}

static void fake_memory(struct runner *r, int rank, struct mem_use *use, const char **name) {
    (void)r;
    (void)rank;
    *use = (struct mem_use){.total = 1 << 30, .free = 1 << 29};
    *name = "fake";
}

static void fake_join(struct runner *r) {
    struct fake_runner *self = (struct fake_runner *)r;
    if (self->running) pthread_join(self->thread, NULL);
    if (self->joined) atomic_fetch_add(self->joined, 1);
    free(self);
}

static const struct runner_ops fake_ops = {
    .start = fake_start,
    .kv_block_bytes = fake_kv_block_bytes,
    .memory_left = fake_memory_left,
    .cache_room = fake_cache_room,
    .load = fake_load,
    .forward = fake_forward,
    .forward_draft = fake_forward_draft,
    .unload = fake_unload,
    .ranks = fake_ranks,
    .memory = fake_memory,
    .join = fake_join,
};

struct fake_runner *fake_runner_new(void) {
    struct fake_runner *self = calloc(1, sizeof *self);
    if (!self) abort();
    self->config = (struct model_config){.vocab = FAKE_VOCAB,
                                         .max_len = FAKE_CTX,
                                         .hidden = 8,
                                         .ffn = 8,
                                         .bos_id = 0,
                                         .n_eos = 1,
                                         .eos_ids = {FAKE_EOS}};
    self->base = (struct runner){.ops = &fake_ops, .config = &self->config};
    self->memory_left = (size_t)1 << 30;
    return self;
}

void fake_runner_draft(struct fake_runner *self) {
    self->draft_config = self->config;
    self->base.draft_config = &self->draft_config;
    self->base.draft_cost = 0.1;
}
