#define LOOPS logit_loops_portable
#define WIDTH 4
#define ANY(m) (((m)[0] | (m)[1] | (m)[2] | (m)[3]) != 0)
#include "serve/logits_impl.h"
