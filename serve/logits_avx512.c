#include <immintrin.h>

#define LOOPS logit_loops_avx512
#define WIDTH 16
#define ANY(m) (_mm512_movepi32_mask((__m512i)(m)) != 0)
#include "serve/logits_impl.h"
