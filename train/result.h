/* train/result.h: a finished job's output, as others load it: a LoRA in PEFT's layout, a fully trained
 * model as a Hugging Face directory. */
#ifndef TPD_TRAIN_RESULT_H
#define TPD_TRAIN_RESULT_H

#include "model/model.h"
#include "train/job.h"
#include "train/tensors.h"

enum { RESULT_PATH = 4200 };

/* Takes all pieces (values alone) and writes the result as directory `out` (absolute, without links), by a temporary name beside it and a
 * rename. Nothing that is there is ever replaced: the result then goes to `out`-ID; but a directory that
 * has its very bytes is taken for it, so that doing it again after a crash is harmless. Where `out` leads
 * elsewhere by now (a link took a directory's place), it goes to `other`. where: where it is. */
int result_write(const char *out, const char *other, int64_t id, const struct job_spec *spec,
                 const struct model *base, struct host_tensors *t, char where[RESULT_PATH],
                 struct error *e);

#endif
