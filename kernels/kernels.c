#include "kernels/kernels.h"

void kctx_fail(struct kctx *c, const struct error *e) {
    if (!kctx_failed(c)) c->error = *e;
}

size_t mem_used(const struct mem_use *use) {
    size_t used = 0;
    for (int kind = 0; kind < MEM_KIND_COUNT; kind++) used += use->bytes[kind];
    return used;
}
