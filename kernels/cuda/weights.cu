/* Matrices: from the file's rows to the layout of quant.h, and back to rows of numbers. */
#include "kernels/cuda/quant.h"

/* --- in -------------------------------------------------------------------------------------------- */

int cuda_weight_new(struct kctx *base, enum dtype type, int32_t rows, int32_t cols, struct weight *out,
                    struct error *e) {
    *out = {};
    out->type = type;
    out->rows = rows;
    out->cols = cols;
    if (rows < 0 || cols < 0 || cols % dtype_info(type)->block != 0)
        return error_set(e, ERR_INTERNAL, "a %s matrix cannot have %d x %d elements",
                         dtype_info(type)->name, rows, cols);
    out->bytes = matrix_bytes(type, rows, cols);
    return cuda_mem_alloc(base, MEM_WEIGHTS, out->bytes, &out->data, e);
}

void cuda_weight_free(struct kctx *base, struct weight *w) {
    cuda_mem_free(base, w->data);
    *w = {};
}

/* An array with one row of `words` fields a block after the other, `ld` bytes from row to row. */
static void describe(struct weight_layout *out, const char *name, const char *type, size_t offset,
                     int32_t rows, size_t blocks, size_t words, size_t bytes, size_t ld) {
    out->arrays[out->n_arrays++] = {
        name, type, 0, 0, offset, {(size_t)rows, blocks, 1, words}, {ld, words * bytes, 0, bytes}};
}

static void describe_codes(struct weight_layout *out, size_t offset, int32_t rows, size_t blocks,
                           int bits, int shift) {
    size_t words = (size_t)(out->columns * bits / 32);
    if (!bits) return;
    describe(out, "codes", "u32", offset, rows, blocks, words, 4, 4 * words * blocks);
    out->arrays[out->n_arrays - 1].bits = bits;
    out->arrays[out->n_arrays - 1].shift = shift;
}

void cuda_weight_layout(const struct weight *w, struct weight_layout *out) {
    struct matrix_view view = matrix_view(w);
    *out = {};
    out->lanes = out->columns = 1;
    if (!dtype_is_quantised(w->type)) {
        const char *type = w->type == DTYPE_F32 ? "f32" : w->type == DTYPE_F16 ? "f16" : "bf16";
        size_t bytes = plain_size(w->type);
        describe(out, "values", type, 0, w->rows, (size_t)w->cols, 1, bytes, bytes * (size_t)view.ld);
        return;
    }
    struct quant_format f = quant_format(w->type);
    size_t blocks = (size_t)(w->cols / f.block), d_at = (size_t)(view.d - w->data),
           d_bytes = (size_t)f.d_bytes;
    out->columns = f.block;
    describe(out, "scale", "f16", d_at, w->rows, blocks, 1, d_bytes, d_bytes * blocks);
    if (d_bytes == 4)
        describe(out, "minimum", "f16", d_at + 2, w->rows, blocks, 1, d_bytes, d_bytes * blocks);
    if (f.sub_bytes)
        describe(out, "sub_scales", "u8", (size_t)(view.sub - w->data), w->rows, blocks,
                 (size_t)f.sub_bytes, 1, (size_t)f.sub_bytes * blocks);
    describe_codes(out, 0, w->rows, blocks, f.low_bits, 0);
    describe_codes(out, (size_t)(view.high - w->data), w->rows, blocks, f.high_bits, f.low_bits);
}

static __device__ __forceinline__ uint32_t nibble(ptr<const uint8_t> from, int i, int n) {
    uint32_t byte = from[i / (2 * n) * n + i % n];
    return i / n % 2 ? byte >> 4 : byte & 15;
}
static __device__ __forceinline__ uint32_t crumb(ptr<const uint8_t> from, int i) {
    uint32_t byte = from[i / 128 * 32 + i % 32];
    return byte >> (2 * (i / 32 % 4)) & 3;
}
static __device__ __forceinline__ uint32_t one_bit(ptr<const uint8_t> from, int byte, int bit) {
    uint32_t value = from[byte];
    return value >> bit & 1;
}

