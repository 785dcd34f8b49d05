/* daemon/plan_report.h: the answer of the method `plan` and of `tpd plan`, as JSON.
 *
 * What it costs to serve a model (and to train it) is what the real code does on the plan backend
 * (model/planning.h); sizes come from where the engine and jobs take theirs. Any thread. */
#ifndef TPD_DAEMON_PLAN_REPORT_H
#define TPD_DAEMON_PLAN_REPORT_H

#include "daemon/speed.h"
#include "model/model.h"

#include <jansson.h>

struct plan_context {
    const struct model *loaded; /* when params name no model; or NULL */
    const struct model *draft;  /* its draft model, when params name neither; or NULL */
    int tp, draft_tp;           /* when params say none */
    size_t memory;              /* bytes a rank, when params say none; 0: this machine's, divided */
    int cores;                  /* of all ranks, when they are on CPUs */
    bool gpus;                  /* they are on GPUs, when params do not say */
    bool f32_activations;       /* as the setting activations = f32 */
    /* Of the whole machine, when params say nothing; 0 where it is not known. NULL: never known. */
    int (*speed)(void *arg, struct speed *out, struct error *e);
    void *arg;
};

/* params: checked against plan_params; NULL is an empty object. */
int plan_report(json_t **out, const json_t *params, const struct plan_context *context,
                struct error *e);

#endif
