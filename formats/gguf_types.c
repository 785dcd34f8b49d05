#include "formats/gguf_types.h"

#include "base/dtype.h"

#include <stddef.h>

/* Numbers and block layouts as the GGUF specification and ggml have them. */
static const struct gguf_tensor_type types[] = {
    [0] = {"F32", DTYPE_F32, 1, 4},
    [1] = {"F16", DTYPE_F16, 1, 2},
    [2] = {"Q4_0", DTYPE_Q4_0, 32, 18},
    [3] = {"Q4_1", DTYPE_Q4_1, 32, 20},
    [4] = {"Q4_2", -1, 32, 0},
    [5] = {"Q4_3", -1, 32, 0},
    [6] = {"Q5_0", DTYPE_Q5_0, 32, 22},
    [7] = {"Q5_1", DTYPE_Q5_1, 32, 24},
    [8] = {"Q8_0", DTYPE_Q8_0, 32, 34},
    [9] = {"Q8_1", -1, 32, 36},
    [10] = {"Q2_K", DTYPE_Q2_K, 256, 84},
    [11] = {"Q3_K", DTYPE_Q3_K, 256, 110},
    [12] = {"Q4_K", DTYPE_Q4_K, 256, 144},
    [13] = {"Q5_K", DTYPE_Q5_K, 256, 176},
    [14] = {"Q6_K", DTYPE_Q6_K, 256, 210},
    [15] = {"Q8_K", -1, 256, 292},
    [16] = {"IQ2_XXS", -1, 256, 66},
    [17] = {"IQ2_XS", -1, 256, 74},
    [18] = {"IQ3_XXS", -1, 256, 98},
    [19] = {"IQ1_S", -1, 256, 50},
    [20] = {"IQ4_NL", -1, 32, 18},
    [21] = {"IQ3_S", -1, 256, 110},
    [22] = {"IQ2_S", -1, 256, 82},
    [23] = {"IQ4_XS", -1, 256, 136},
    [24] = {"I8", -1, 1, 1},
    [25] = {"I16", -1, 1, 2},
    [26] = {"I32", -1, 1, 4},
    [27] = {"I64", -1, 1, 8},
    [28] = {"F64", -1, 1, 8},
    [29] = {"IQ1_M", -1, 256, 56},
    [30] = {"BF16", DTYPE_BF16, 1, 2},
    [31] = {"Q4_0_4_4", -1, 32, 0},
    [32] = {"Q4_0_4_8", -1, 32, 0},
    [33] = {"Q4_0_8_8", -1, 32, 0},
    [34] = {"TQ1_0", -1, 256, 54},
    [35] = {"TQ2_0", -1, 256, 66},
    [36] = {"IQ4_NL_4_4", -1, 32, 0},
    [37] = {"IQ4_NL_4_8", -1, 32, 0},
    [38] = {"IQ4_NL_8_8", -1, 32, 0},
    [39] = {"MXFP4", -1, 32, 17},
};

const struct gguf_tensor_type *gguf_tensor_type(uint32_t number) {
    return number < sizeof types / sizeof *types ? &types[number] : NULL;
}
