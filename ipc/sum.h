/* ipc/sum.h: sums of vectors in the order that they are given, in fp32. Private to ipc/.
 * type is f32 or bf16. No buffer may overlap another. */
#ifndef TPD_IPC_SUM_H
#define TPD_IPC_SUM_H

#include "base/dtype.h"

/* out[n] = src[0] + src[1] + … + src[n_src-1], n_src >= 1, rounded once to type. */
void sum_all(void *out, const void *const *src, int n_src, size_t n, enum dtype type);
/* out[n] (f32) = a + b, each of its own type. */
void sum_pair(float *out, const void *a, enum dtype a_type, const void *b, enum dtype b_type,
              size_t n);
/* x[n] = a + x, rounded to x_type. */
void sum_onto(void *x, enum dtype x_type, const void *a, enum dtype a_type, size_t n);

#endif
