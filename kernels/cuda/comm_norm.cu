/* All-reduce, residual and norm in one kernel, for the few rows of a decode step: the sum of a row never goes
 * to memory, and two launches a layer are saved. */
#include "kernels/cuda/comm_device.h"
#include "kernels/cuda/norm.h"

/* A block has whole rows, the same on all ranks: it copies its ranks' parts y [rows, d] into the slot, meets its
 * like, and ends each row as k_rmsnorm does. The sums are k_one_shot's, and the slots are used as there.
 * Moves, for each row: 5 sizes within the device, n - 1 in from peers. */
__global__ void __launch_bounds__(512)
    k_reduce_norm(comm_team t, struct cuda_comm_norm norm, int32_t rows, int32_t d, bool whole) {
    SHARED(uint32_t, verdict, 1);
    SHARED(float, scratch, WARP_SIZE);
    comm_numbers own;
    if (!comm_begin(t, &own, verdict)) return;
    ptr<float> mine = ptr<float>(comm_slot(t, t.rank, own.piece));
    ptr<const float> y = ptr<const float>(norm.y);
    int32_t first = 4 * (int32_t)threadIdx.x, step = 4 * (int32_t)blockDim.x;
    for (int32_t row = (int32_t)blockIdx.x; row < rows; row += (int32_t)gridDim.x)
        for (int32_t i = first; i < d; i += step) {
            float4 v = load_four(y + (int64_t)row * d, i, d, whole);
            store_four(mine + (int64_t)row * d, i, d, whole, v);
        }
    if (!comm_meet(t, own.meeting + 1, verdict)) return;
    for (int32_t row = (int32_t)blockIdx.x; row < rows; row += (int32_t)gridDim.x) {
        int64_t at = (int64_t)row * d;
        auto sum = [&](int32_t i) {
            float4 s = load_four(ptr<const float>(comm_slot(t, 0, own.piece)) + at, i, d, whole);
            for (int p = 1; p < t.n; p++) {
                float4 v = load_four(ptr<const float>(comm_slot(t, p, own.piece)) + at, i, d, whole);
                s = make_float4(s.x + v.x, s.y + v.y, s.z + v.z, s.w + v.w);
            }
            return s;
        };
        norm_row(ptr<float>(norm.out) + at, ptr<float>(norm.x) + at, true, sum, norm.scale,
                 ptr<const float>(norm.g), d, norm.eps, whole, scratch);
    }
    comm_count(t, 1, 1);
}

void cuda_comm_reduce_norm(struct cuda_comm *comm, const struct cuda_comm_call *call,
                           const struct cuda_comm_norm *norm) {
    comm_team t = comm_team_for(comm, call->signature);
    struct cuda_comm_norm n = *norm;
    int32_t rows = (int32_t)call->shape.rows, d = (int32_t)call->shape.offsets[t.n];
    bool whole = d % 4 == 0 && (n.y | n.x | n.g | n.out) % 16 == 0;
    unsigned grid = (unsigned)(rows < comm->blocks ? rows : comm->blocks);
    LAUNCH_RESIDENT(k_reduce_norm, grid, norm_threads(d), 0, comm->ctx->stream, t, n, rows, d, whole);
    cuda_launched(comm->ctx, "all-reduce and norm");
}
