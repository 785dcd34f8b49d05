/* Opens a CPU context: instruction set, memory, team; and the table of operations. */
#include "kernels/cpu/amx.h"
#include "kernels/cpu/scratch.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* --- dispatch --------------------------------------------------------------------------------- */

/* __builtin_cpu_supports also asks whether the system saves the wide registers. Every CPU with AVX2
 * has F16C. */
static bool has_avxvnni(void) {
#ifdef __x86_64__
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4);
#else
    return false;
#endif
}

static int level_found(void) {
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                  __builtin_cpu_supports("avx512vnni");
    if (avx512 && __builtin_cpu_supports("avx512bf16")) return amx_usable() ? 5 : 4;
    return avx512 ? 3 : avx2 && has_avxvnni() ? 2 : avx2 ? 1 : 0;
}

/* avxvnni is avx2 with other integer products, avx512bf16 is avx512 with products of bf16, amx does both on
 * tiles. */
struct choice {
    const char *name;
    const struct cpu_level *level;
    const struct cpu_int8 *int8;
    const struct cpu_bf16 *bf16;
};

static const struct choice *level_choose(struct error *e) {
    static const struct choice choices[] = {
        {"portable", &cpu_level_portable, &cpu_int8_portable, NULL},
        {"avx2", &cpu_level_avx2, &cpu_int8_avx2, NULL},
        {"avxvnni", &cpu_level_avx2, &cpu_int8_avxvnni, NULL},
        {"avx512", &cpu_level_avx512, &cpu_int8_avx512, NULL},
        {"avx512bf16", &cpu_level_avx512, &cpu_int8_avx512, &cpu_bf16_avx512},
        {"amx", &cpu_level_avx512, &cpu_int8_amx, &cpu_bf16_amx},
    };
    enum { AVXVNNI = 2, N_CHOICES = sizeof choices / sizeof *choices };
    int best = level_found();
    const char *cap = getenv("TPD_CPU_CAP");
    if (!cap || !*cap) return &choices[best];
    for (int i = 0; i < N_CHOICES; i++) {
        if (strcasecmp(cap, choices[i].name) != 0) continue;
        if (i > best) i = best;
        return &choices[i == AVXVNNI && !has_avxvnni() ? i - 1 : i];
    }
    error_set(e, ERR_CONFIG, "TPD_CPU_CAP is \"%s\": use portable, avx2, avxvnni, avx512, "
              "avx512bf16 or amx", cap);
    return NULL;
}

const char *kernels_cpu_level(void) {
    const struct choice *choice = level_choose(NULL);
    return choice ? choice->name : "unknown";
}

bool kernels_cpu_bf16(void) {
    const struct choice *choice = level_choose(NULL);
    return choice && choice->bf16;
}

void cpu_narrow_activations(struct kctx *base, bool on) { cpu_of(base)->narrow_activations = on; }

void cpu_bf16_products(struct kctx *base, bool on) {
    struct cpu_ctx *c = cpu_of(base);
    c->bf16_products = on && c->bf16;
}

/* --- the team --------------------------------------------------------------------------------- */

void cpu_parallel(struct cpu_ctx *c, size_t work, team_fn *fn, void *arg) {
    enum { WORTH_SHARING = 16384 };
    if (work < WORTH_SHARING)
        fn(arg, 0, 1);
    else
        team_run(c->team, fn, arg);
}

/* Memory of `bytes` in place of *at, which has *has; what was there is gone. */
static bool scratch_new(struct cpu_ctx *c, uint8_t **at, size_t *has, size_t bytes) {
    free(*at);
    *at = NULL;
    if (cpu_memory_scratch(c, *has, bytes)) {
        *has = bytes;
        *at = aligned_alloc(SCRATCH_PAGE, bytes);
        if (*at) return true;
    }
    cpu_memory_scratch(c, *has, 0);
    *has = 0;
    struct error e;
    error_set(&e, ERR_MEMORY, "rank %d has no memory for %zu bytes of scratch", c->base.rank, bytes);
    error_note_number(&e, "needed", (int64_t)bytes);
    kctx_fail(&c->base, &e);
    return false;
}

uint8_t *cpu_scratch(struct cpu_ctx *c, size_t bytes) {
    size_t members = (size_t)team_size(c->team), all = members * c->scratch_bytes;
    bytes = scratch_round(bytes);
    if (bytes <= c->scratch_bytes) return c->scratch;
    bool grown = scratch_new(c, &c->scratch, &all, bytes * members);
    c->scratch_bytes = grown ? bytes : 0;
    return c->scratch;
}

bool cpu_narrow_room(struct cpu_ctx *c, size_t bytes) {
    return bytes <= c->narrow_bytes || scratch_new(c, &c->narrow, &c->narrow_bytes, scratch_round(bytes));
}

/* --- the table -------------------------------------------------------------------------------- */

