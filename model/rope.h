/* model/rope.h: the rotary frequencies of a configuration. Private to model/. */
#ifndef TPD_MODEL_ROPE_H
#define TPD_MODEL_ROPE_H

#include "model/config.h"

/* inv_freq[head_dim / 2] and *scale (what cosines and sines are multiplied by), as transformers'
 * modeling_rope_utils computes them. Dynamic scaling gives the unscaled frequencies here; the rest
 * happens by row (struct rope_freqs). factors: GGUF's rope_freqs tensor, or NULL. */
void rope_inv_freq(const struct model_config *config, const float *factors, float *inv_freq,
                   float *scale);

#endif
