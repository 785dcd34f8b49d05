/* daemon/results.h: what jobs left on disk, and when it goes: by finetune.delete, or with keep_results when a
 * later job of the name is submitted. What is in use never goes. Worker pool. */
#ifndef TPD_DAEMON_RESULTS_H
#define TPD_DAEMON_RESULTS_H

#include "daemon/training.h"

/* Removes a job's result directory; one that is not there is no error. ERR_CONFLICT while an adapter that is
 * loaded (or is the version before) or the model is of it, or when another job left the same. */
int results_remove(struct training *t, const struct job *job, struct error *e);
/* Of the results of that name all but the newest `keep_results` and those in use; a failure is logged. */
void results_prune(struct training *t, const char *name);

#endif