/* Code i of a block as the file has it. */
static __device__ uint32_t file_code(enum dtype type, ptr<const uint8_t> b, int i) {
    switch (type) {
    case DTYPE_Q8_0: return (uint32_t)b[2 + i] ^ 0x80;
    case DTYPE_Q4_0: return nibble(b + 2, i, 16);
    case DTYPE_Q4_1: return nibble(b + 4, i, 16);
    case DTYPE_Q5_0: return nibble(b + 6, i, 16) | one_bit(b + 2, i / 8, i % 8) << 4;
    case DTYPE_Q5_1: return nibble(b + 8, i, 16) | one_bit(b + 4, i / 8, i % 8) << 4;
    case DTYPE_Q2_K: return crumb(b + 16, i);
    case DTYPE_Q3_K: return crumb(b + 32, i) | one_bit(b, i % 32, i / 32) << 2;
    case DTYPE_Q4_K: return nibble(b + 16, i, 32);
    case DTYPE_Q5_K: return nibble(b + 48, i, 32) | one_bit(b + 16, i % 32, i / 32) << 4;
    case DTYPE_Q6_K: return nibble(b, i, 64) | crumb(b + 128, i) << 4;
    case DTYPE_F32:
    case DTYPE_F16:
    case DTYPE_BF16:
    case DTYPE_COUNT: break;
    }
    return 0;
}

/* Rows row … row+n-1 of w from `file` (rows of the file, one after the other); a thread for each unit.
 * Bytes: those of the rows, read and written once each. No FLOPs. */
__global__ void k_pack(struct matrix_view w, enum dtype type, int32_t row, int32_t n,
                       ptr<const uint8_t> file) {
    const struct quant_format f = quant_format(type);
    int64_t units = (int64_t)n * (w.cols / UNIT);
    int64_t mine = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (mine >= units) return;
    int64_t unit = (int64_t)row * (w.cols / UNIT) + mine;
    int per_block = f.block / UNIT, part = (int)(unit % per_block);
    ptr<const uint8_t> block = file + mine / per_block * f.block_bytes;
    uint32_t low_mask = (1u << f.low_bits) - 1;
    uint32_t low = 0, high = 0;
    for (int i = 0; i < UNIT; i++) {
        uint32_t code = file_code(type, block, part * UNIT + i);
        int low_at = i * f.low_bits, high_at = i * f.high_bits;
        low |= (code & low_mask) << (low_at % 32);
        if ((low_at + f.low_bits) % 32 == 0) {
            (ptr<uint32_t>(w.data) + unit * f.low_bits)[low_at / 32] = low;
            low = 0;
        }
        if (f.high_bits == 0) continue;
        high |= code >> f.low_bits << (high_at % 32);
        if ((high_at + f.high_bits) % 32 == 0) {
            (ptr<uint32_t>(w.high) + unit * f.high_bits)[high_at / 32] = high;
            high = 0;
        }
    }
    if (part != 0) return;
    for (int i = 0; i < f.sub_bytes; i++)
        (ptr<uint8_t>(w.sub) + unit / per_block * f.sub_bytes)[i] = block[f.sub_at + i];
    for (int i = 0; i < f.d_bytes; i++)
        (ptr<uint8_t>(w.d) + unit / per_block * f.d_bytes)[i] = block[f.d_at + i];
}

/* n rows of bytes, one after the other on the device `ld` bytes apart. */
static void upload_rows(struct kctx *base, dev_addr to, size_t ld, const uint8_t *from, size_t stride,
                        size_t bytes, int32_t n) {
    if (stride == bytes && ld == bytes) cuda_upload(base, to, from, bytes * (size_t)n);
    else
        for (int32_t i = 0; i < n; i++)
            cuda_upload(base, to + ld * (size_t)i, from + stride * (size_t)i, bytes);
}

