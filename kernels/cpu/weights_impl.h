/* Weights out of panels: for each type, run_TYPE finds what QUANT_RUN consecutive k share (scale,
 * offset, place of the codes), and weight_TYPE gives 16 weights of the run's k number j. The
 * products are exact, so the weights are those of dtype_row_to_f32, bit for bit. */

/* The low bits as a number, and as one around 0: the highest code is the most positive. */
INLINE vf code_unsigned(vi a, int bits) { return v_from_i(i_and(a, i_set1((1 << bits) - 1))); }
INLINE vf code_signed(vi a, int bits) {
    return v_from_i(i_add(i_and(a, i_set1((1 << bits) - 1)), i_set1(-(1 << (bits - 1)))));
}
#ifndef VEC_LOOKS_UP
INLINE vf v_code2(vi a) { return code_unsigned(a, 2); }
INLINE vf v_code4(vi a) { return code_unsigned(a, 4); }
INLINE vf v_code5(vi a) { return code_unsigned(a, 5); }
INLINE vf v_code3s(vi a) { return code_signed(a, 3); }
INLINE vf v_code4s(vi a) { return code_signed(a, 4); }
INLINE vf v_code5s(vi a) { return code_signed(a, 5); }
#endif

struct run {
    vf scale, offset;
    vi high;            /* a plane's word, its first code of the run in the lowest bits */
    const uint8_t *low; /* the words of the other plane */
};

/* One word of every lane. */
enum { WORD = 4 * LANES, HALF = 2 * LANES };

INLINE const uint8_t *block_at(const uint8_t *panel, int k, int block, int bytes) {
    return panel + (size_t)(k / block) * (size_t)(LANES * bytes);
}
INLINE vi word_at(const uint8_t *words, int i) { return i_load(words + WORD * i); }
INLINE vf v_minus(vf a) { return v_sub(v_zero(), a); }

/* Where a plane's word has code j, when its codes have that many bits. */
INLINE int code_at(int j, int bits) { return 8 * (j % 4) + j / 4 * bits; }
/* a's bit (or the bits above it) moved from one place to another. */
INLINE vi i_moved(vi a, int from, int to) {
    return from > to ? i_srl(a, from - to) : i_sll(a, to - from);
}

/* The low bits of a, then code j of a plane of single bits above them, at bit position at. */
INLINE vi with_bit(vi a, int bits, vi high, int j, int at) {
    vi bit = i_moved(high, code_at(j, 1), at);
    return i_or(i_and(a, i_set1((1 << bits) - 1)), i_and(bit, i_set1(1 << at)));
}

/* --- plain types ------------------------------------------------------------------------------ */

INLINE struct run run_f32(const uint8_t *panel, int k) {
    return (struct run){.low = panel + (size_t)k * WORD};
}
INLINE vf weight_f32(const struct run *r, int j) {
    return v_load((const float *)(const void *)(r->low + WORD * j));
}

INLINE struct run run_f16(const uint8_t *panel, int k) {
    return (struct run){.low = panel + (size_t)k * HALF};
}
INLINE vf weight_f16(const struct run *r, int j) { return v_f16(r->low + HALF * j); }

INLINE struct run run_bf16(const uint8_t *panel, int k) { return run_f16(panel, k); }
INLINE vf weight_bf16(const struct run *r, int j) {
    vi pair = word_at(r->low, j / 2);
    return v_cast(j % 2 ? i_and(pair, i_set1((int)0xFFFF0000)) : i_sll(pair, 16));
}

/* --- blocks of 32 ----------------------------------------------------------------------------- */

INLINE struct run run_q8_0(const uint8_t *panel, int k) {
    const uint8_t *b = block_at(panel, k, 32, 34);
    return (struct run){.scale = v_f16(b), .low = b + HALF};
}
INLINE vf weight_q8_0(const struct run *r, int j) {
    vi word = word_at(r->low, j / 4);
    return v_mul(code_signed(i_srl(word, 8 * (j % 4)), 8), r->scale);
}

INLINE vi nibble_at(const struct run *r, int j) {
    return i_srl(word_at(r->low, j / 8), code_at(j % 8, 4));
}

INLINE struct run run_q4_0(const uint8_t *panel, int k) {
    const uint8_t *b = block_at(panel, k, 32, 18);
    return (struct run){.scale = v_f16(b), .low = b + HALF};
}
INLINE vf weight_q4_0(const struct run *r, int j) {
    return v_mul(v_code4s(nibble_at(r, j)), r->scale);
}

