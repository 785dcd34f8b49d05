/* A CPU context that has memory and nothing else, for tests of ipc/ and ranks/ by themselves. Its
 * functions are weak: where kernels/cpu is linked, that is what runs. */
#ifndef TPD_TESTS_CPU_STAND_IN_H
#define TPD_TESTS_CPU_STAND_IN_H

#include "kernels/kernels.h"

#include <stdlib.h>
#include <string.h>

static int stand_in_alloc(struct kctx *c, enum mem_kind kind, size_t bytes, dev_addr *out,
                          struct error *e) {
    (void)c, (void)kind, (void)e;
    size_t whole = (bytes + 255) / 256 * 256;
    void *at = aligned_alloc(256, whole);
    memset(at, 0, whole);
    *out = (dev_addr)(uintptr_t)at;
    return 0;
}
static void stand_in_free(struct kctx *c, dev_addr addr) {
    (void)c;
    free((void *)(uintptr_t)addr);
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
static void stand_in_close(struct kctx *c) { free(c); }

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
    *out = calloc(1, sizeof **out);
    (*out)->ops = &ops;
    (*out)->rank = rank;
    return 0;
}
__attribute__((weak)) void *kernels_cpu_pointer(const struct kctx *c, dev_addr addr) {
    (void)c;
    return (void *)(uintptr_t)addr;
}

#endif
