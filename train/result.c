#include "train/result.h"

#include "base/file.h"
#include "formats/safetensors_write.h"
#include "model/hf_dir.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int write_text(const char *dir, const char *name, const char *text, size_t size,
                      struct error *e) {
    char path[4200];
    struct file_writer w;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int err = file_writer_open(&w, path, e);
    if (err) return err;
    file_writer_add(&w, text, size);
    return file_writer_commit(&w, e);
}

static int write_json(const char *dir, const char *name, json_t *json /* taken */,
                      struct error *e) {
    char *text = json ? json_dumps(json, JSON_INDENT(2)) : NULL;
    json_decref(json);
    if (!text) return error_set(e, ERR_MEMORY, "no memory to write %s", name);
    int err = write_text(dir, name, text, strlen(text), e);
    free(text);
    return err;
}

/* vector: rows == 1, written as one dimension. PEFT's A and B are matrices even with one row. */
static int write_values(const char *dir, const char *name, struct host_tensors *t,
                        bool vectors, enum dtype type, struct error *e) {
    struct safetensors_entry *entries = calloc((size_t)t->n, sizeof *entries);
    if (!entries) return error_set(e, ERR_MEMORY, "no memory to write %s", name);
    for (int i = 0; i < t->n; i++) {
        const struct train_tensor *s = &t->shape[i];
        bool vector = vectors && s->rows == 1;
        entries[i] = (struct safetensors_entry){
            s->name, type, vector ? 1 : 2, {vector ? s->cols : s->rows, s->cols}};
    }
    char path[4200];
    struct safetensors_writer w;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int err = safetensors_writer_open(&w, path, entries, (size_t)t->n, e);
    free(entries);
    if (err) return err;
    for (int i = 0; i < t->n; i++) {
        const float *values = host_tensors_next(t, e);
        if (!values) {
            safetensors_writer_abandon(&w);
            return e ? -(int)e->kind : -(int)ERR_CANCELLED;
        }
        safetensors_writer_add(&w, values, host_piece_floats(t, i));
    }
    return safetensors_writer_commit(&w, e);
}

static int write_adapter(const char *dir, const struct job_spec *spec, const struct model *base,
                         struct host_tensors *t, struct error *e) {
    json_t *targets = json_array();
    for (int i = 0; i < TRAIN_TARGETS; i++)
        if (spec->lora.targets >> i & 1)
            json_array_append_new(targets, json_string(train_target_name(i)));
    json_t *config = json_pack(
        "{s:s, s:s, s:i, s:f, s:f, s:b, s:o, s:s, s:s, s:b, s:b, s:b, s:{}, s:{}, s:n}",
        "peft_type", "LORA", "base_model_name_or_path", model_path(base), "r", (int)spec->lora.r,
        "lora_alpha", spec->lora.alpha, "lora_dropout", spec->lora.dropout, "use_rslora",
        (int)spec->lora.rslora, "target_modules", targets, "bias", "none", "task_type",
        "CAUSAL_LM", "init_lora_weights", 1, "inference_mode", 1, "fan_in_fan_out", 0,
        "rank_pattern", "alpha_pattern", "modules_to_save");
    int err = write_json(dir, "adapter_config.json", config, e);
    return err ? err : write_values(dir, "adapter_model.safetensors", t, false, DTYPE_F32, e);
}

static int write_files(const char *dir, const struct job_spec *spec, const struct model *base,
                       struct host_tensors *t, struct error *e) {
    struct hf_companions companions;
    int err = dir_remove(dir, e);
    if (!err) err = dir_make(dir, e);
    if (!err && spec->method == TRAIN_LORA) err = write_adapter(dir, spec, base, t, e);
    if (!err && spec->method == TRAIN_FULL) {
        enum dtype type = model_dtype(base);
        if (type != DTYPE_F16 && type != DTYPE_BF16) type = DTYPE_F32;
        err = hf_companions_write(&companions, dir, base, type, e);
        if (!err) err = write_values(dir, "model.safetensors", t, true, type, e);
    }
    return err ? err : dir_sync(dir, e);
}

/* --- its place ------------------------------------------------------------------------------------- */

static bool same_file(const char *dir, const char *other, const char *name) {
    char path[4500];
    struct file_map a = {0}, b = {0};
    struct error ignored;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    bool same = file_map_open(&a, path, &ignored) == 0;
    snprintf(path, sizeof path, "%s/%s", other, name);
    same = same && file_map_open(&b, path, &ignored) == 0 && a.size == b.size &&
           (a.size == 0 || memcmp(a.data, b.data, a.size) == 0);
    file_map_close(&a);
    file_map_close(&b);
    return same;
}

/* Whether `other` has every file of dir, with the same bytes. */
static bool has_all_of(const char *other, const char *dir) {
    DIR *d = opendir(dir);
    bool all = d && path_is_dir(other);
    for (struct dirent *entry; all && (entry = readdir(d));)
        if (entry->d_name[0] != '.') all = same_file(dir, other, entry->d_name);
    if (d) closedir(d);
    return all;
}

/* Whether path's directory (made where it is not there) is where its name says, by no link. */
static bool parent_is_true(const char *path) {
    char parent[RESULT_PATH];
    struct error ignored;
    snprintf(parent, sizeof parent, "%.*s", (int)(strrchr(path, '/') - path), path);
    if (dir_make(parent, &ignored) != 0) return false;
    char *real = realpath(parent, NULL);
    bool is = real && strcmp(real, parent) == 0;
    free(real);
    return is;
}

/* Gives `written` the name `to`, unless something has it. rename never replaces a directory that is not
 * empty, nor a file. */
static int take_place(const char *written, const char *to, bool *taken, struct error *e) {
    char parent[RESULT_PATH];
    *taken = true;
    if (has_all_of(to, written)) return dir_remove(written, e);
    if (rename(written, to) != 0) {
        *taken = false;
        bool occupied = errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR;
        return occupied ? 0 : error_errno(e, errno, to, "rename");
    }
    snprintf(parent, sizeof parent, "%.*s", (int)(strrchr(to, '/') - to), to);
    return dir_sync(parent, e);
}

int result_write(const char *out, const char *other, int64_t id, const struct job_spec *spec,
                 const struct model *base, struct host_tensors *t, char where[RESULT_PATH],
                 struct error *e) {
    char temporary[RESULT_PATH];
    bool taken = false;
    if (!parent_is_true(out)) out = other;
    if (out == other && !parent_is_true(out))
        return error_set(e, ERR_NOT_PERMITTED, "%s: its directory cannot be made or is a link", out);
    snprintf(temporary, sizeof temporary, "%s.part", out);
    int err = write_files(temporary, spec, base, t, e);
    snprintf(where, RESULT_PATH, "%s", out);
    for (int i = 0; !err && !taken && i < 100; i++) {
        if (i == 1) snprintf(where, RESULT_PATH, "%s-%lld", out, (long long)id);
        if (i > 1) snprintf(where, RESULT_PATH, "%s-%lld-%d", out, (long long)id, i);
        err = take_place(temporary, where, &taken, e);
    }
    if (!err && !taken)
        err = error_set(e, ERR_CONFLICT, "%s: it and all names like it are taken", out);
    if (err) dir_remove(temporary, NULL);
    return err;
}
