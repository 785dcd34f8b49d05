/* Checkpoints: a directory a step, whole under its name or not there. */
#include "train/tensors.h"

#include "base/file.h"
#include "base/json.h"
#include "formats/safetensors_write.h"
#include "formats/store.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const part_suffix[3] = {"", ".m", ".v"};

/* "step-12" -> 12; -1 for other names. */
static int64_t step_of(const char *name) {
    char *end;
    if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9') return -1;
    long long step = strtoll(name + 5, &end, 10);
    return *end == '\0' ? step : -1;
}

/* The largest step below `below` that dir has a checkpoint of; -1 when there is none. */
static int64_t newest_below(const char *dir, int64_t below) {
    DIR *d = opendir(dir);
    int64_t newest = -1;
    if (!d) return -1;
    for (struct dirent *entry; (entry = readdir(d));) {
        int64_t step = step_of(entry->d_name);
        if (step > newest && step < below) newest = step;
    }
    closedir(d);
    return newest;
}

static json_t *number_or_null(double x) { return isfinite(x) ? json_real(x) : json_null(); }

static int write_position(const char *dir, const struct train_position *p, struct error *e) {
    char path[4200];
    json_t *json = json_pack(
        "{s:I, s:I, s:I, s:I, s:o, s:I, s:I, s:I, s:o, s:o}", "step", (json_int_t)p->step,
        "epoch", (json_int_t)p->epoch, "batch", (json_int_t)p->batch, "micro",
        (json_int_t)p->micro, "best_eval", number_or_null(p->best_eval), "best_step",
        (json_int_t)p->best_step, "bad_evals", (json_int_t)p->bad_evals, "evaluated_step",
        (json_int_t)p->evaluated_step, "loss", number_or_null(p->loss), "eval_loss",
        number_or_null(p->eval_loss));
    char *text = json ? json_dumps(json, JSON_INDENT(1)) : NULL;
    json_decref(json);
    if (!text) return error_set(e, ERR_MEMORY, "no memory to write a checkpoint");
    snprintf(path, sizeof path, "%s/position.json", dir);
    struct file_writer w;
    int err = file_writer_open(&w, path, e);
    if (!err) {
        file_writer_add(&w, text, strlen(text));
        err = file_writer_commit(&w, e);
    }
    free(text);
    return err;
}

static void name_piece(const struct host_tensors *t, int piece, char *out, size_t size) {
    snprintf(out, size, "%s%s", t->shape[piece / t->n_parts].name, part_suffix[piece % t->n_parts]);
}

static int open_writer(struct safetensors_writer *w, const char *dir, const struct host_tensors *t,
                       struct error *e) {
    char path[4200];
    size_t n = (size_t)host_pieces(t);
    struct safetensors_entry *entries = calloc(n, sizeof *entries);
    char(*names)[100] = calloc(n, sizeof *names);
    int err = entries && names ? 0 : error_set(e, ERR_MEMORY, "no memory to write a checkpoint");
    for (size_t i = 0; i < n && !err; i++) {
        const struct train_tensor *shape = &t->shape[i / (size_t)t->n_parts];
        name_piece(t, (int)i, names[i], sizeof names[i]);
        entries[i] = (struct safetensors_entry){names[i], DTYPE_F32, 2, {shape->rows, shape->cols}};
    }
    snprintf(path, sizeof path, "%s/tensors.safetensors", dir);
    if (!err) err = safetensors_writer_open(w, path, entries, n, e);
    free(entries);
    free(names);
    return err;
}

static int write_tensors(const char *dir, struct host_tensors *t, struct error *e) {
    struct safetensors_writer w;
    int err = open_writer(&w, dir, t, e);
    if (err) return err;
    for (int i = 0; i < host_pieces(t); i++) {
        const float *values = host_tensors_next(t, e);
        if (!values) {
            safetensors_writer_abandon(&w);
            return e ? -(int)e->kind : -(int)ERR_CANCELLED;
        }
        safetensors_writer_add(&w, values, host_piece_floats(t, i));
    }
    return safetensors_writer_commit(&w, e);
}

/* Old checkpoints that cannot be removed are no reason to fail. */
static void remove_old(const char *dir, int keep, int64_t best) {
    int64_t step = INT64_MAX;
    for (int i = 0; (step = newest_below(dir, step)) >= 0; i++) {
        char path[4200];
        snprintf(path, sizeof path, "%s/step-%lld", dir, (long long)step);
        if (i >= keep && step != best) dir_remove(path, NULL);
    }
}

