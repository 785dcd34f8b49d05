/* bench_kernels [f32] [attention | type…]: attention, memory bandwidth, and linear against it. Quantised
 * types multiply activations in int8 and bf16 in bf16, and attention is in bf16, as serving does; with f32
 * they are not.
 *
 * Every figure is the best of several passes, since other work on the machine only ever slows one
 * down. A pass runs the linears of some layers of a model, enough weights (96 MB) that none is
 * still in a cache when its turn comes again; with 64 rows and more one layer is enough. */
#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t words __attribute__((vector_size(16)));
enum { LINE = 4 }; /* words in a cache line */

enum { MB = 1000 * 1000, STREAMS_MAX = 16, MATRICES_MAX = 4096 };
static const int32_t row_counts[] = {1, 2, 4, 8, 16, 64, 512};
enum { N_ROW_COUNTS = 7, ROWS_MAX = 512 };

static void check(int code, const struct error *e) {
    if (code == 0) return;
    fprintf(stderr, "bench_kernels: %s\n", e->message);
    exit(EXIT_FAILED);
}

static bool narrow_activations = true;
static struct core_set all_cores; /* asked at the start: an open team has pinned this thread */

static struct kctx *open_team(int n_cores) {
    struct cpu_options options = {.cores = all_cores};
    struct kctx *c;
    struct error e;
    if (options.cores.n > n_cores) options.cores.n = n_cores;
    check(kernels_cpu_open(&c, 0, &options, &e), &e);
    c->ops->narrow_activations(c, narrow_activations);
    return c;
}

/* --- bandwidth -------------------------------------------------------------------------------- */

struct read_job {
    const words *from;
    size_t n; /* lines */
    int streams;
    words sink;
};

static void read_slice(void *arg, int member, int n_members) {
    struct read_job *job = arg;
    size_t run = job->n / (size_t)(job->streams * n_members) * LINE;
    const words *from = job->from + (size_t)member * run * (size_t)job->streams;
    words a = {0}, b = a, c = a, d = a;
    for (size_t i = 0; i < run; i += LINE)
        for (int s = 0; s < job->streams; s++) {
            const words *line = from + (size_t)s * run + i;
            a += line[0], b += line[1], c += line[2], d += line[3];
        }
    a += b + c + d;
    if (a[0] == 1) job->sink = a; /* the sum is used, so it is computed */
}

static void print_bandwidth(int n_cores) {
    struct kctx *c = open_team(n_cores);
    struct error e;
    dev_addr buffer;
    enum { SIZE = 256 * MB };
    check(c->ops->mem_alloc(c, MEM_BUFFERS, SIZE, &buffer, &e), &e);
    memset(kernels_cpu_pointer(c, buffer), 1, SIZE);
    printf("read bandwidth, %d core%s, by streams a core:", n_cores, n_cores > 1 ? "s" : "");
    for (int streams = 1; streams <= STREAMS_MAX; streams *= 2) {
        struct read_job job = {kernels_cpu_pointer(c, buffer), SIZE / 64, streams, {0}};
        int64_t best = INT64_MAX;
        for (int i = 0; i < 5; i++) {
            int64_t start = clock_ns();
            team_run(kernels_cpu_team(c), read_slice, &job);
            int64_t took = clock_ns() - start;
            if (took < best) best = took;
        }
        printf("  %d: %.1f GB/s", streams, (double)SIZE / (double)best);
    }
    printf("\n");
    c->ops->close(c);
}

/* --- linear ----------------------------------------------------------------------------------- */

struct shape_set {
    const char *name;
    int32_t hidden, ffn, q, kv;
};

struct layers {
    int n; /* layers of 7 matrices: q k v o gate up down */
    struct weight w[MATRICES_MAX];
    size_t layer_bytes;
    double layer_flops; /* a row */
};

static struct weight matrix_new(struct kctx *c, enum dtype type, int32_t rows, int32_t cols,
                                struct layers *l) {
    struct weight w;
    struct error e;
    check(c->ops->weight_new(c, type, rows, cols, &w, &e), &e);
    uint8_t *row = calloc(1, dtype_row_bytes(type, cols));
    for (size_t i = 0; i < dtype_row_bytes(type, cols); i++) row[i] = (uint8_t)(i * 37 % 60);
    c->ops->weight_put(c, &w, 0, rows, row, 0);
    check(c->ops->wait(c, &e), &e);
    free(row);
    l->layer_bytes += w.bytes;
    l->layer_flops += 2.0 * rows * cols;
    return w;
}

