/* tests/unit/job_scene.h: one fine-tune job of the tiny model in a directory of its own, driven unit by
 * unit as the engine does it, stopped and started at will. Failures fail the test. */
#ifndef TPD_TESTS_JOB_SCENE_H
#define TPD_TESTS_JOB_SCENE_H

#include "tests/unit/model_runner.h"
#include "train/trainer.h"

#define SCENE_MODEL "tests/data/models/tiny-chat"

struct scene {
    char dir[64], data[96];
    struct jobs *jobs;
    struct tokenizer *tokenizer;
    int64_t job;
    int stop_after; /* units; 0 = never */
    int units;      /* done */
    const struct activator *activator; /* NULL: nothing is activated */
    void (*after_unit)(struct scene *s); /* or NULL */
};

void scene_open(struct scene *s);
void scene_close(struct scene *s);
/* `more` is added to the job's keys: ", \"lr\": 1". */
void scene_submit(struct scene *s, const char *more);
/* Until it ends, is paused, or stop_after units are done; then as the daemon's end does. */
void scene_run(struct scene *s, int tp);
/* Stops and starts again and again, after `piece` units and ever more, as a daemon does. */
void scene_run_in_pieces(struct scene *s, int piece, int tp);
/* To be freed with job_free_fields. */
struct job scene_job(struct scene *s);
void scene_expect_done(struct scene *s);
/* Events of that kind in the job's log; *last (or NULL) becomes the last one's fields, to be freed. */
int scene_events(struct scene *s, const char *kind, json_t **last);
/* The bytes of a file below the directory, to be freed. */
char *scene_read(struct scene *s, const char *name, size_t *size);
#define SCENE_RESULT "adapters/t/adapter_model.safetensors"

#endif
