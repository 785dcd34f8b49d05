/* The products of a decoder's layers: a decode step, a prompt, a training step. */
#include "bench/gpu_bench.h"

#include <cstdio>
#include <cstdlib>
#include <vector>

/* The layers of an 8 B llama, enough of them that no cache holds what comes again. */
#ifdef TPD_CUSIM
enum { HIDDEN = 64, KV = 32, FFN = 64, LAYERS = 1, PROMPT = 33 };
static const enum dtype types[] = {DTYPE_BF16, DTYPE_Q8_0};
#else
static const enum dtype types[] = {DTYPE_BF16, DTYPE_Q8_0, DTYPE_Q4_0, DTYPE_Q4_K};
enum { HIDDEN = 4096, KV = 1024, FFN = 14336, LAYERS = 4, PROMPT = 2048 };
#endif
enum { Q_PROJ, K_PROJ, V_PROJ, O_PROJ, GATE, UP, DOWN, MATRICES };
static const int32_t shapes[MATRICES][2] = {{HIDDEN, HIDDEN}, {KV, HIDDEN},  {KV, HIDDEN}, {HIDDEN, HIDDEN},
                                            {FFN, HIDDEN},    {FFN, HIDDEN}, {HIDDEN, FFN}};

struct bed {
    struct kctx *c;
    struct weight w[LAYERS][MATRICES];
    dev_addr x, dx, y[MATRICES], dw; /* x, dx and y [PROMPT, FFN], dw [FFN, HIDDEN], f32 */
};

/* Small values in every type: the exponents of random bytes would make infinities. */
static void fill(struct bed *b, const struct weight *w) {
    size_t stride = dtype_row_bytes(w->type, w->cols);
    std::vector<uint8_t> row(stride);
    for (size_t i = 0; i < stride; i++) row[i] = (uint8_t)(i * 37 % 64);
    b->c->ops->weight_put(b->c, w, 0, w->rows, row.data(), 0);
}

/* Random x: a product of zeros would take less power and so less time. */
static void fill_input(struct bed *b) {
    std::vector<float> row(FFN);
    uint32_t state = 1;
    for (size_t t = 0; t < PROMPT; t++) {
        for (float &v : row) {
            state = state * 1664525u + 1013904223u;
            v = (float)(int32_t)state * 0x1p-31f;
        }
        b->c->ops->upload(b->c, b->x + t * FFN * 4, row.data(), FFN * 4);
    }
}

static double open_weights(struct bed *b, enum dtype type) {
    double bytes = 0;
    struct error e;
    for (auto &layer : b->w)
        for (int m = 0; m < MATRICES; m++) {
            bench_check(b->c->ops->weight_new(b->c, type, shapes[m][0], shapes[m][1], &layer[m], &e), &e);
            fill(b, &layer[m]);
            bytes += (double)layer[m].bytes;
        }
    return bytes;
}

static void close_weights(struct bed *b) {
    for (auto &layer : b->w)
        for (auto &w : layer) b->c->ops->weight_free(b->c, &w);
}

static double weights_of_all() {
    double n = 0;
    for (auto &shape : shapes) n += (double)shape[0] * shape[1];
    return n * LAYERS;
}

static void finish(struct bed *b) {
    struct error e;
    bench_check(b->c->ops->wait(b->c, &e), &e);
}

static void call_linear(struct bed *b, int layer, int first, int last, int32_t T) {
    struct linear_job jobs[3];
    for (int m = first; m <= last; m++) jobs[m - first] = {&b->w[layer][m], 0, b->y[m]};
    b->c->ops->linear(b->c, jobs, last - first + 1, b->x, T);
}

static void forward(struct bed *b, int32_t T) {
    for (int layer = 0; layer < LAYERS; layer++) {
        call_linear(b, layer, Q_PROJ, V_PROJ, T);
        call_linear(b, layer, O_PROJ, O_PROJ, T);
        call_linear(b, layer, GATE, UP, T);
        call_linear(b, layer, DOWN, DOWN, T);
    }
}

/* Gradients of inputs and of weights. */
static void backward(struct bed *b, int32_t T) {
    const struct kernels *k = b->c->ops;
    for (int layer = 0; layer < LAYERS; layer++)
        for (int m = 0; m < MATRICES; m++) {
            struct linear_job job = {&b->w[layer][m], 0, b->y[m]};
            k->linear_dx(b->c, &job, 1, b->dx, T, false);
            k->matmul(b->c, b->dw, shapes[m][0], shapes[m][1], T, b->y[m], true, b->x, false, 1, 0);
        }
}

static void print_flops(const char *what, const char *type, double flop, double seconds, double best) {
    printf("%-8s %-5s %6d rows  %10.2f TFLOP/s, %5.1f %% of the large product\n", what, type, PROMPT,
           flop / seconds / 1e12, 100 * flop / seconds / best);
}

static void bench_type(struct bed *b, enum dtype type, double copy_rate, double product_rate) {
    const char *name = dtype_info(type)->name;
    double bytes = open_weights(b, type), flop = 2 * weights_of_all();
    for (int32_t T : {1, 8, 32}) {
        double seconds = bench_best([&] { forward(b, T); finish(b); });
        printf("decode   %-5s %6d rows  %10.1f GB/s of weights, %5.1f %% of the copy\n", name, T,
               bytes / seconds / 1e9, 100 * bytes / seconds / copy_rate);
    }
    double seconds = bench_best([&] { forward(b, PROMPT); finish(b); });
    print_flops("prefill", name, flop * PROMPT, seconds, product_rate);
    if (b->c->ops->linear_dx && b->c->ops->matmul) {
        if (b->c->ops->bf16_products) b->c->ops->bf16_products(b->c, true);
        seconds = bench_best([&] { forward(b, PROMPT); backward(b, PROMPT); finish(b); });
        print_flops("training", name, 3 * flop * PROMPT, seconds, product_rate);
        if (b->c->ops->bf16_products) b->c->ops->bf16_products(b->c, false);
    } else printf("training %-5s the operations are not in this library\n", name);
    close_weights(b);
}

void bench_layers(int device, double copy_rate, double product_rate) {
    struct bed b = {};
    struct error e;
    struct cuda_options options = {};
    options.device = device;
    bench_check(kernels_cuda_open(&b.c, 0, &options, &e), &e);
    size_t rows = (size_t)PROMPT * FFN * 4;
    bench_check(b.c->ops->mem_alloc(b.c, MEM_BUFFERS, rows, &b.x, &e), &e);
    bench_check(b.c->ops->mem_alloc(b.c, MEM_BUFFERS, rows, &b.dx, &e), &e);
    for (dev_addr &y : b.y) bench_check(b.c->ops->mem_alloc(b.c, MEM_BUFFERS, rows, &y, &e), &e);
    bench_check(b.c->ops->mem_alloc(b.c, MEM_BUFFERS, (size_t)FFN * HIDDEN * 4, &b.dw, &e), &e);
    fill_input(&b);
    for (enum dtype type : types) bench_type(&b, type, copy_rate, product_rate);
    b.c->ops->close(b.c);
}
