/* formats/gguf_names.h: GGUF tensor names as Hugging Face has them. */
#ifndef TPD_FORMATS_GGUF_NAMES_H
#define TPD_FORMATS_GGUF_NAMES_H

#include "formats/gguf.h"

/* "blk.3.attn_q.weight" → "model.layers.3.self_attn.q_proj.weight"; a name with no counterpart
 * ("rope_freqs.weight") stays as it is. To be freed by the caller; NULL: no memory. */
char *gguf_name_to_hf(struct gguf_string name);

#endif
