/* text/post.c: the post_processor of a tokenizer file. For one text it comes to this: some ids
 * before it and some behind it. */
#include "text/internal.h"

#include "base/json.h"

static int bad_member(const json_t *json, const char *key, const char *expected, struct error *e) {
    char got[96];
    return error_set(e, ERR_BAD_FILE, "%s must be %s, not %s", key, expected,
                     json_describe(json_object_get(json, key), got, sizeof got));
}

static int add_id(struct token_ids *ids, const struct tokenizer *t, const json_t *id,
                  struct error *e) {
    char got[96];
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > VOCAB_MAX_ID)
        return error_set(e, ERR_BAD_FILE, "id must be a token's number, not %s",
                         json_describe(id, got, sizeof got));
    if (!vocab_has(&t->vocab, (token_id)json_integer_value(id)))
        return error_set(e, ERR_BAD_FILE, "id %d is not in the vocabulary",
                         (int)json_integer_value(id));
    return token_ids_add(ids, (token_id)json_integer_value(id))
               ? 0
               : error_set(e, ERR_MEMORY, "no memory for a post-processor");
}

/* Puts the ids in front of those that are there: a later processor goes around an earlier one. */
static int put_before(struct token_ids *all, struct token_ids *more, struct error *e) {
    for (size_t i = 0; i < all->n; i++)
        if (!token_ids_add(more, all->ids[i]))
            return error_set(e, ERR_MEMORY, "no memory for a post-processor");
    struct token_ids swap = *all;
    *all = *more;
    *more = swap;
    return 0;
}

/* "single": [{"SpecialToken": {"id": NAME}}, {"Sequence": {"id": "A"}}, …] with the ids of NAME in
 * "special_tokens". */
static int parse_template(struct tokenizer *t, const json_t *json, struct error *e) {
    const json_t *single = json_object_get(json, "single"), *item, *id;
    const json_t *specials = json_object_get(json, "special_tokens");
    struct token_ids before = {0};
    bool sequence = false;
    int err = 0;
    size_t i, j;
    if (!json_is_array(single)) return bad_member(json, "single", "an array", e);
    json_array_foreach(single, i, item) {
        const json_t *special = json_object_get(item, "SpecialToken");
        const char *name = json_string_value(json_object_get(special, "id"));
        const json_t *ids = name ? json_object_get(json_object_get(specials, name), "ids") : NULL;
        if (json_is_object(json_object_get(item, "Sequence")) && !sequence) sequence = true;
        else if (!json_is_array(ids))
            err = error_set(e, ERR_BAD_FILE,
                            "single[%zu] must be the sequence, once, or a special "
                            "token with ids in special_tokens",
                            i);
        else
            json_array_foreach(ids, j, id) if (!err) err =
                add_id(sequence ? &t->behind : &before, t, id, e);
        if (err) break;
    }
    if (!err && !sequence) err = error_set(e, ERR_BAD_FILE, "single has no sequence");
    if (!err) err = put_before(&t->before, &before, e);
    token_ids_free(&before);
    return err;
}

/* BertProcessing and RobertaProcessing: "cls": [PIECE, ID], "sep": [PIECE, ID]. */
static int parse_cls_sep(struct tokenizer *t, const json_t *json, struct error *e) {
    struct token_ids before = {0};
    int err = add_id(&before, t, json_array_get(json_object_get(json, "cls"), 1), e);
    if (err) err = error_prefix(e, "cls: ");
    else if ((err = add_id(&t->behind, t, json_array_get(json_object_get(json, "sep"), 1), e)) != 0)
        err = error_prefix(e, "sep: ");
    if (!err) err = put_before(&t->before, &before, e);
    token_ids_free(&before);
    return err;
}

static int parse_sequence(struct tokenizer *t, const json_t *json, struct error *e) {
    const json_t *list = json_object_get(json, "processors"), *item;
    size_t i;
    if (!json_is_array(list)) return bad_member(json, "processors", "an array", e);
    json_array_foreach(list, i, item) {
        int err = postprocessor_parse(t, item, e);
        if (err) return error_prefix(e, "processors[%zu].", i);
    }
    return 0;
}

int postprocessor_parse(struct tokenizer *t, const json_t *json, struct error *e) {
    if (json_is_null(json)) return 0;
    const char *type = json_string_value(json_object_get(json, "type"));
    if (!type) return error_set(e, ERR_BAD_FILE, "type must name a post-processor");
    if (strcmp(type, "ByteLevel") == 0) return 0; /* it only moves offsets */
    if (strcmp(type, "TemplateProcessing") == 0) return parse_template(t, json, e);
    if (strcmp(type, "Sequence") == 0) return parse_sequence(t, json, e);
    if (strcmp(type, "BertProcessing") == 0 || strcmp(type, "RobertaProcessing") == 0)
        return parse_cls_sep(t, json, e);
    return error_set(e, ERR_BAD_FILE,
                     "type \"%.60s\" is a post-processor that tpd does not have (it has Sequence, "
                     "TemplateProcessing, ByteLevel, BertProcessing, RobertaProcessing)",
                     type);
}
