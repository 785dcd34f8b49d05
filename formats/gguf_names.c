#include "formats/gguf_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct pair {
    const char *gguf, *hf;
};

/* clang-format off */
static const struct pair of_model[] = {
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
};

static const struct pair of_layer[] = {
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
};
/* clang-format on */

static const char *find(const struct pair *pairs, size_t n, const char *stem, size_t size) {
    for (size_t i = 0; i < n; i++)
        if (strlen(pairs[i].gguf) == size && memcmp(pairs[i].gguf, stem, size) == 0)
            return pairs[i].hf;
    return NULL;
}

/* The digits of N in "blk.N.…" as GGUF writes them: no leading zero, else two names could become
 * one. Returns how many there are, 0 when it is no layer number. */
static size_t layer_digits(const char *text) {
    size_t n = strspn(text, "0123456789");
    if (n > 6 || (n > 1 && text[0] == '0') || text[n] != '.') return 0;
    return n;
}

/* Writes the name into out; false when there is no counterpart. */
static bool translate(const char *name, char *out, size_t size) {
    const char *kind = strrchr(name, '.'); /* ".weight" or ".bias" */
    if (!kind || (strcmp(kind, ".weight") != 0 && strcmp(kind, ".bias") != 0)) return false;
    if (strncmp(name, "blk.", 4) != 0) {
        const char *hf =
            find(of_model, sizeof of_model / sizeof *of_model, name, (size_t)(kind - name));
        if (hf) snprintf(out, size, "%s%s", hf, kind);
        return hf != NULL;
    }
    size_t digits = layer_digits(name + 4);
    const char *stem = name + 4 + digits + 1;
    if (digits == 0 || stem > kind) return false;
    const char *hf =
        find(of_layer, sizeof of_layer / sizeof *of_layer, stem, (size_t)(kind - stem));
    if (hf) snprintf(out, size, "model.layers.%.*s.%s%s", (int)digits, name + 4, hf, kind);
    return hf != NULL;
}

char *gguf_name_to_hf(struct gguf_string name) {
    char *raw = strndup(name.data, name.size), out[128];
    if (!raw || !translate(raw, out, sizeof out)) return raw;
    free(raw);
    return strdup(out);
}