INLINE struct run run_q4_1(const uint8_t *panel, int k) {
    const uint8_t *b = block_at(panel, k, 32, 20);
    return (struct run){.scale = v_f16(b), .offset = v_f16(b + HALF), .low = b + 2 * HALF};
}
INLINE vf weight_q4_1(const struct run *r, int j) {
    return v_fma(v_code4(nibble_at(r, j)), r->scale, r->offset);
}

INLINE vi five_bits(const struct run *r, int j) {
    return with_bit(nibble_at(r, j), 4, r->high, j, 4);
}

INLINE struct run run_q5_0(const uint8_t *panel, int k) {
    const uint8_t *b = block_at(panel, k, 32, 22);
    return (struct run){.scale = v_f16(b), .high = i_load(b + HALF), .low = b + HALF + WORD};
}
INLINE vf weight_q5_0(const struct run *r, int j) {
    return v_mul(v_code5s(five_bits(r, j)), r->scale);
}

INLINE struct run run_q5_1(const uint8_t *panel, int k) {
    const uint8_t *b = block_at(panel, k, 32, 24);
    return (struct run){.scale = v_f16(b),
                        .offset = v_f16(b + HALF),
                        .high = i_load(b + 2 * HALF),
                        .low = b + 2 * HALF + WORD};
}
INLINE vf weight_q5_1(const struct run *r, int j) {
    return v_fma(v_code5(five_bits(r, j)), r->scale, r->offset);
}

/* --- blocks of 256 ---------------------------------------------------------------------------- */

/* Byte i of words that hold 4 a lane. */
INLINE vi byte_of(const uint8_t *words, int i) { return i_srl(word_at(words, i / 4), 8 * (i % 4)); }
INLINE vi low_bits(vi a, int bits) { return i_and(a, i_set1((1 << bits) - 1)); }

INLINE struct run run_q2_k(const uint8_t *panel, int k) {
    const uint8_t *b = block_at(panel, k, 256, 84);
    int i = k % 256 / 16;
    vi both = byte_of(b + 2 * HALF, i);
    return (struct run){
        .scale = v_mul(v_f16(b), v_code4(both)),
        .offset = v_minus(v_mul(v_f16(b + HALF), v_code4(i_srl(both, 4)))),
        .high = word_at(b + 2 * HALF + 4 * WORD, i),
    };
}
INLINE vf weight_q2_k(const struct run *r, int j) {
    return v_fma(v_code2(i_srl(r->high, code_at(j, 2))), r->scale, r->offset);
}

/* 16 scales of 6 bits: nibbles in bytes 0 … 7 (low ones first), pairs of bits in bytes 8 … 11. */
INLINE struct run run_q3_k(const uint8_t *panel, int k) {
    const uint8_t *b = block_at(panel, k, 256, 110), *scales = b + HALF;
    int i = k % 256 / 16;
    vi low = low_bits(i_srl(byte_of(scales, i % 8), 4 * (i / 8)), 4);
    vi high = low_bits(i_srl(byte_of(scales + 2 * WORD, i % 4), 2 * (i / 4)), 2);
    vi scale = i_add(i_or(low, i_sll(high, 4)), i_set1(-32));
    const uint8_t *bits = scales + 3 * WORD;
    return (struct run){.scale = v_mul(v_f16(b), v_from_i(scale)),
                        .high = i_srl(word_at(bits, i / 2), 4 * (i % 2)),
                        .low = bits + 8 * WORD + (size_t)WORD * (size_t)i};
}
INLINE vf weight_q3_k(const struct run *r, int j) {
    vi code = with_bit(i_srl(i_load(r->low), code_at(j, 2)), 2, r->high, j, 2);
    return v_mul(v_code3s(code), r->scale);
}

/* 8 scales and 8 minima of 6 bits: see scales_q4_k in base/dequant.c. */
INLINE struct run run_k_scales(const uint8_t *b, int i) {
    const uint8_t *s = b + 2 * HALF;
    vi scale, min;
    if (i < 4) {
        scale = low_bits(byte_of(s, i), 6);
        min = low_bits(byte_of(s, i + 4), 6);
    } else {
        vi low = byte_of(s, i + 4);
        scale = i_or(low_bits(low, 4), i_sll(low_bits(i_srl(byte_of(s, i - 4), 6), 2), 4));
        min = i_or(low_bits(i_srl(low, 4), 4), i_sll(low_bits(i_srl(byte_of(s, i), 6), 2), 4));
    }
    return (struct run){.scale = v_mul(v_f16(b), v_from_i(scale)),
                        .offset = v_minus(v_mul(v_f16(b + HALF), v_from_i(min)))};
}