static void layers_new(struct kctx *c, enum dtype type, const struct shape_set *s,
                       struct layers *l) {
    const int32_t shapes[7][2] = {{s->q, s->hidden},   {s->kv, s->hidden},  {s->kv, s->hidden},
                                  {s->hidden, s->q},   {s->ffn, s->hidden}, {s->ffn, s->hidden},
                                  {s->hidden, s->ffn}};
    l->n = 0;
    do {
        l->layer_bytes = 0;
        l->layer_flops = 0;
        for (int i = 0; i < 7; i++)
            l->w[7 * l->n + i] = matrix_new(c, type, shapes[i][0], shapes[i][1], l);
        l->n++;
    } while ((size_t)l->n * l->layer_bytes < 96 * MB && 7 * (l->n + 1) <= MATRICES_MAX);
}

static void layers_free(struct kctx *c, struct layers *l) {
    for (int i = 0; i < 7 * l->n; i++) c->ops->weight_free(c, &l->w[i]);
}

static void layer_run(struct kctx *c, const struct weight *w, dev_addr x, const dev_addr *y,
                      int32_t T) {
    const struct linear_job qkv[3] = {{&w[0], 0, y[0]}, {&w[1], 0, y[1]}, {&w[2], 0, y[2]}};
    const struct linear_job o = {&w[3], 0, y[0]};
    const struct linear_job gate_up[2] = {{&w[4], 0, y[0]}, {&w[5], 0, y[1]}};
    const struct linear_job down = {&w[6], 0, y[0]};
    c->ops->linear(c, qkv, 3, x, T);
    c->ops->linear(c, &o, 1, x, T);
    c->ops->linear(c, gate_up, 2, x, T);
    c->ops->linear(c, &down, 1, x, T);
}

/* Nanoseconds of a pass of n layers. */
static double best_pass(struct kctx *c, const struct layers *l, int n, dev_addr x,
                        const dev_addr *y, int32_t T) {
    int64_t best = INT64_MAX, begin = clock_ns();
    for (int pass = 0; pass < 3 || clock_ns() - begin < 100 * MB; pass++) {
        int64_t start = clock_ns();
        for (int i = 0; i < n; i++) layer_run(c, l->w + 7 * i, x, y, T);
        int64_t took = clock_ns() - start;
        if (took < best) best = took;
        if (clock_ns() - begin > 1000 * MB) break;
    }
    return (double)best;
}

static void print_linear(int n_cores, enum dtype type, const struct shape_set *s) {
    static struct layers l;
    int32_t widest = s->ffn > s->q ? s->ffn : s->q;
    dev_addr x, y[3];
    struct error e;
    if (s->hidden % dtype_info(type)->block != 0 || s->ffn % dtype_info(type)->block != 0) return;
    struct kctx *c = open_team(n_cores);
    layers_new(c, type, s, &l);
    size_t bytes = (size_t)ROWS_MAX * (size_t)widest * 4;
    check(c->ops->mem_alloc(c, MEM_ACTIVATIONS, bytes, &x, &e), &e);
    for (int i = 0; i < 3; i++) check(c->ops->mem_alloc(c, MEM_ACTIVATIONS, bytes, &y[i], &e), &e);
    printf("%-5s %-12s %d", dtype_info(type)->name, s->name, n_cores);
    for (int i = 0; i < N_ROW_COUNTS; i++) {
        int32_t T = row_counts[i];
        int n = T >= 64 ? 1 : l.n;
        double ns = best_pass(c, &l, n, x, y, T);
        printf("  %7.2f %7.1f", (double)l.layer_bytes * n / ns, l.layer_flops * n * T / ns);
        fflush(stdout);
    }
    printf("\n");
    layers_free(c, &l);
    c->ops->close(c);
}

/* --- attention -------------------------------------------------------------------------------- */