static void put_quantised(struct cuda_context *c, const struct weight *w, int32_t row, int32_t n,
                          const uint8_t *from, size_t stride) {
    size_t bytes = dtype_row_bytes(w->type, w->cols);
    int32_t at_once = put_rows(w->type, w->cols, n);
    struct matrix_view view = matrix_view(w);
    enum dtype type = w->type;
    for (int32_t done = 0, m; done < n; done += m) {
        m = n - done < at_once ? n - done : at_once;
        dev_addr file = cuda_scratch(c, (size_t)m * bytes);
        if (!file) return;
        upload_rows(&c->base, file, bytes, from + stride * (size_t)done, stride, bytes, m);
        unsigned blocks = blocks_for((size_t)m * (size_t)(w->cols / UNIT), 128);
        LAUNCH(k_pack, blocks, 128, 0, c->stream, view, type, row + done, m, ptr<const uint8_t>(file));
    }
    cuda_launched(c, "weight_put");
}

void cuda_weight_put(struct kctx *base, const struct weight *w, int32_t row, int32_t n, const void *from,
                     size_t stride) {
    if (n <= 0 || w->cols == 0 || !cuda_begin(base)) return;
    struct cuda_context *c = cuda_of(base);
    auto *rows = static_cast<const uint8_t *>(from);
    if (row < 0 || row > w->rows - n) {
        cuda_refuse(c, "rows %d to %d put into a matrix of %d", row, row + n, w->rows);
        return;
    }
    if (dtype_is_quantised(w->type)) {
        put_quantised(c, w, row, n, rows, stride);
        return;
    }
    size_t size = plain_size(w->type), ld = size * (size_t)plain_ld(w->type, w->cols);
    upload_rows(base, w->data + ld * (size_t)row, ld, rows, stride, size * (size_t)w->cols, n);
}

/* --- out ------------------------------------------------------------------------------------------- */

static __device__ __forceinline__ void store_value(ptr<float> to, int64_t i, float x) { to[i] = x; }
static __device__ __forceinline__ void store_value(ptr<__nv_bfloat16> to, int64_t i, float x) {
    to[i] = __float2bfloat16_rn(x);
}

/* A thread for each unit of rows row … row+n-1. Bytes: the rows as stored, and 2 or 4 * n * cols out.
 * FLOPs: 2 an element. */
template <enum dtype type, class T>
__global__ void k_dequantise(ptr<T> out, struct matrix_view w, int32_t row, int32_t n) {
    int32_t units = (w.cols + UNIT - 1) / UNIT;
    int64_t mine = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (mine >= (int64_t)n * units) return;
    int32_t r = (int32_t)(mine / units), u = (int32_t)(mine % units);
    float values[UNIT];
    matrix_values<type>(w, row + r, u, values);
    for (int i = 0; i < UNIT && u * UNIT + i < w.cols; i++)
        store_value(out, (int64_t)r * w.cols + u * UNIT + i, values[i]);
}

template <enum dtype type>
static void dequantise(struct cuda_context *c, dev_addr out, bool as_f32, const struct weight *w,
                       int32_t row, int32_t n) {
    struct matrix_view view = matrix_view(w);
    unsigned blocks = blocks_for((size_t)n * ((size_t)w->cols + UNIT - 1) / UNIT + (size_t)n, 128);
    if (as_f32) {
        auto *kernel = k_dequantise<type, float>;
        LAUNCH(kernel, blocks, 128, 0, c->stream, ptr<float>(out), view, row, n);
    } else {
        auto *kernel = k_dequantise<type, __nv_bfloat16>;
        LAUNCH(kernel, blocks, 128, 0, c->stream, ptr<__nv_bfloat16>(out), view, row, n);
    }
}

void cuda_dequantise(struct cuda_context *c, dev_addr out, bool as_f32, const struct weight *w,
                     int32_t row, int32_t n) {
    if (n <= 0 || w->cols == 0) return;
    with_type(w->type, [&](auto t) { dequantise<decltype(t)::value>(c, out, as_f32, w, row, n); });
    cuda_launched(c, "dequantising");
}
