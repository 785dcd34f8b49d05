#define LOOPS logit_loops_avx2
#define WIDTH 8
#include "serve/logits_impl.h"
