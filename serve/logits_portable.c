#define LOOPS logit_loops_portable
#define WIDTH 4
#include "serve/logits_impl.h"
