/* train/job.h: what a fine-tune job asks for, as the JSON of finetune.submit says it.
 *
 * Pure data; any thread. Made by job_spec_parse (every key checked, unknown ones refused by name),
 * freed by job_spec_free. Defaults stand in job.c, and in README.md for people. */
#ifndef TPD_TRAIN_JOB_H
#define TPD_TRAIN_JOB_H

#include "base/json.h"
#include "model/train.h"

enum job_schedule { SCHEDULE_COSINE, SCHEDULE_LINEAR, SCHEDULE_CONSTANT };
enum job_loss_on { LOSS_ON_ALL, LOSS_ON_COMPLETION };
enum job_compute { COMPUTE_AUTO, COMPUTE_BF16, COMPUTE_F32 };
enum job_checkpointing { CHECKPOINTING_OFF, CHECKPOINTING_ON, CHECKPOINTING_AUTO };

struct job_spec {
    char *name;      /* [A-Za-z0-9_][A-Za-z0-9._-]{0,63}; default "job" */
    char *data;      /* as given; resolved under data_dir by the daemon */
    char *eval_data; /* NULL = none */
    double eval_fraction;
    bool skip_bad;
    enum train_method method;
    struct {
        int32_t r;
        double alpha, dropout;
        bool rslora;
        unsigned targets; /* bits, as in struct train_options */
    } lora;
    double epochs;     /* > 0 */
    int64_t max_steps; /* 0 = by epochs */
    int32_t batch_size, grad_accum, seq_len;
    bool packing;
    enum job_loss_on loss_on;
    double lr;
    enum job_schedule schedule;
    double warmup_ratio, weight_decay, beta1, beta2, eps, clip /* 0 = off */;
    uint64_t seed;
    enum job_checkpointing grad_checkpointing;
    enum job_compute compute; /* "auto": bf16 where the CPU multiplies it, else f32 */
    bool sequence_parallel;
    int64_t save_every, eval_every; /* steps; 0 = only at the end */
    int32_t keep;                   /* newest checkpoints kept, beside the best */
    int32_t patience;               /* evals without betterment before an early stop; 0 = off */
    bool result_best;               /* the result is the best eval's weights, not the last ones */
    char *out;                      /* under state_dir; NULL = adapters/NAME or models/NAME */
    bool resume;                    /* "auto" and true; false starts anew */
    char *activate_as;              /* NULL = do not activate */
    bool activate_if_better;        /* "eval_improves", else "always" */
    char *once;                     /* key of --once, or NULL */
    bool since_last;                /* only what is new in data since this name's last success */
    double deadline_s;              /* paused that long after it was asked for; 0 = never */
};

/* ERR_PARAMS with notes field ("lora.r"), expected, got; then *out needs no free. */
int job_spec_parse(struct job_spec *out, const json_t *json, struct error *e);
void job_spec_free(struct job_spec *spec);
/* With every default filled in; job_spec_parse takes it back. */
json_t *job_spec_json(const struct job_spec *spec);

#endif
