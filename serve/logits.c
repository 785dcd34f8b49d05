#include "serve/logits.h"

#include "kernels/kernels.h"

#include <string.h>

const struct logit_loops *logit_loops(void) {
#if defined(__x86_64__)
    const char *level = kernels_cpu_level();
    if (strcmp(level, "avx512") == 0) return &logit_loops_avx512;
    if (strcmp(level, "avx2") == 0) return &logit_loops_avx2;
#endif
    return &logit_loops_portable;
}
