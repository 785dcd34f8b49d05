/* model/adapter.h: a LoRA on disk (PEFT's layout) and in use on the ranks.
 *
 * `struct adapter` is the host's view, checked whole against the model when it is opened; read-only, any
 * thread. shard_adapter_set puts it into a slot of a shard; the rows of a sequence whose step says that
 * slot then get y += scale (x A^T) B^T at every target. Several slots may be used in one step. */
#ifndef TPD_MODEL_ADAPTER_H
#define TPD_MODEL_ADAPTER_H

#include "model/model.h"

struct adapter;

/* dir: adapter_config.json and adapter_model.safetensors. ERR_BAD_FILE naming file and tensor or key when
 * it is no LoRA, when a shape does not fit the model, or when it asks for what is not done here (bias,
 * modules_to_save, DoRA). */
int adapter_open(struct adapter **out, const struct model *model, const char *dir, struct error *e);
void adapter_close(struct adapter *a);
int32_t adapter_rank(const struct adapter *a);
float adapter_scale(const struct adapter *a);
/* Bits as in struct train_options: the matrices that it has in any layer. */
unsigned adapter_targets(const struct adapter *a);
/* Tensor `name` as fp32 [rows, cols] to out; zeros (and false) when it has none of that name. */
bool adapter_read(const struct adapter *a, const char *name, size_t floats, float *out);
/* After reads: ERR_BAD_FILE when the file was cut short meanwhile. */
int adapter_check(const struct adapter *a, struct error *e);

enum { SHARD_ADAPTERS = 16 };

/* On the rank's thread, between steps. NULL empties the slot. */
int shard_adapter_set(struct shard *shard, int slot, const struct adapter *a, struct error *e);

#endif
