/* model/config_parts.h: what the readers of config.json and of GGUF metadata share. */
#ifndef TPD_MODEL_CONFIG_PARTS_H
#define TPD_MODEL_CONFIG_PARTS_H

#include "model/config.h"

/* Bounds of sanity: past them a number is a broken file, not a model. */
enum {
    MAX_LAYERS = 4096,
    MAX_HIDDEN = 1 << 20,
    MAX_FFN = 1 << 22,
    MAX_HEADS = 4096,
    MAX_HEAD_DIM = 4096,
    MAX_VOCAB = 1 << 24,
    MAX_LEN = 1 << 27
};

/* ERR_BAD_FILE with notes path and field: "PATH: FIELD: message". */
#define FIELD_FAULT(e, path, field, format, ...)                                                   \
    error_bad_file(e, path, "field", field, "%s: " format, field, ##__VA_ARGS__)

/* What holds between the numbers, whatever the file. names: what the file calls heads, KV heads and
 * head_dim. */
struct config_names {
    const char *heads, *kv_heads, *head_dim;
};
int config_check(const struct model_config *c, const struct config_names *names, const char *path,
                 struct error *e);

/* Adds an id unless it is there already or no id of the vocabulary (-1 and such mean none). false:
 * there are CONFIG_MAX_EOS already. */
bool config_add_eos(struct model_config *c, int64_t id);

/* Members of a JSON object as configuration: as json_get_*, but a failure is ERR_BAD_FILE. */
int hf_int(const json_t *object, const char *key, int64_t min, int64_t max, int32_t *out,
           const char *path, struct error *e);
int hf_number(const json_t *object, const char *key, double min, double max, double *out,
              const char *path, struct error *e);
int hf_bool(const json_t *object, const char *key, bool *out, const char *path, struct error *e);
int hf_string(const json_t *object, const char *key, const char **out, const char *path,
              struct error *e);

/* rope_theta, rope_scaling, rope_parameters. c->max_len is known. */
int config_rope_from_hf(struct model_config *c, const json_t *config, const char *path,
                        struct error *e);

#endif
