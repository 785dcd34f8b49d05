#include "kernels/kernels.h"

void kctx_fail(struct kctx *c, const struct error *e) {
    if (!kctx_failed(c)) c->error = *e;
}

const char *mem_kind_name(enum mem_kind kind) {
    switch (kind) {
    case MEM_WEIGHTS: return "weights";
    case MEM_KV: return "kv";
    case MEM_ACTIVATIONS: return "activations";
    case MEM_PARAMETERS: return "parameters";
    case MEM_GRADIENTS: return "gradients";
    case MEM_OPTIMIZER: return "optimizer";
    case MEM_BUFFERS: return "buffers";
    case MEM_SCRATCH: return "scratch";
    case MEM_KIND_COUNT: break;
    }
    return "?";
}

size_t mem_used(const struct mem_use *use) {
    size_t used = 0;
    for (int kind = 0; kind < MEM_KIND_COUNT; kind++) used += use->bytes[kind];
    return used;
}
