/* model/quant_blocks.h: numbers made into the blocks of a quantised type; base/dequant takes them apart.
 *
 * Scales are searched, not taken from the extremes alone: of some twenty candidates each is solved for the
 * scale (and offset) of least weighted squared error, and the best is kept. The same numbers give the
 * same bytes, on any machine and whatever the number of threads. Any thread. */
#ifndef TPD_MODEL_QUANT_BLOCKS_H
#define TPD_MODEL_QUANT_BLOCKS_H

#include "base/dtype.h"

/* Whether rows of this type can be made: Q8_0, Q4_0, Q4_1. */
bool quant_row_makes(enum dtype type);
/* values: [cols], whole blocks; out: dtype_row_bytes(type, cols). False: a value is infinite or no
 * number, and what is in out means nothing. */
bool quant_row(enum dtype type, const float *values, int64_t cols, uint8_t *out);

#endif
