/* What both readers of model configurations share. */
#include "model/config_parts.h"

static const char *const arch_names[ARCH_COUNT] = {
    [ARCH_LLAMA] = "llama", [ARCH_MISTRAL] = "mistral", [ARCH_GRANITE] = "granite",
    [ARCH_QWEN2] = "qwen2", [ARCH_QWEN3] = "qwen3",
};

const char *arch_name(enum arch arch) {
    return arch_names[arch];
}

const char *rope_kind_name(enum rope_kind kind) {
    switch (kind) {
    case ROPE_DEFAULT: return "default";
    case ROPE_LINEAR: return "linear";
    case ROPE_DYNAMIC: return "dynamic";
    case ROPE_LLAMA3: return "llama3";
    case ROPE_YARN: return "yarn";
    }
    return "unknown";
}

int config_check(const struct model_config *c, const struct config_names *names, const char *path,
                 struct error *e) {
    if (c->n_kv_heads > c->n_heads || c->n_heads % c->n_kv_heads != 0)
        return FIELD_FAULT(e, path, names->kv_heads, "%d does not divide %s = %d", c->n_kv_heads,
                           names->heads, c->n_heads);
    if (c->head_dim % 2 != 0)
        return FIELD_FAULT(e, path, names->head_dim,
                           "is %d; rotary positions turn pairs, so it must be even", c->head_dim);
    if (c->rope.kind == ROPE_DYNAMIC && c->head_dim < 4)
        return FIELD_FAULT(e, path, names->head_dim, "is %d; dynamic rope scaling needs at least 4",
                           c->head_dim);
    return 0;
}

bool config_add_eos(struct model_config *c, int64_t id) {
    if (id < 0 || id >= c->vocab) return true;
    for (int32_t i = 0; i < c->n_eos; i++)
        if (c->eos_ids[i] == id) return true;
    if (c->n_eos == CONFIG_MAX_EOS) return false;
    c->eos_ids[c->n_eos++] = (int32_t)id;
    return true;
}
