#define LOOPS logit_loops_avx512
#define WIDTH 16
#include "serve/logits_impl.h"
