#include "train/result.h"

#include "base/file.h"
#include "formats/safetensors_write.h"

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
static int write_values(const char *dir, const char *name, const struct host_tensors *t,
                        bool vectors, enum dtype type, struct error *e) {
    struct safetensors_entry *entries = calloc((size_t)t->n, sizeof *entries);
    if (!entries) return error_set(e, ERR_MEMORY, "no memory to write %s", name);
    for (int i = 0; i < t->n; i++) {
        const struct train_tensor *s = &t->at[i].shape;
        bool vector = vectors && s->rows == 1;
        entries[i] = (struct safetensors_entry){
            s->name, type, vector ? 1 : 2, {vector ? s->cols : s->rows, s->cols}};
    }
    char path[4200];
    struct safetensors_writer w;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int err = safetensors_writer_open(&w, path, entries, (size_t)t->n, e);
    for (int i = 0; i < t->n && !err; i++)
        safetensors_writer_add(&w, t->at[i].part[PART_VALUE], host_tensor_floats(&t->at[i]));
    if (!err) err = safetensors_writer_commit(&w, e);
    free(entries);
    return err;
}

static int write_adapter(const char *dir, const struct job_spec *spec, const struct model *base,
                         const struct host_tensors *t, struct error *e) {
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

/* config.json and the tokenizer come along as they are; a GGUF base has none to copy. */
static int copy_companions(const char *dir, const char *base, struct error *e) {
    static const char *const names[] = {"config.json", "generation_config.json", "tokenizer.json",
                                        "tokenizer_config.json", "special_tokens_map.json",
                                        "added_tokens.json", "chat_template.jinja",
                                        "chat_template.json"};
    if (!path_is_dir(base))
        return error_set(e, ERR_CONFIG,
                         "full fine-tuning writes a Hugging Face directory and needs a base that is "
                         "one: %s is a GGUF file",
                         base);
    int err = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names && !err; i++) {
        char *from = path_join(base, names[i]), *text;
        size_t size;
        if (!from) return error_set(e, ERR_MEMORY, "no memory to copy %s", names[i]);
        if (path_exists(from)) {
            err = file_read(from, 64 << 20, &text, &size, e);
            if (!err) {
                err = write_text(dir, names[i], text, size, e);
                free(text);
            }
        }
        free(from);
    }
    return err;
}

int result_write(const char *out, const struct job_spec *spec, const struct model *base,
                 const struct host_tensors *t, struct error *e) {
    char temporary[4200], old[4200];
    snprintf(temporary, sizeof temporary, "%s.part", out);
    snprintf(old, sizeof old, "%s.old", out);
    int err = dir_remove(temporary, e);
    if (!err) err = dir_make(temporary, e);
    if (!err && spec->method == TRAIN_LORA) err = write_adapter(temporary, spec, base, t, e);
    if (!err && spec->method == TRAIN_FULL) {
        enum dtype type = model_dtype(base);
        if (type != DTYPE_F16 && type != DTYPE_BF16) type = DTYPE_F32;
        err = copy_companions(temporary, model_path(base), e);
        if (!err) err = write_values(temporary, "model.safetensors", t, true, type, e);
    }
    if (!err) err = dir_sync(temporary, e);
    if (!err) err = dir_remove(old, e);
    if (!err && rename(out, old) != 0 && errno != ENOENT) err = error_errno(e, errno, out, "rename");
    if (!err && rename(temporary, out) != 0) err = error_errno(e, errno, out, "rename");
    if (err) dir_remove(temporary, NULL);
    else dir_remove(old, NULL);
    return err;
}
