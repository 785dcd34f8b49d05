#include "daemon/prompt.h"

#include "daemon/schema.h"

#include <stdio.h>
#include <stdlib.h>

static int out_of_range(const char *field, size_t i, json_int_t id, int32_t vocab,
                        struct error *e) {
    char where[64], text[64];
    snprintf(where, sizeof where, "%s[%zu]", field, i);
    error_set(e, ERR_PARAMS, "token id out of range: %s is %lld, the model has ids 0 to %d", where,
              (long long)id, vocab - 1);
    error_note(e, "field", where);
    snprintf(text, sizeof text, "a token id from 0 to %d", vocab - 1);
    error_note(e, "expected", text);
    error_note_number(e, "got", id);
    return -(int)ERR_PARAMS;
}

static int append_ids(struct token_ids *ids, int32_t vocab, const char *field, const json_t *value,
                      struct error *e) {
    size_t n = json_array_size(value), need = ids->n + n;
    if (need > ids->capacity) {
        token_id *grown = realloc(ids->ids, need * sizeof *grown);
        if (!grown) return error_set(e, ERR_MEMORY, "no memory for %zu token ids", need);
        ids->ids = grown;
        ids->capacity = need;
    }
    for (size_t i = 0; i < n; i++) {
        json_int_t id = json_integer_value(json_array_get(value, i));
        if (id < 0 || id >= vocab) return out_of_range(field, i, id, vocab, e);
        ids->ids[ids->n++] = (token_id)id;
    }
    return 0;
}

int prompt_append(struct token_ids *ids, const struct tokenizer *tokenizer, int32_t vocab,
                  const char *field, const json_t *value, bool add_special, struct error *e) {
    if (json_is_array(value)) return append_ids(ids, vocab, field, value, e);
    return tokenizer_encode(tokenizer, json_string_value(value), json_string_length(value),
                            add_special, ids, e);
}

size_t prompt_text_bytes(const json_t *value) {
    return json_string_length(value);
}

bool prompt_is_list(const json_t *value) {
    const json_t *first = json_array_get(value, 0);
    return json_is_string(first) || json_is_array(first);
}

size_t prompt_count(const json_t *value) {
    return prompt_is_list(value) ? json_array_size(value) : 1;
}

const json_t *prompt_at(const json_t *value, size_t i) {
    return prompt_is_list(value) ? json_array_get(value, i) : value;
}

int prompts_check(const json_t *value, const char *field, size_t most, struct error *e) {
    const struct param one[] = {{field, PARAM_PROMPT, true, 0, 0, NULL},
                                {NULL, 0, false, 0, 0, NULL}};
    char expected[64];
    size_t n = prompt_count(value);
    snprintf(expected, sizeof expected, "at most %zu texts in one request", most);
    if (n > most) return schema_refuse(e, field, expected, value);
    for (size_t i = 0; i < n; i++) {
        json_t *object = json_object();
        int rc = object && json_object_set(object, field, (json_t *)prompt_at(value, i)) == 0
                     ? schema_check(one, object, e)
                     : error_set(e, ERR_MEMORY, "no memory for the request");
        json_decref(object);
        if (rc != 0) return rc;
    }
    return 0;
}

int prompt_put_text(struct json_out *out, const char *key, const struct tokenizer *tokenizer,
                    const json_t *tokens, bool skip_special, struct error *e) {
    struct token_ids ids = {0};
    char *text = NULL;
    size_t size = 0;
    int rc = prompt_append(&ids, tokenizer, tokenizer_size(tokenizer), "tokens", tokens, false, e);
    if (rc == 0) rc = tokenizer_decode(tokenizer, ids.ids, ids.n, skip_special, &text, &size, e);
    if (rc == 0) {
        json_out_open(out, '{');
        json_out_key(out, key);
        json_out_text(out, text, size);
        json_out_close(out, '}');
    }
    free(text);
    token_ids_free(&ids);
    return rc;
}