INLINE struct run run_q4_k(const uint8_t *panel, int k) {
    const uint8_t *b = block_at(panel, k, 256, 144);
    int i = k % 256 / 32;
    struct run r = run_k_scales(b, i);
    r.low = b + 2 * HALF + 3 * WORD + (size_t)(4 * WORD) * (size_t)i;
    return r;
}
INLINE vf weight_q4_k(const struct run *r, int j) { return weight_q4_1(r, j); }

INLINE struct run run_q5_k(const uint8_t *panel, int k) {
    const uint8_t *b = block_at(panel, k, 256, 176), *bits = b + 2 * HALF + 3 * WORD;
    int i = k % 256 / 32;
    struct run r = run_k_scales(b, i);
    r.high = word_at(bits, i);
    r.low = bits + 8 * WORD + (size_t)(4 * WORD) * (size_t)i;
    return r;
}
INLINE vf weight_q5_k(const struct run *r, int j) { return weight_q5_1(r, j); }

INLINE struct run run_q6_k(const uint8_t *panel, int k) {
    const uint8_t *b = block_at(panel, k, 256, 210), *pairs = b + HALF + 4 * WORD;
    int i = k % 256 / 16;
    vi scale = i_sra(i_sll(byte_of(b + HALF, i), 24), 24);
    return (struct run){.scale = v_mul(v_f16(b), v_from_i(scale)),
                        .high = word_at(pairs, i),
                        .low = pairs + 16 * WORD + (size_t)(2 * WORD) * (size_t)i};
}
INLINE vf weight_q6_k(const struct run *r, int j) {
    vi pair = i_moved(r->high, code_at(j, 2), 4);
    vi code = i_or(low_bits(nibble_at(r, j), 4), i_and(pair, i_set1(0x30)));
    return v_mul(code_signed(code, 6), r->scale);
}

/* type, the suffix of its functions, k that share a run. Plain types: as many as unroll well. */
#define WEIGHT_TYPES(X)                                                                       \
    X(DTYPE_F32, f32, 8) X(DTYPE_F16, f16, 8) X(DTYPE_BF16, bf16, 8) X(DTYPE_Q8_0, q8_0, 32)    \
    X(DTYPE_Q4_0, q4_0, 32) X(DTYPE_Q4_1, q4_1, 32) X(DTYPE_Q5_0, q5_0, 32)                   \
    X(DTYPE_Q5_1, q5_1, 32) X(DTYPE_Q2_K, q2_k, 16) X(DTYPE_Q3_K, q3_k, 16)                   \
    X(DTYPE_Q4_K, q4_k, 32) X(DTYPE_Q5_K, q5_k, 32) X(DTYPE_Q6_K, q6_k, 16)

/* --- outputs ----------------------------------------------------------------------------------- */

/* What panel p gives to y: lanes beyond the matrix are not written. */
INLINE void put_outputs(const struct panels *w, int32_t panel, vf sum, const float *bias,
                        float *y) {
    int32_t at = panel * LANES, n = w->rows - at;
    if (n >= LANES) {
        v_store(y + at, bias ? v_add(sum, v_load(bias + at)) : sum);
    } else {
        v_store_n(y + at, bias ? v_add(sum, v_load_n(bias + at, n)) : sum, n);
    }
}

/* total[s] = the sums of panel[s] with one row of x, in the form that the function reads. */
typedef void streams_fn(const uint8_t *const *panel, int32_t cols, const void *x, vf *total);

/* y of panels from … to-1. They are read as MATVEC_STREAMS runs side by side: a core waits for memory on many
 * lines at once, and each stream goes straight on from panel to panel. */
INLINE void panels_by_streams(const struct panels *w, int32_t from, int32_t to, streams_fn *sums,
                              const void *x, const float *bias, float *y) {
    int32_t stride = (to - from + MATVEC_STREAMS - 1) / MATVEC_STREAMS;
    for (int32_t i = 0; i < stride; i++) {
        const uint8_t *panel[MATVEC_STREAMS];
        vf total[MATVEC_STREAMS];
        for (int s = 0; s < MATVEC_STREAMS; s++) {
            int32_t p = from + s * stride + i;
            panel[s] = w->data + (size_t)(p < to ? p : from + i) * w->panel_bytes;
        }
        sums(panel, w->cols, x, total);
        for (int s = 0; s < MATVEC_STREAMS; s++) {
            int32_t p = from + s * stride + i;
            if (p < to) put_outputs(w, p, total[s], bias, y);
        }
    }
}
