#include <immintrin.h>

#define LOOPS logit_loops_avx2
#define WIDTH 8
#define ANY(m) (_mm256_movemask_ps((__m256)(m)) != 0)
#include "serve/logits_impl.h"
