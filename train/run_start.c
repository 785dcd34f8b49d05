/* Where a job that learns what is new goes on: it must not forget what the nights before have taught.
 *
 * One that is to be activated goes on from what it would replace, so that a night that was refused or
 * rolled back has no heirs; any other from what the last success of its name left. */
#include "train/run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

void start_choose(struct run *r) {
    const struct activator *a = r->options->activator;
    char *path = NULL;
    if (!r->spec.since_last || r->spec.method != TRAIN_LORA) return;
    if (r->spec.activate_as && a) {
        struct incumbent now;
        a->incumbent(a->user, r->spec.activate_as, &now);
        snprintf(r->start_path, sizeof r->start_path, "%s", now.path);
    } else if (jobs_result(r->options->jobs, r->spec.name, &path, NULL) == 0)
        snprintf(r->start_path, sizeof r->start_path, "%s", path);
    free(path);
}

void start_open(struct run *r) {
    if (!*r->start_path) return;
    if (adapter_open(&r->start, r->options->model, r->start_path, &r->start_error)) r->start = NULL;
}

static int start_anew(struct run *r, const char *why) {
    char note[600];
    snprintf(note, sizeof note, "begins anew, not where %s stands: %s", r->start_path, why);
    run_tell(r, json_pack("{s:s, s:s}", "event", "note", "note", note));
    return 0;
}

/* The adapter's tensors into host memory; *all: it has them all. */
static int read_all(struct run *r, bool *all, struct error *e) {
    struct host_tensors *t = &r->host;
    int err = 0;
    *all = true;
    host_tensors_begin(t, 1);
    for (int i = 0; i < host_pieces(t) && *all && !err; i++) {
        err = host_piece_make(t, i, e);
        if (!err) *all = adapter_read(r->start, t->shape[i].name, host_piece_floats(t, i), t->at[i]);
    }
    return err ? err : adapter_check(r->start, e);
}

int start_put(struct run *r, struct ranks *ranks, bool *put, struct error *e) {
    const struct train_options *o = &r->sizes.options;
    *put = false;
    if (!*r->start_path) return 0;
    if (!r->start) return start_anew(r, r->start_error.message);
    if (adapter_rank(r->start) != o->rank || adapter_targets(r->start) != o->targets ||
        fabsf(adapter_scale(r->start) - o->scale) > 1e-5f * o->scale)
        return start_anew(r, "it has another r, alpha or other targets than this job");
    bool all;
    int err = read_all(r, &all, e);
    for (int i = 0; i < host_pieces(&r->host) && all && !err; i++)
        err = run_put_piece(r, ranks, i, e);
    host_tensors_end(&r->host);
    if (err) return err;
    if (!all) return start_anew(r, "it does not cover all layers");
    *put = true;
    run_tell(r, json_pack("{s:s, s:s}", "event", "start", "from", r->start_path));
    return 0;
}
