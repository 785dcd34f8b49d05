#include "serve/logits.h"

#include "kernels/kernels.h"

#include <string.h>

const struct logit_loops *logit_loops(void) {
#if defined(__x86_64__)
    const char *level = kernels_cpu_level();
    if (strncmp(level, "avx512", 6) == 0 || strcmp(level, "amx") == 0) return &logit_loops_avx512;
    if (strncmp(level, "avx", 3) == 0) return &logit_loops_avx2;
#endif
    return &logit_loops_portable;
}
