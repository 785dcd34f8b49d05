/* base/dequant.h: quantised blocks taken apart.
 *
 * Every block type is codes (small unsigned integers) with a scale and an offset for each run of
 * `run` elements:   value[i] = scale[i / run] * code[i] + offset[i / run].
 * The product is exact in fp32 for every legal block, so the value is rounded once at most, with or
 * without a fused multiply-add. Any thread. */
#ifndef TPD_BASE_DEQUANT_H
#define TPD_BASE_DEQUANT_H

#include "base/dtype.h"

enum { QUANT_BLOCK_MAX = 256, QUANT_RUNS_MAX = 16 };

/* Elements that share a scale: 16 or 32. */
int quant_run(enum dtype type);
/* codes: [dtype_info(type)->block] */
void quant_block_codes(enum dtype type, const uint8_t *block, uint8_t *codes);
/* scale, offset: [block / run] */
void quant_block_scales(enum dtype type, const uint8_t *block, float *scale, float *offset);

#endif
