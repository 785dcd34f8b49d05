/* kernels/cuda/quant.h: how weights stand in device memory, and how kernels read them.
 *
 * Plain types: rows as in the file, each filled up with zeros to whole 16 bytes.
 *
 * Quantised types: the file's bits in another order, not one more, in four arrays over the whole matrix,
 * each row after row: `low` and `high` bits of the codes, packed sub-scales (`sub`), and the f16 scale
 * (and minimum) of each block (`d`). A unit is 32 columns of a row: low has 4 * low_bits bytes of it, its
 * word j holding the codes j * 32 / low_bits … from the lowest bits on; high likewise. So the lanes of a
 * warp that read unit after unit read whole lines, 16 bytes a lane where a unit has them, and no block's
 * odd size misaligns the next.
 *
 * value[i] = scale * code[i] + offset, a scale and an offset for each half of a unit (base/dequant.h). */
#ifndef TPD_KERNELS_CUDA_QUANT_H
#define TPD_KERNELS_CUDA_QUANT_H

#include "kernels/cuda/cuda.h"

enum { UNIT = 32 };

/* A matrix for kernels. Plain types use data and ld alone. */
struct matrix_view {
    int32_t rows, cols;
    int32_t ld; /* elements from row to row */
    uint64_t data, high, sub, d;
};

static inline struct matrix_view matrix_view(const struct weight *w) {
    struct matrix_view m = {w->rows, w->cols, w->cols, w->data, 0, 0, 0};
    if (!dtype_is_quantised(w->type)) {
        m.ld = plain_ld(w->type, w->cols);
        return m;
    }
    struct matrix_places at = matrix_places(w->type, w->rows, w->cols);
    m.high = m.data + at.high;
    m.sub = m.data + at.sub;
    m.d = m.data + at.d;
    return m;
}

/* The KV cache in q8 has the blocks of Q8_0 files: an f16 scale and 32 signed codes. This stands for one byte. */
enum { Q8_BLOCK = 32, Q8_BLOCK_BYTES = 34 };
struct q8 {
    uint8_t byte;
};

/* --- reading, on the device ------------------------------------------------------------------------- */

static __device__ __forceinline__ float half_bits_to_float(uint16_t bits) {
    __half h;
    memcpy(&h, &bits, sizeof h);
    return __half2float(h);
}
static __device__ __forceinline__ float bf16_bits_to_float(uint16_t bits) {
    return __uint_as_float((unsigned)bits << 16);
}

/* scale and offset of both halves of a unit. */
struct unit_scales {
    float scale[2], offset[2];
};

/* run: of the block, 16 columns each. */
static __device__ __forceinline__ void sub_scale(enum dtype type, ptr<const uint8_t> sub, int run,
                                                 float d, float min, float *scale, float *offset) {
    if (type == DTYPE_Q2_K) {
        int byte = sub[run];
        *scale = d * (float)(byte & 15);
        *offset = -(min * (float)(byte >> 4));
    } else if (type == DTYPE_Q3_K) {
        int low = sub[run % 8], high = sub[8 + run % 4];
        low = run < 8 ? low & 15 : low >> 4;
        *scale = d * (float)((low | (high >> (2 * (run / 4)) & 3) << 4) - 32);
        *offset = -4 * *scale;
    } else if (type == DTYPE_Q6_K) {
        int byte = sub[run];
        *scale = d * (float)(byte < 128 ? byte : byte - 256);
        *offset = -32 * *scale;
    } else { /* q4_k, q5_k: runs of 32 */
        int i = run / 2, a = sub[i], b = i < 4 ? sub[i + 4] : sub[i], c = i < 4 ? 0 : sub[i - 4];
        if (i >= 4) a = sub[i + 4];
        int s = i < 4 ? a & 63 : (a & 15) | c >> 6 << 4;
        int m = i < 4 ? b & 63 : a >> 4 | b >> 6 << 4;
        *scale = d * (float)s;
        *offset = -(min * (float)m);
    }
}

/* unit: of the whole matrix, row * cols / 32 + column / 32. */
static __device__ __forceinline__ struct unit_scales unit_scales(enum dtype type,
                                                                 const struct matrix_view &w,
                                                                 int64_t unit) {
    const struct quant_format f = quant_format(type);
    int64_t block = unit / (f.block / UNIT);
    ptr<const uint16_t> halves = ptr<const uint16_t>(w.d) + block * (f.d_bytes / 2);
    uint16_t first = halves[0], second = f.d_bytes == 4 ? (uint16_t)halves[f.d_bytes / 2 - 1] : 0;
    float d = half_bits_to_float(first), min = half_bits_to_float(second);
    struct unit_scales out;
    if (f.sub_bytes == 0) {
        out.scale[0] = out.scale[1] = d;
        out.offset[0] = out.offset[1] = f.d_bytes == 4 ? min : -(float)(f.codes / 2) * d;
        return out;
    }
    ptr<const uint8_t> sub = ptr<const uint8_t>(w.sub) + block * f.sub_bytes;
    int run = 2 * (int)(unit % (f.block / UNIT));
    sub_scale(type, sub, run, d, min, &out.scale[0], &out.offset[0]);
    sub_scale(type, sub, run + 1, d, min, &out.scale[1], &out.offset[1]);
    return out;
}

