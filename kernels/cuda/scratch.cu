/* Scratch memory: what operations work in beside their operands. How much each needs, sizes.h says. */
#include "kernels/cuda/cuda.h"

static int scratch_new(struct cuda_context *c, size_t bytes, struct error *e) {
    if (c->scratch) {
        cuda_mem_free(&c->base, c->scratch);
        c->scratch = 0;
        c->scratch_bytes = 0;
    }
    int rc = cuda_piece_take(c, MEM_SCRATCH, bytes, &c->scratch, e);
    if (rc == 0) c->scratch_bytes = bytes;
    return rc;
}

static int workspace_new(struct cuda_context *c, struct error *e) {
    int rc = cuda_piece_take(c, MEM_SCRATCH, BLAS_WORKSPACE_BYTES, &c->blas_workspace, e);
    if (rc) return rc;
    if (cublasSetWorkspace(c->blas, reinterpret_cast<void *>(c->blas_workspace), BLAS_WORKSPACE_BYTES) ==
        CUBLAS_STATUS_SUCCESS)
        return 0;
    return error_set(e, ERR_DEVICE, "%s: cuBLAS does not take its workspace", c->name);
}

int cuda_scratch_reserve(struct cuda_context *c, size_t bytes, struct error *e) {
    size_t of_blas = c->same_bits ? 0 : BLAS_WORKSPACE_BYTES;
    int rc = of_blas && !c->blas_workspace ? workspace_new(c, e) : 0;
    if (rc || bytes <= of_blas + c->scratch_bytes) return rc;
    return scratch_new(c, bytes - of_blas, e);
}

dev_addr cuda_scratch(struct cuda_context *c, size_t bytes) {
    struct error e;
    if (bytes > c->scratch_bytes && scratch_new(c, align_to(bytes, SCRATCH_GRAIN), &e)) {
        kctx_fail(&c->base, &e);
        return 0;
    }
    PIECE_AGAIN(c->stream, c->scratch, bytes);
    return c->scratch;
}

bool cuda_blas_ready(struct cuda_context *c) {
    struct error e;
    if (c->blas_workspace) return true;
    if (workspace_new(c, &e) == 0) return true;
    kctx_fail(&c->base, &e);
    return false;
}
