#include "kernels/kernels.h"

void kctx_fail(struct kctx *c, const struct error *e) {
    if (!kctx_failed(c)) c->error = *e;
}
