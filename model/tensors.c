#include "model/tensors.h"


const struct matrix_rule matrix_rules[MAT_COUNT] = {
    [MAT_Q] = {"self_attn.q_proj", AXIS_HEADS, AXIS_HIDDEN},
    [MAT_K] = {"self_attn.k_proj", AXIS_KV_HEADS, AXIS_HIDDEN},
    [MAT_V] = {"self_attn.v_proj", AXIS_KV_HEADS, AXIS_HIDDEN},
    [MAT_O] = {"self_attn.o_proj", AXIS_HIDDEN, AXIS_HEADS},
    [MAT_GATE] = {"mlp.gate_proj", AXIS_FFN, AXIS_HIDDEN},
    [MAT_UP] = {"mlp.up_proj", AXIS_FFN, AXIS_HIDDEN},
    [MAT_DOWN] = {"mlp.down_proj", AXIS_HIDDEN, AXIS_FFN},
};

const struct norm_rule norm_rules[NORM_COUNT] = {
    [NORM_ATTN] = {"input_layernorm", AXIS_HIDDEN},
    [NORM_FFN] = {"post_attention_layernorm", AXIS_HIDDEN},
    [NORM_Q] = {"self_attn.q_norm", AXIS_HEAD_DIM},
    [NORM_K] = {"self_attn.k_norm", AXIS_HEAD_DIM},
};

bool config_has_bias(const struct model_config *config, enum matrix m) {
    switch (m) {
    case MAT_Q: return config->q_bias;
    case MAT_K: return config->k_bias;
    case MAT_V: return config->v_bias;
    case MAT_O: return config->o_bias;
    case MAT_GATE:
    case MAT_UP:
    case MAT_DOWN: return config->mlp_bias;
    case MAT_COUNT: break;
    }
    return false;
}

bool config_has_norm(const struct model_config *config, enum norm n) {
    return n == NORM_ATTN || n == NORM_FFN || config->qk_norm;
}

int32_t axis_size(const struct model_config *config, enum axis axis) {
    switch (axis) {
    case AXIS_HIDDEN: return config->hidden;
    case AXIS_HEADS: return config->n_heads * config->head_dim;
    case AXIS_KV_HEADS: return config->n_kv_heads * config->head_dim;
    case AXIS_FFN: return config->ffn;
    case AXIS_VOCAB: return config->vocab;
    case AXIS_HEAD_DIM: return config->head_dim;
    }
    return 0;
}

void axis_range(const struct model_config *config, const struct shard_plan *plan, int rank,
                enum axis axis, int32_t *from, int32_t *to) {
    *from = 0;
    *to = axis_size(config, axis);
    switch (axis) {
    case AXIS_HIDDEN:
    case AXIS_HEAD_DIM: break;
    case AXIS_HEADS:
        *from = plan->head[rank] * config->head_dim;
        *to = plan->head[rank + 1] * config->head_dim;
        break;
    case AXIS_KV_HEADS:
        *from = plan->kv_first[rank] * config->head_dim;
        *to = (plan->kv_first[rank] + plan->kv_count[rank]) * config->head_dim;
        break;
    case AXIS_FFN:
        *from = plan->ffn[rank];
        *to = plan->ffn[rank + 1];
        break;
    case AXIS_VOCAB:
        *from = plan->vocab[rank];
        *to = plan->vocab[rank + 1];
        break;
    }
}

bool matrix_is_permuted(const struct model_config *config, enum matrix m) {
    return config->gguf_permuted && (m == MAT_Q || m == MAT_K);
}

void tensor_read(const struct store_tensor *t, int32_t permuted_head_dim, int32_t row0,
                 int32_t row1, int32_t col0, int32_t col1, float *out) {
    enum dtype type = (enum dtype)t->type;
    const struct dtype_info *info = dtype_info(type);
    size_t row_bytes = dtype_row_bytes(type, t->n_dims == 2 ? t->dims[1] : 1);
    for (int32_t row = row0; row < row1; row++) {
        int64_t at = row;
        if (permuted_head_dim) {
            int64_t half = permuted_head_dim / 2, in_half = row % half, odd = row / half % 2;
            at = row - in_half - odd * half + 2 * in_half + odd;
        }
        const uint8_t *from = t->data + (size_t)at * row_bytes;
        /* Block by block, so that a column range costs no more than its blocks. */
        for (int32_t col = col0; col < col1;) {
            float block[256];
            int32_t first = col / info->block * info->block;
            if (info->block == 1) {
                dtype_row_to_f32(type, from + (size_t)col * (size_t)info->block_bytes, out,
                                 col1 - col);
                out += col1 - col;
                break;
            }
            dtype_row_to_f32(type, from + dtype_row_bytes(type, first), block, info->block);
            for (; col < first + info->block && col < col1; col++) *out++ = block[col - first];
        }
    }
}
