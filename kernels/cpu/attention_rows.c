/* attention_rows and its backward: deals tiles, blocks and heads to the team. */
#include "kernels/cpu/train.h"

struct rows_call {
    struct cpu_ctx *c;
    struct rows_attention a;
    int32_t n_tiles, n_blocks;
    _Atomic int32_t next; /* unit that nobody has taken */
};

/* Units differ in length and cores in speed, so members take the next one when they are free; each
 * is done whole by one member, and no bit depends on whose it was. */
static bool take_unit(struct rows_call *call, int32_t n, int32_t *unit) {
    *unit = atomic_fetch_add_explicit(&call->next, 1, memory_order_relaxed);
    return *unit < n;
}

/* Tiles come from the last, which sees most keys, to the first. */
static void forward_slice(void *arg, int member, int n_members) {
    struct rows_call *call = arg;
    int32_t unit, H = call->a.H;
    (void)n_members;
    while (take_unit(call, call->n_tiles * H, &unit))
        call->c->level->train->attention_tile(&call->a, call->n_tiles - 1 - unit / H, unit % H,
                                              cpu_scratch_of(call->c, member));
}

static void dq_slice(void *arg, int member, int n_members) {
    struct rows_call *call = arg;
    int32_t unit, H = call->a.H;
    (void)n_members;
    while (take_unit(call, call->n_tiles * H, &unit))
        call->c->level->train->attention_dq(&call->a, call->n_tiles - 1 - unit / H, unit % H,
                                            cpu_scratch_of(call->c, member));
}

/* The first block is seen by most rows. */
static void dkv_slice(void *arg, int member, int n_members) {
    struct rows_call *call = arg;
    int32_t unit, K = call->a.K;
    (void)n_members;
    while (take_unit(call, call->n_blocks * K, &unit))
        call->c->level->train->attention_dkv(&call->a, unit / K, unit % K, false,
                                             cpu_scratch_of(call->c, member));
}

/* All three gradients in one pass, a KV head and the heads that read it to one member. */
static void kv_heads_slice(void *arg, int member, int n_members) {
    struct rows_call *call = arg;
    int32_t head;
    (void)n_members;
    while (take_unit(call, call->a.K, &head))
        for (int32_t block = 0; block < call->n_blocks; block++)
            call->c->level->train->attention_dkv(&call->a, block, head, true,
                                                 cpu_scratch_of(call->c, member));
}

static size_t pairs_seen(const struct rows_attention *a) {
    size_t n = 0;
    for (int32_t t = 0; t < a->T; t++) {
        int32_t seen = t + 1 - a->first[t];
        n += (size_t)(a->window > 0 && a->window < seen ? a->window : seen);
    }
    return n * (size_t)a->H * (size_t)a->e;
}

/* What both directions share. */
static struct rows_call rows_call(struct cpu_ctx *c, struct rows_attention a) {
    return (struct rows_call){c, a, round_up(a.T, TILE_Q) / TILE_Q, round_up(a.T, TILE_K) / TILE_K,
                              0};
}

void cpu_attention_rows(struct kctx *base, dev_addr out, int32_t out_stride, dev_addr lse,
                        dev_addr q, int32_t H, dev_addr k, dev_addr v, int32_t K,
                        const int32_t *kv_of_head, int32_t e, dev_addr first, int32_t T,
                        float scale, int32_t window) {
    struct cpu_ctx *c = cpu_of(base);
    if (kctx_failed(base) || T == 0 || !cpu_scratch(c, rows_attention_scratch(e))) return;
    struct rows_call call = rows_call(c, (struct rows_attention){.q = cpu_at(c, q),
                                                                 .k = cpu_at(c, k),
                                                                 .v = cpu_at(c, v),
                                                                 .out = cpu_at(c, out),
                                                                 .lse = cpu_at(c, lse),
                                                                 .out_stride = (size_t)out_stride,
                                                                 .T = T,
                                                                 .H = H,
                                                                 .K = K,
                                                                 .e = e,
                                                                 .window = window,
                                                                 .kv_of_head = kv_of_head,
                                                                 .first = cpu_at(c, first),
                                                                 .scale = scale});
    cpu_parallel(c, pairs_seen(&call.a), forward_slice, &call);
}

void cpu_attention_rows_dx(struct kctx *base, dev_addr dq, dev_addr dk, dev_addr dv, dev_addr dout,
                           dev_addr out, int32_t out_stride, dev_addr lse, dev_addr q, int32_t H,
                           dev_addr k, dev_addr v, int32_t K, const int32_t *kv_of_head, int32_t e,
                           dev_addr first, int32_t T, float scale, int32_t window) {
    struct cpu_ctx *c = cpu_of(base);
    if (kctx_failed(base) || T == 0 || !cpu_scratch(c, rows_attention_scratch(e))) return;
    struct rows_call call = rows_call(c, (struct rows_attention){.q = cpu_at(c, q),
                                                                 .k = cpu_at(c, k),
                                                                 .v = cpu_at(c, v),
                                                                 .out = cpu_at(c, out),
                                                                 .lse = cpu_at(c, lse),
                                                                 .dout = cpu_at(c, dout),
                                                                 .dq = cpu_at(c, dq),
                                                                 .dk = cpu_at(c, dk),
                                                                 .dv = cpu_at(c, dv),
                                                                 .out_stride = (size_t)out_stride,
                                                                 .T = T,
                                                                 .H = H,
                                                                 .K = K,
                                                                 .e = e,
                                                                 .window = window,
                                                                 .kv_of_head = kv_of_head,
                                                                 .first = cpu_at(c, first),
                                                                 .scale = scale});
    size_t work = pairs_seen(&call.a);
    /* One pass recomputes the scores once, two passes twice, but those share out better. The bits
     * are the same. */
    if (K % team_size(c->team) == 0) {
        cpu_parallel(c, work, kv_heads_slice, &call);
    } else {
        cpu_parallel(c, work, dq_slice, &call);
        call.next = 0;
        cpu_parallel(c, work, dkv_slice, &call);
    }
}