/* rows queries at the end of length positions of one sequence, heads of 64. */
static void print_attention(int n_cores, enum dtype type, int32_t H, int32_t K, int32_t length,
                            int32_t n_rows) {
    enum { E = 64, BLOCK = 32 };
    int32_t kv_of_head[64], pos[ROWS_MAX], seq[ROWS_MAX] = {0}, blocks[256];
    struct kctx *c = open_team(n_cores);
    struct error e;
    dev_addr a[7];
    struct kv_view kv = {type, length / BLOCK, BLOCK, K, E, 0, 0};
    size_t cache = dtype_row_bytes(type, (int64_t)length * K * E);
    size_t rows = (size_t)(n_rows * H * E) * 4;
    const size_t sizes[7] = {cache, cache, rows, rows, sizeof pos, sizeof seq, sizeof blocks};
    for (int i = 0; i < 7; i++) check(c->ops->mem_alloc(c, MEM_KV, sizes[i], &a[i], &e), &e);
    for (int i = 0; i < 2; i++) { /* small numbers in each type, none of them special */
        uint8_t *bytes = kernels_cpu_pointer(c, a[i]);
        for (size_t j = 0; j < cache; j++) bytes[j] = (uint8_t)(j * 7919 >> 3 & 63);
    }
    float *q = kernels_cpu_pointer(c, a[3]);
    for (int32_t i = 0; i < n_rows * H * E; i++) q[i] = (float)((uint32_t)i * 7919u % 1021) / 512 - 1;
    for (int32_t h = 0; h < H; h++) kv_of_head[h] = h / (H / K);
    for (int32_t t = 0; t < n_rows; t++) pos[t] = length - n_rows + t;
    for (int32_t b = 0; b < kv.n_blocks; b++) blocks[b] = b * 7 % kv.n_blocks;
    c->ops->upload(c, a[4], pos, sizeof pos);
    c->ops->upload(c, a[5], seq, sizeof seq);
    c->ops->upload(c, a[6], blocks, sizeof blocks);
    kv.k = a[0], kv.v = a[1];
    struct step_rows step = {n_rows, 1, kv.n_blocks, a[4], a[5], a[6]};
    int64_t best = INT64_MAX, begin = clock_ns();
    while (clock_ns() - begin < 200 * MB) {
        int64_t start = clock_ns();
        c->ops->attention(c, a[2], H * E, a[3], H, kv_of_head, &kv, &step, 0.125f, 0);
        int64_t took = clock_ns() - start;
        if (took < best) best = took;
    }
    double pairs = (double)n_rows * (length - (n_rows - 1) / 2.0) * H;
    printf("%-5s %2d/%d heads %d core%s  %3d rows over %4d positions:", dtype_info(type)->name, H, K,
           n_cores, n_cores > 1 ? "s" : " ", n_rows, length);
    printf(" %8.1f us %7.2f GB/s %6.1f GFLOP/s\n", (double)best / 1e3,
           2.0 * (double)cache / (double)best, pairs * 4 * E / (double)best);
    c->ops->close(c);
}

static void print_attentions(void) {
    static const int32_t heads[2][2] = {{9, 3}, {32, 4}}, rows[2] = {1, ROWS_MAX};
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_Q8_0};
    printf("\nattention of one layer\n");
    for (int type = 0; type < 4; type++)
        for (int n = 1; n <= 2; n++)
            for (int i = 0; i < 8; i++)
                print_attention(n, types[type], heads[i / 4][0], heads[i / 4][1],
                                i / 2 % 2 ? 4096 + ROWS_MAX : ROWS_MAX, rows[i % 2]);
}

int main(int argc, char **argv) {
    static const struct shape_set sets[] = {{"smollm2-135m", 576, 1536, 576, 192},
                                            {"llama-1.1b", 2048, 5632, 2048, 256}};
    core_set_allowed(&all_cores);
    if (argc > 1 && strcmp(argv[1], "f32") == 0) narrow_activations = false, argc--, argv++;
    printf("level %s\n", kernels_cpu_level());
    bool attention_alone = argc > 1 && strcmp(argv[1], "attention") == 0;
    if (argc < 2 || attention_alone) print_attentions();
    if (attention_alone) return 0;
    for (int n = 1; n <= 2; n++) print_bandwidth(n);
    printf("\nlinear, GB/s of weights and GFLOP/s\n%-5s %-12s cores", "type", "shapes");
    for (int i = 0; i < N_ROW_COUNTS; i++) printf("       T=%-3d      ", row_counts[i]);
    printf("\n");
    for (int type = 0; type < DTYPE_COUNT; type++) {
        bool wanted = argc < 2;
        for (int i = 1; i < argc; i++) wanted |= dtype_from_name(argv[i]) == type;
        for (int s = 0; s < 2 && wanted; s++)
            for (int n = 1; n <= 2; n++) print_linear(n, (enum dtype)type, &sets[s]);
    }
    return 0;
}
