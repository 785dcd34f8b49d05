#include "daemon/inspect_adapter.h"

#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CONFIG = 4 << 20, MAX_RANK = 1 << 16 };

bool adapter_directory(const char *dir) {
    char *path = path_join(dir, "adapter_config.json");
    bool there = path && path_exists(path);
    free(path);
    return there;
}

static int bad_field(const char *path, const struct error *why, struct error *e) {
    return error_bad_file(e, path, "field", why->n_notes ? why->notes[0].text : "", "%s",
                          why->message);
}

static int read_config(json_t **out, const char *path, struct error *e) {
    json_t *config = json_read_file(path, MAX_CONFIG, e);
    if (!config) return -(int)ERR_BAD_FILE;
    struct error why;
    const char *type = "";
    int64_t r = 0;
    double alpha = 0;
    bool rslora = false;
    int err = 0;
    if (!json_is_object(config)) err = error_bad_file(e, path, NULL, NULL, "is not a JSON object");
    else if (json_get_string(config, "peft_type", &type, &why) ||
             json_get_int(config, "r", 1, MAX_RANK, &r, &why) ||
             json_get_number(config, "lora_alpha", 0, 1e9, &alpha, &why) ||
             json_get_bool(config, "use_rslora", &rslora, &why))
        err = bad_field(path, &why, e);
    else if (strcmp(type, "LORA") != 0)
        err = error_bad_file(e, path, "field", "peft_type",
                             "peft_type is \"%.40s\"; only LORA adapters are supported", type);
    else if (r == 0) err = error_bad_file(e, path, "field", "r", "r is missing");
    if (!err) {
        *out = json_pack("{s:s, s:I, s:f, s:b}", "type", type, "r", (json_int_t)r, "alpha", alpha,
                         "rslora", rslora);
        static const char *const copied[] = {"target_modules", "base_model_name_or_path"};
        for (int i = 0; i < 2; i++) {
            json_t *value = json_object_get(config, copied[i]);
            if (value) json_object_set(*out, copied[i], value);
        }
    }
    json_decref(config);
    return err;
}

/* Every lora_A [r, in] has its lora_B [out, r], and the other way round. */
static int check_pairs(const struct store *store, struct error *e) {
    for (size_t i = 0; i < store_count(store); i++) {
        const struct store_tensor *t = store_at(store, i);
        const char *at = strstr(t->name, ".lora_A.");
        bool is_a = at != NULL;
        if (!is_a) at = strstr(t->name, ".lora_B.");
        if (!at) continue;
        char partner[512];
        snprintf(partner, sizeof partner, "%.*s.lora_%c.%s", (int)(at - t->name), t->name,
                 is_a ? 'B' : 'A', at + 8);
        const struct store_tensor *other = store_find(store, partner);
        if (!other)
            return error_bad_file(e, t->file, "tensor", t->name,
                                  "tensor \"%.120s\": its partner \"%.120s\" is missing", t->name,
                                  partner);
        const struct store_tensor *a = is_a ? t : other, *b = is_a ? other : t;
        if (a->n_dims != 2 || b->n_dims != 2 || a->dims[0] != b->dims[1])
            return error_bad_file(e, t->file, "tensor", t->name,
                                  "tensor \"%.120s\": its shape does not fit that of \"%.120s\"",
                                  t->name, partner);
    }
    return 0;
}

int inspect_adapter_open(struct store **store, json_t **config, const char *dir, struct error *e) {
    char *config_path = path_join(dir, "adapter_config.json");
    char *tensors_path = path_join(dir, "adapter_model.safetensors");
    int err;
    if (!config_path || !tensors_path) err = error_set(e, ERR_MEMORY, "%s: no memory", dir);
    else if (!path_exists(tensors_path))
        err = error_bad_file(e, dir, "file", "adapter_model.safetensors",
                             "has adapter_config.json but no adapter_model.safetensors");
    else {
        err = read_config(config, config_path, e);
        if (!err) err = store_open(store, tensors_path, e);
        if (!err) err = check_pairs(*store, e);
    }
    free(config_path);
    free(tensors_path);
    return err;
}