/* The words of a unit: `bits` of them, 16 bytes at once where there are as many. */
template <int bits>
static __device__ __forceinline__ void load_plane(ptr<const uint32_t> plane, int64_t unit,
                                                  uint32_t *words) {
    ptr<const uint32_t> at = plane + unit * bits;
    if (bits % 4 == 0) {
        for (int i = 0; i < bits / 4; i++) {
            uint4 four = load16<uint4>(at + 4 * i);
            words[4 * i] = four.x, words[4 * i + 1] = four.y;
            words[4 * i + 2] = four.z, words[4 * i + 3] = four.w;
        }
    } else {
        for (int i = 0; i < bits; i++) words[i] = at[i];
    }
}

/* A small integer as a float without the slow conversion: 2^23 + n has n in its last bits. */
static __device__ __forceinline__ float small_float(uint32_t n) {
    return __uint_as_float(0x4B000000u | n) - 8388608.0f;
}

/* The 32 values of a unit. */
template <enum dtype type>
static __device__ __forceinline__ void unit_values(const struct matrix_view &w, int64_t unit,
                                                   float *values) {
    constexpr struct quant_format f = quant_format(type);
    uint32_t low[f.low_bits], high[f.high_bits ? f.high_bits : 1];
    load_plane<f.low_bits>(ptr<const uint32_t>(w.data), unit, low);
    if (f.high_bits) load_plane<f.high_bits ? f.high_bits : 1>(ptr<const uint32_t>(w.high), unit, high);
    struct unit_scales s = unit_scales(type, w, unit);
UNROLL
    for (int i = 0; i < UNIT; i++) {
        uint32_t code = low[i * f.low_bits / 32] >> (i * f.low_bits % 32) & ((1u << f.low_bits) - 1);
        if (f.high_bits)
            code |= (high[i * f.high_bits / 32] >> (i * f.high_bits % 32) & ((1u << f.high_bits) - 1))
                    << f.low_bits;
        values[i] = fmaf(s.scale[i / 16], small_float(code), s.offset[i / 16]);
    }
}

/* 32 values from column `column` of a plain row (columns behind the end are 0). */
template <enum dtype type>
static __device__ __forceinline__ void plain_values(const struct matrix_view &w, int32_t row,
                                                    int32_t column, float *values) {
    constexpr int per_load = type == DTYPE_F32 ? 4 : 8;
UNROLL
    for (int i = 0; i < UNIT; i += per_load) {
        uint4 four = {0, 0, 0, 0};
        int64_t at = (int64_t)row * w.ld + column + i;
        if (column + i < w.ld) {
            if (type == DTYPE_F32) four = load16<uint4>(ptr<const uint32_t>(w.data) + at);
            else four = load16<uint4>(ptr<const uint16_t>(w.data) + at);
        }
        uint32_t words[4] = {four.x, four.y, four.z, four.w};
UNROLL
        for (int j = 0; j < per_load; j++) {
            if (type == DTYPE_F32) values[i + j] = __uint_as_float(words[j % 4]);
            else {
                uint16_t bits = (uint16_t)(words[j / 2] >> (16 * (j % 2)));
                values[i + j] = type == DTYPE_F16 ? half_bits_to_float(bits) : bf16_bits_to_float(bits);
            }
        }
    }
}

/* 32 values of row `row` from column 32 * u on. */
template <enum dtype type>
static __device__ __forceinline__ void matrix_values(const struct matrix_view &w, int32_t row, int32_t u,
                                                     float *values) {
    if constexpr (type == DTYPE_F32 || type == DTYPE_F16 || type == DTYPE_BF16)
        plain_values<type>(w, row, u * UNIT, values);
    else unit_values<type>(w, (int64_t)row * (w.cols / UNIT) + u, values);
}

/* Calls f with the type as a constant: WITH_TYPE(type, [&](auto t) { … decltype(t)::value … }). */
template <enum dtype type> struct dtype_constant {
    static constexpr enum dtype value = type;
};
template <class F> static inline void with_type(enum dtype type, F f) {
    switch (type) {
    case DTYPE_F32: f(dtype_constant<DTYPE_F32>{}); return;
    case DTYPE_F16: f(dtype_constant<DTYPE_F16>{}); return;
    case DTYPE_BF16: f(dtype_constant<DTYPE_BF16>{}); return;
    case DTYPE_Q8_0: f(dtype_constant<DTYPE_Q8_0>{}); return;
    case DTYPE_Q4_0: f(dtype_constant<DTYPE_Q4_0>{}); return;
    case DTYPE_Q4_1: f(dtype_constant<DTYPE_Q4_1>{}); return;
    case DTYPE_Q5_0: f(dtype_constant<DTYPE_Q5_0>{}); return;
    case DTYPE_Q5_1: f(dtype_constant<DTYPE_Q5_1>{}); return;
    case DTYPE_Q2_K: f(dtype_constant<DTYPE_Q2_K>{}); return;
    case DTYPE_Q3_K: f(dtype_constant<DTYPE_Q3_K>{}); return;
    case DTYPE_Q4_K: f(dtype_constant<DTYPE_Q4_K>{}); return;
    case DTYPE_Q5_K: f(dtype_constant<DTYPE_Q5_K>{}); return;
    case DTYPE_Q6_K: f(dtype_constant<DTYPE_Q6_K>{}); return;
    case DTYPE_COUNT: return;
    }
}

#endif
