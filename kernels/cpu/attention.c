/* Attention: cuts query rows and heads into units for the team. */
#include "kernels/cpu/bf16.h"

#include <stdatomic.h>

struct attention_call {
    struct cpu_ctx *c;
    void (*run)(const struct attention_job *job, const struct attention_unit *unit, void *scratch);
    atomic_int next; /* unit that nobody has taken yet: they take unequal times */
    struct attention_job job;
    const int32_t *kv_of_head;
    int32_t n_rows, max_queries, max_heads, max_rows; /* of the step; of a unit */
};

/* The end of a run of rows that share a sequence, and of heads that share a KV head. */
static int32_t run_end(const int32_t *of, int32_t at, int32_t n, int32_t max) {
    int32_t end = at + 1;
    while (end < n && end - at < max && of[end] == of[at]) end++;
    return end;
}

static void attention_slice(void *arg, int member, int n_members) {
    struct attention_call *call = arg;
    const struct attention_job *job = &call->job;
    int32_t unit = 0, mine = atomic_fetch_add_explicit(&call->next, 1, memory_order_relaxed);
    (void)n_members;
    for (int32_t row = 0, row_end; row < call->n_rows; row = row_end) {
        row_end = run_end(job->seq, row, call->n_rows, call->max_rows);
        for (int32_t head = 0, end; head < job->H; head = end) {
            end = run_end(call->kv_of_head, head, job->H, call->max_heads);
            if (unit++ != mine) continue;
            struct attention_unit u = {row, row_end - row, head, end - head,
                                       call->kv_of_head[head]};
            call->run(job, &u, cpu_scratch_of(call->c, member));
            mine = atomic_fetch_add_explicit(&call->next, 1, memory_order_relaxed);
        }
    }
}

/* What reading a KV head's keys and values takes, in the work of one query's head with them (measured). */
enum { READING = 12 };

static int64_t units_of(const struct attention_call *call) {
    int64_t runs = 0, groups = 0;
    for (int32_t head = 0; head < call->job.H; groups++)
        head = run_end(call->kv_of_head, head, call->job.H, call->max_heads);
    for (int32_t row = 0; row < call->n_rows; runs++)
        row = run_end(call->job.seq, row, call->n_rows, call->max_rows);
    return runs * groups;
}

/* Heads that share a KV head go together, so that it is read once, unless cores would be idle for longer than
 * another reading takes. */
static void choose_units(struct attention_call *call, int team) {
    int32_t longest = 1;
    for (int32_t head = 0, end; head < call->job.H; head = end) {
        end = run_end(call->kv_of_head, head, call->job.H, call->max_queries);
        if (end - head > longest) longest = end - head;
    }
    call->max_rows = call->max_queries / longest;
    int32_t best = longest;
    int64_t least = INT64_MAX;
    for (int32_t heads = longest;; heads = (heads + 1) / 2) {
        call->max_heads = heads;
        int64_t takes = (units_of(call) + team - 1) / team * (READING + heads);
        if (takes < least) least = takes, best = heads;
        if (heads == 1) break;
    }
    call->max_heads = best;
}

void cpu_attention(struct kctx *base, dev_addr out, int32_t out_stride, dev_addr q, int32_t H,
                   const int32_t *kv_of_head, const struct kv_view *kv,
                   const struct step_rows *rows, float scale, int32_t window) {
    struct cpu_ctx *c = cpu_of(base);
    if (kctx_failed(base) || rows->n_rows == 0 || H == 0) return;
    bool narrow = c->narrow_activations && c->bf16 && kv->type != DTYPE_F32;
    struct attention_call call = {
        .c = c,
        .run = narrow ? attention_bf16 : c->level->attention,
        .max_queries = narrow ? ATTENTION16_QUERIES : ATTENTION_QUERIES,
        .job = {cpu_at(c, out), (size_t)out_stride, cpu_at(c, q), H, kv, cpu_at(c, kv->k),
                cpu_at(c, kv->v), cpu_at(c, rows->pos), cpu_at(c, rows->seq),
                cpu_at(c, rows->blocks), rows->max_blocks, window, scale},
        .kv_of_head = kv_of_head,
        .n_rows = rows->n_rows,
    };
    choose_units(&call, team_size(c->team));
    if (!cpu_scratch(c, attention_scratch(kv->head_dim))) return;
    size_t work = 0;
    for (int32_t t = 0; t < rows->n_rows; t++)
        work += (size_t)(call.job.pos[t] + 1) * (size_t)H * (size_t)kv->head_dim;
    cpu_parallel(c, work, attention_slice, &call);
}
