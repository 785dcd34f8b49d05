/* A CPU context that has memory and nothing else, for tests of ipc/ and ranks/ by themselves. Its
 * functions are weak: where kernels/cpu is linked, that is what runs. */
#ifndef TPD_TESTS_CPU_STAND_IN_H
#define TPD_TESTS_CPU_STAND_IN_H

#include "kernels/kernels.h"

#include <stdlib.h>
#include <string.h>

struct stand_in {
    struct kctx base;
    void *blocks[64]; /* freed slots are NULL */
};

static int stand_in_alloc(struct kctx *c, enum mem_kind kind, size_t bytes, dev_addr *out,
                          struct error *e) {
    struct stand_in *s = (struct stand_in *)c;
    size_t whole = (bytes + 255) / 256 * 256, slot = 0;
    (void)kind;
    while (slot < 64 && s->blocks[slot]) slot++;
    if (slot == 64) return error_set(e, ERR_MEMORY, "the stand-in holds 64 blocks");
    s->blocks[slot] = aligned_alloc(256, whole);
    memset(s->blocks[slot], 0, whole);
    *out = (dev_addr)(uintptr_t)s->blocks[slot];
    return 0;
}
static void stand_in_free(struct kctx *c, dev_addr addr) {
    struct stand_in *s = (struct stand_in *)c;
    for (int i = 0; i < 64; i++)
        if (s->blocks[i] == (void *)(uintptr_t)addr) {
            free(s->blocks[i]);
            s->blocks[i] = NULL;
            return;
        }
}
static void stand_in_use(struct kctx *c, struct mem_use *use) {
    (void)c;
    use->total = 1;
}
static int stand_in_wait(struct kctx *c, struct error *e) {
    int rc = -(int)c->error.kind;
    if (rc && e) *e = c->error;
    c->error.kind = ERR_NONE;
    return rc;
}
static void stand_in_close(struct kctx *c) {
    struct stand_in *s = (struct stand_in *)c;
    for (int i = 0; i < 64; i++) free(s->blocks[i]);
    free(s);
}

__attribute__((weak)) int kernels_cpu_open(struct kctx **out, int rank,
                                           const struct cpu_options *options, struct error *e) {
    static const struct kernels ops = {.name = "cpu",
                                       .mem_alloc = stand_in_alloc,
                                       .mem_free = stand_in_free,
                                       .mem_use = stand_in_use,
                                       .wait = stand_in_wait,
                                       .close = stand_in_close};
    (void)e;
    thread_pin(&options->cores, 0);
    *out = calloc(1, sizeof(struct stand_in));
    (*out)->ops = &ops;
    (*out)->rank = rank;
    return 0;
}
__attribute__((weak)) void *kernels_cpu_pointer(const struct kctx *c, dev_addr addr) {
    (void)c;
    return (void *)(uintptr_t)addr;
}

#endif
