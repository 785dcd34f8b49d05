#include "daemon/prompt.h"

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
