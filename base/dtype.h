/* base/dtype.h: the element types that model files hold.
 *
 * A quantised type stores a fixed block of elements along the inner (column) dimension; a row is a
 * whole number of blocks. Layouts are those of the GGUF specification (ggml-quants). */
#ifndef TPD_BASE_DTYPE_H
#define TPD_BASE_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum dtype {
    DTYPE_F32,
    DTYPE_F16,
    DTYPE_BF16,
    DTYPE_Q8_0,
    DTYPE_Q4_0,
    DTYPE_Q4_1,
    DTYPE_Q5_0,
    DTYPE_Q5_1,
    DTYPE_Q2_K,
    DTYPE_Q3_K,
    DTYPE_Q4_K,
    DTYPE_Q5_K,
    DTYPE_Q6_K,
    DTYPE_COUNT
};

struct dtype_info {
    const char *name;  /* "bf16", "q4_k" */
    int block;         /* elements in a block; 1 for plain types */
    int block_bytes;   /* bytes in a block */
};

const struct dtype_info *dtype_info(enum dtype type);
bool dtype_is_quantised(enum dtype type);
/* Bytes of a row of cols elements; cols must be a multiple of the block. */
size_t dtype_row_bytes(enum dtype type, int64_t cols);
/* Looks a name up without regard to case; returns -1 when there is none. */
int dtype_from_name(const char *name);

/* One number, bit for bit as IEEE says; round to nearest even. */
float f16_to_f32(uint16_t half);
uint16_t f32_to_f16(float value);
float bf16_to_f32(uint16_t value);
uint16_t f32_to_bf16(float value);

/* Dequantises one row of cols elements (the reference: exact, portable, slow). */
void dtype_row_to_f32(enum dtype type, const void *row, float *out, int64_t cols);

#ifdef __cplusplus
}
#endif

#endif
