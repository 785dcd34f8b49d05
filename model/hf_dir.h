/* model/hf_dir.h: what stands beside the tensors in a Hugging Face model directory that tpd writes. Any
 * thread. */
#ifndef TPD_MODEL_HF_DIR_H
#define TPD_MODEL_HF_DIR_H

#include "model/model.h"

struct hf_companions {
    bool config_made; /* from a GGUF file's metadata: there was none to copy */
    bool tokenizer;   /* a tokenizer.json came along */
};

/* Writes config.json, and the tokenizer's and generation's files where the base has them, into dir.
 *
 * From a directory they come as they are. A GGUF file's own directory is looked into likewise if its
 * config.json is of the same shape as the file; else config.json is made from the metadata, `type` being
 * that of most tensors. ERR_CONFIG when the file has what a config.json cannot say. */
int hf_companions_write(struct hf_companions *out, const char *dir, const struct model *base,
                        enum dtype type, struct error *e);
/* Whether that will be possible, before hours of work. */
int hf_companions_check(const struct model *base, struct error *e);

#endif
