/* train/result.h: a finished job's output, as others load it: a LoRA in PEFT's layout, a fully trained
 * model as a Hugging Face directory. */
#ifndef TPD_TRAIN_RESULT_H
#define TPD_TRAIN_RESULT_H

#include "model/model.h"
#include "train/job.h"
#include "train/tensors.h"

/* Writes directory `out` by a temporary name beside it and a rename; one that is there is replaced. */
int result_write(const char *out, const struct job_spec *spec, const struct model *base,
                 const struct host_tensors *t, struct error *e);

#endif
