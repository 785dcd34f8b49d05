/* Rotary positions as config.json has them: rope_theta beside rope_scaling, or (transformers 5)
 * everything in rope_parameters. */
#include "model/config_parts.h"

#include <string.h>

static const double MAX_FACTOR = 1e6;

/* rope_scaling where it says something, else rope_parameters, else NULL. */
static int find_dict(const json_t *config, const json_t **out, const char **name, const char *path,
                     struct error *e) {
    static const char *const names[] = {"rope_scaling", "rope_parameters"};
    *out = NULL;
    for (int i = 0; i < 2 && !*out; i++) {
        const json_t *dict = json_object_get(config, names[i]);
        if (!dict || json_is_null(dict)) continue;
        *name = names[i];
        if (!json_is_object(dict)) return FIELD_FAULT(e, path, names[i], "must be an object");
        if (json_object_size(dict) > 0) *out = dict;
    }
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)*out, key, value) {
        if (json_is_object(value))
            return FIELD_FAULT(e, path, *name,
                               "rotary parameters of their own for some layers (\"%.40s\") are not "
                               "supported",
                               key);
    }
    return 0;
}

static int read_kind(struct rope_config *r, const json_t *dict, const char *name, const char *path,
                     struct error *e) {
    const char *type = NULL;
    int err = hf_string(dict, "rope_type", &type, path, e);
    if (!err && !type) err = hf_string(dict, "type", &type, path, e);
    if (err) return err;
    if (!type) {
        if (json_object_get(dict, "factor"))
            return FIELD_FAULT(e, path, name, "has a factor but no rope_type");
        return 0;
    }
    for (int kind = ROPE_DEFAULT; kind <= ROPE_YARN; kind++)
        if (strcmp(type, rope_kind_name((enum rope_kind)kind)) == 0) {
            r->kind = (enum rope_kind)kind;
            return 0;
        }
    return FIELD_FAULT(e, path, name,
                       "rope type \"%.40s\" is not supported; tpd has default, linear, dynamic, "
                       "llama3, yarn",
                       type);
}

static int required_number(const json_t *dict, const char *key, double *out, const char *path,
                           struct error *e) {
    const json_t *value = json_object_get(dict, key);
    if (!value || json_is_null(value))
        return FIELD_FAULT(e, path, key, "is missing in the rope scaling");
    return hf_number(dict, key, 1e-6, MAX_FACTOR, out, path, e);
}

/* The length that the model was trained at, before scaling. */
static int read_original_len(struct model_config *c, const json_t *config, const json_t *dict,
                             bool *explicit, const char *path, struct error *e) {
    static const char *const key = "original_max_position_embeddings";
    int32_t len = 0;
    int err = hf_int(config, key, 1, MAX_LEN, &len, path, e);
    if (!err) err = hf_int(dict, key, 1, MAX_LEN, &len, path, e);
    *explicit = len > 0;
    c->rope.original_len = len > 0 ? len : c->max_len;
    return err;
}

static int read_llama3(struct rope_config *r, const json_t *dict, const char *path,
                       struct error *e) {
    int err = required_number(dict, "low_freq_factor", &r->low_freq_factor, path, e);
    if (!err) err = required_number(dict, "high_freq_factor", &r->high_freq_factor, path, e);
    if (!err && r->high_freq_factor <= r->low_freq_factor)
        return FIELD_FAULT(e, path, "high_freq_factor", "%g is not above low_freq_factor = %g",
                           r->high_freq_factor, r->low_freq_factor);
    return err;
}

static int read_yarn(struct rope_config *r, const json_t *dict, const char *path, struct error *e) {
    const struct {
        const char *key;
        double *out;
    } numbers[] = {{"beta_fast", &r->beta_fast},
                   {"beta_slow", &r->beta_slow},
                   {"attention_factor", &r->attention_factor},
                   {"mscale", &r->mscale},
                   {"mscale_all_dim", &r->mscale_all_dim}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        int err = hf_number(dict, numbers[i].key, 0, MAX_FACTOR, numbers[i].out, path, e);
        if (err) return err;
    }
    if (r->beta_fast == 0) r->beta_fast = 32; /* 0 counts as absent */
    if (r->beta_slow == 0) r->beta_slow = 1;
    return hf_bool(dict, "truncate", &r->truncate, path, e);
}

static int read_scaling(struct model_config *c, const json_t *config, const json_t *dict,
                        const char *path, struct error *e) {
    struct rope_config *r = &c->rope;
    bool explicit;
    int err = read_original_len(c, config, dict, &explicit, path, e);
    if (err || r->kind == ROPE_DEFAULT) return err;
    const json_t *factor = json_object_get(dict, "factor");
    if (r->kind == ROPE_YARN && explicit && (!factor || json_is_null(factor)))
        r->factor = (double)c->max_len / r->original_len;
    else err = required_number(dict, "factor", &r->factor, path, e);
    /* Dynamic scaling sets in at max_position_embeddings, whatever the original length. */
    if (r->kind == ROPE_DYNAMIC) r->original_len = c->max_len;
    if (!err && r->kind == ROPE_LLAMA3) err = read_llama3(r, dict, path, e);
    if (!err && r->kind == ROPE_YARN) err = read_yarn(r, dict, path, e);
    return err;
}

int config_rope_from_hf(struct model_config *c, const json_t *config, const char *path,
                        struct error *e) {
    c->rope = (struct rope_config){.kind = ROPE_DEFAULT,
                                   .base = 10000,
                                   .factor = 1,
                                   .original_len = c->max_len,
                                   .beta_fast = 32,
                                   .beta_slow = 1,
                                   .truncate = true};
    const json_t *dict;
    const char *name = "";
    int err = find_dict(config, &dict, &name, path, e);
    if (!err) err = hf_number(config, "rope_theta", 1.0001, 1e15, &c->rope.base, path, e);
    if (!err) err = hf_number(dict, "rope_theta", 1.0001, 1e15, &c->rope.base, path, e);
    double rotated = 1;
    if (!err) err = hf_number(dict, "partial_rotary_factor", 0, 1, &rotated, path, e);
    if (!err && rotated != 1)
        return FIELD_FAULT(e, path, "partial_rotary_factor",
                           "partial rotary embeddings are not supported");
    if (!err && dict) err = read_kind(&c->rope, dict, name, path, e);
    if (!err && dict) err = read_scaling(c, config, dict, path, e);
    return err;
}