static struct device_figures figures_of(const struct cpu_int8 *int8, const struct cpu_bf16 *bf16, int cores) {
    return (struct device_figures){.kind = DEVICE_CPU,
                                   .bf16 = bf16 != NULL,
                                   .cores = cores,
                                   .int8_rows = int8->rows,
                                   .bf16_rows = bf16 ? bf16->rows : 0};
}

void kernels_cpu_figures(struct device_figures *out, int cores) {
    const struct choice *choice = level_choose(NULL);
    *out = choice ? figures_of(choice->int8, choice->bf16, cores) : figures_of(&cpu_int8_portable, NULL, cores);
}

void cpu_figures(const struct kctx *base, struct device_figures *out) {
    const struct cpu_ctx *c = (const struct cpu_ctx *)base;
    *out = figures_of(c->int8, c->bf16, team_size(c->team));
}

static void cpu_upload(struct kctx *c, dev_addr to, const void *from, size_t bytes) {
    if (!kctx_failed(c) && bytes) memcpy(cpu_at(cpu_of(c), to), from, bytes);
}

static void cpu_download(struct kctx *c, void *to, dev_addr from, size_t bytes) {
    if (!kctx_failed(c) && bytes) memcpy(to, cpu_at(cpu_of(c), from), bytes);
}

static int cpu_wait(struct kctx *c, struct error *e) {
    if (!kctx_failed(c)) return 0;
    int code = -(int)c->error.kind;
    if (e) *e = c->error;
    c->error.kind = ERR_NONE;
    return code;
}

static void cpu_close(struct kctx *base) {
    struct cpu_ctx *c = cpu_of(base);
    if (!c) return;
    cpu_memory_close(c);
    team_free(c->team);
    free(c->scratch);
    free(c->narrow);
    free(c);
}

static const struct kernels cpu_kernels = {
    .name = "cpu",
    .mem_alloc = cpu_mem_alloc,
    .mem_free = cpu_mem_free,
    .mem_use = cpu_mem_use,
    .figures = cpu_figures,
    .mem_export = cpu_mem_export,
    .upload = cpu_upload,
    .download = cpu_download,
    .wait = cpu_wait,
    .weight_new = cpu_weight_new,
    .weight_put = cpu_weight_put,
    .weight_free = cpu_weight_free,
    .weight_layout = cpu_weight_layout,
    .embed = cpu_embed,
    .rmsnorm = cpu_rmsnorm,
    .add_rmsnorm = cpu_add_rmsnorm,
    .linear = cpu_linear,
    .head_norm = cpu_head_norm,
    .rope_table = cpu_rope_table,
    .rope_kv = cpu_rope_kv,
    .attention = cpu_attention,
    .silu_mul = cpu_silu_mul,
    .gather_rows = cpu_gather_rows,
    .scale = cpu_scale,
    .matmul = cpu_matmul,
    .linear_dx = cpu_linear_dx,
    .col_sum = cpu_col_sum,
    .rmsnorm_dx = cpu_rmsnorm_dx,
    .rope_rows = cpu_rope_rows,
    .attention_rows = cpu_attention_rows,
    .attention_rows_dx = cpu_attention_rows_dx,
    .silu_mul_dx = cpu_silu_mul_dx,
    .ce_stats = cpu_ce_stats,
    .ce_grad = cpu_ce_grad,
    .embed_rows = cpu_embed_rows,
    .embed_grad = cpu_embed_grad,
    .bf16_products = cpu_bf16_products,
    .narrow_activations = cpu_narrow_activations,
    .narrow = cpu_narrow,
    .widen = cpu_widen,
    .copy = cpu_copy,
    .axpy = cpu_axpy,
    .dropout = cpu_dropout,
    .sum_squares = cpu_sum_squares,
    .adamw = cpu_adamw,
    .close = cpu_close,
};

int kernels_cpu_open(struct kctx **out, int rank, const struct cpu_options *options,
                     struct error *e) {
    *out = NULL;
    const struct choice *choice = level_choose(e);
    if (!choice) return -(int)ERR_CONFIG;
    struct cpu_ctx *c = calloc(1, sizeof *c);
    if (!c) return error_set(e, ERR_MEMORY, "no memory for the context of rank %d", rank);
    c->base.ops = &cpu_kernels;
    c->base.rank = rank;
    c->level = choice->level;
    c->int8 = choice->int8;
    c->bf16 = choice->bf16;
    const char *env = getenv("TPD_DEBUG_ALIAS");
    bool alias = options->debug_alias || (env && strcmp(env, "1") == 0);
    int code = cpu_memory_open(c, options->memory_limit, alias, e);
    if (code == 0) code = team_new(&c->team, &options->cores, e);
    if (code != 0) {
        cpu_close(&c->base);
        return code;
    }
    *out = &c->base;
    return 0;
}

void *kernels_cpu_pointer(const struct kctx *c, dev_addr addr) {
    return cpu_at((const struct cpu_ctx *)c, addr);
}

struct team *kernels_cpu_team(const struct kctx *c) { return ((const struct cpu_ctx *)c)->team; }
