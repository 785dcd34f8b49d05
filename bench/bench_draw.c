/* bench_draw [VOCABULARY]: what drawing a token takes, by what is asked for, from rows that are flat, like those of a
 * small model, and sharp; at the instruction set that TPD_CPU_CAP allows. Behind it a sum of the drawn tokens: it
 * changes when a text does. */
#include "base/thread.h"
#include "kernels/kernels.h"
#include "serve/sampler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 16, ROUNDS = 24, DRAWS = ROWS * ROUNDS };

static const struct {
    const char *name;
    double temperature, top_p, min_p;
    int64_t top_k;
} kinds[] = {
    {"greedy", 0, 1, 0, 0},
    {"temperature 1", 1, 1, 0, 0},
    {"temperature 0.3", 0.3, 1, 0, 0},
    {"top_p 0.95", 1, 0.95, 0, 0},
    {"top_k 40, top_p 0.95", 1, 0.95, 0, 40},
    {"min_p 0.05", 1, 1, 0.05, 0},
    {"min_p 0.00001", 1, 1, 0.00001, 0},
};
static const double scales[] = {0.1, 4, 16};
enum { N_KINDS = sizeof kinds / sizeof *kinds, N_SCALES = sizeof scales / sizeof *scales };

/* About normal. */
static double noise(uint64_t *state) {
    double sum = -6;
    for (int i = 0; i < 12; i++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        sum += (double)(*state >> 11) * 0x1p-53;
    }
    return sum;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void must(int err, const struct error *e) {
    if (!err) return;
    fprintf(stderr, "%s\n", e->message);
    exit(1);
}

/* Returns the median in us; tokens are added to *sum. */
static double draw(int kind, const float *rows, int32_t vocab, float *row, uint64_t *sum) {
    static double took[DRAWS];
    struct sampling p;
    struct sampler *s;
    struct token_report report;
    struct error e;
    sampling_default(&p);
    p.temperature = kinds[kind].temperature;
    p.top_p = kinds[kind].top_p;
    p.min_p = kinds[kind].min_p;
    p.top_k = kinds[kind].top_k;
    p.seed = 7;
    must(sampler_new(&s, &p, vocab, &e), &e);
    for (int i = 0; i < DRAWS; i++) {
        memcpy(row, rows + (size_t)(i % ROWS) * (size_t)vocab, (size_t)vocab * sizeof *row);
        int64_t from = clock_ns();
        must(sampler_pick(s, row, NULL, 0, (uint64_t)i, &report, &e), &e);
        took[i] = (double)(clock_ns() - from) / 1e3;
        *sum = *sum * 31 + (uint64_t)report.id;
    }
    sampler_free(s);
    qsort(took, DRAWS, sizeof *took, by_size);
    return took[DRAWS / 2];
}

int main(int argc, char **argv) {
    int32_t vocab = argc > 1 ? atoi(argv[1]) : 49152;
    if (vocab < 1) {
        fprintf(stderr, "usage: bench_draw [VOCABULARY]\n");
        return 64;
    }
    size_t n = (size_t)vocab * ROWS;
    float *rows = malloc((n + (size_t)vocab) * sizeof *rows);
    if (!rows) return 1;
    printf("%d tokens, %s; us a token from rows of deviation", vocab, kernels_cpu_level());
    for (int k = 0; k < N_SCALES; k++) printf("%s %g", k ? "," : "", scales[k]);
    printf("\n");
    for (int i = 0; i < N_KINDS; i++) {
        uint64_t sum = 0, state = 1;
        printf("%-22s", kinds[i].name);
        for (int k = 0; k < N_SCALES; k++) {
            for (size_t j = 0; j < n; j++) rows[j] = (float)(noise(&state) * scales[k]);
            printf(" %8.1f", draw(i, rows, vocab, rows + n, &sum));
        }
        printf("   %016llx\n", (unsigned long long)sum);
    }
    free(rows);
    return 0;
}