int checkpoint_write(const char *dir, struct host_tensors *t, const struct train_position *position,
                     int keep, struct error *e) {
    char temporary[4200], final[4200];
    snprintf(temporary, sizeof temporary, "%s/writing", dir);
    snprintf(final, sizeof final, "%s/step-%lld", dir, (long long)position->step);
    int err = dir_remove(temporary, e);
    if (!err) err = dir_make(temporary, e);
    if (!err) err = write_tensors(temporary, t, e);
    if (!err) err = write_position(temporary, position, e);
    if (!err) err = dir_remove(final, e); /* of the same step: the same numbers */
    if (!err && rename(temporary, final) != 0) err = error_errno(e, errno, final, "rename");
    if (!err) err = dir_sync(dir, e);
    if (err) {
        dir_remove(temporary, NULL);
        return err;
    }
    remove_old(dir, keep < 1 ? 1 : keep, position->best_step);
    return 0;
}

/* --- reading ------------------------------------------------------------------------------------- */

static int read_position(const char *dir, struct train_position *p, struct error *e) {
    char path[4200];
    snprintf(path, sizeof path, "%s/position.json", dir);
    json_t *json = json_read_file(path, 1 << 16, e);
    if (!json) return -(int)ERR_BAD_FILE;
    const int64_t most = INT64_MAX / 2;
    int64_t micro = 0;
    *p = (struct train_position){.best_eval = NAN, .loss = NAN, .eval_loss = NAN};
    int err = json_get_int(json, "step", 0, most, &p->step, e);
    if (!err) err = json_get_int(json, "epoch", 0, most, &p->epoch, e);
    if (!err) err = json_get_int(json, "batch", 0, most, &p->batch, e);
    if (!err) err = json_get_int(json, "micro", 0, most, &micro, e);
    if (!err) err = json_get_int(json, "bad_evals", 0, most, &p->bad_evals, e);
    p->evaluated_step = p->step; /* where it is not said */
    if (!err) err = json_get_int(json, "best_step", 0, most, &p->best_step, e);
    if (!err) err = json_get_int(json, "evaluated_step", 0, most, &p->evaluated_step, e);
    if (!err) err = json_get_number(json, "best_eval", -1e30, 1e30, &p->best_eval, e);
    if (!err) err = json_get_number(json, "loss", -1e30, 1e30, &p->loss, e);
    if (!err) err = json_get_number(json, "eval_loss", -1e30, 1e30, &p->eval_loss, e);
    p->micro = (uint64_t)micro;
    json_decref(json);
    return err ? error_prefix(e, "%s: ", path) : 0;
}

static const struct store_tensor *find_piece(const struct host_tensors *t, int piece) {
    char name[100];
    name_piece(t, piece, name, sizeof name);
    return store_find(t->from, name);
}

/* All pieces are there and have the job's shapes. */
static int open_tensors(const char *dir, struct host_tensors *t, int n_parts, struct error *e) {
    char path[4200], name[100];
    host_tensors_begin(t, n_parts);
    snprintf(path, sizeof path, "%s/tensors.safetensors", dir);
    int err = store_open(&t->from, path, e);
    for (int i = 0; i < host_pieces(t) && !err; i++) {
        const struct store_tensor *from = find_piece(t, i);
        if (from && from->type == DTYPE_F32 && from->bytes == host_piece_floats(t, i) * sizeof(float))
            continue;
        name_piece(t, i, name, sizeof name);
        err = error_bad_file(e, path, "tensor", name,
                             "tensor %s is missing or has another shape than the job's: the "
                             "checkpoint belongs to another model or other settings",
                             name);
    }
    if (err) host_tensors_end(t);
    return err;
}

int checkpoint_copy_piece(const struct host_tensors *t, int piece, float *out, struct error *e) {
    const struct store_tensor *from = find_piece(t, piece);
    memcpy(out, from->data, from->bytes);
    store_drop(t->from, from, 0, from->bytes);
    return store_tensor_check(from, e);
}

static int read_step(const char *dir, int64_t step, struct host_tensors *t,
                     struct train_position *position, struct error *e) {
    char path[4200];
    snprintf(path, sizeof path, "%s/step-%lld", dir, (long long)step);
    int err = read_position(path, position, e);
    return err ? err : open_tensors(path, t, 3, e);
}

int checkpoint_read(const char *dir, struct host_tensors *t, struct train_position *position,
                    struct error *damaged, struct error *e) {
    int64_t step = newest_below(dir, INT64_MAX);
    if (step < 0) return error_set(e, ERR_NOT_FOUND, "%s: no checkpoint is here", dir);
    *damaged = (struct error){0};
    for (; step >= 0; step = newest_below(dir, step)) {
        struct error why = {0};
        int err = read_step(dir, step, t, position, &why);
        if (!err) return 0;
        if (!damaged->kind) *damaged = why;
    }
    return error_set(e, ERR_BAD_FILE,
                     "no checkpoint of the job is whole, the newest because %s; submit it again",
                     damaged->message);
}

int checkpoint_read_values(const char *dir, int64_t step, struct host_tensors *t, struct error *e) {
    char path[4200];
    snprintf(path, sizeof path, "%s/step-%lld", dir, (long long)step);
    return open_tensors(path, t, 1, e);
}
