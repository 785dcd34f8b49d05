#include "daemon/token_json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

json_t *json_text(const char *text, size_t size) {
    static const char replacement[] = "\xEF\xBF\xBD";
    json_t *whole = json_stringn(text, size);
    if (whole) return whole;
    char *clean = malloc(3 * size + 1);
    if (!clean) return NULL;
    size_t n = 0;
    for (size_t i = 0; i < size;) {
        utf8proc_int32_t c;
        utf8proc_ssize_t len =
            utf8proc_iterate((const utf8proc_uint8_t *)text + i, (utf8proc_ssize_t)(size - i), &c);
        const char *from = len > 0 ? text + i : replacement;
        size_t bytes = len > 0 ? (size_t)len : sizeof replacement - 1;
        memcpy(clean + n, from, bytes);
        n += bytes;
        i += len > 0 ? (size_t)len : 1;
    }
    whole = json_stringn(clean, n);
    free(clean);
    return whole;
}

json_t *json_finite(double number) {
    return json_real(isfinite(number) ? number : 0);
}

json_t *json_token_ids(const struct token_report *tokens, size_t n) {
    json_t *ids = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(ids, json_integer(tokens[i].id));
    return ids;
}

/* {id, token, bytes, logprob} */
static json_t *entry(const struct tokenizer *tokenizer, token_id id, bool has_logprob,
                     float logprob) {
    enum { MAX_BYTES = 1024 };
    uint8_t bytes[MAX_BYTES];
    size_t n = tokenizer_bytes(tokenizer, id, bytes, sizeof bytes);
    if (n > sizeof bytes) n = sizeof bytes;
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, json_integer(bytes[i]));
    return json_pack("{s:i, s:o, s:o, s:o}", "id", (int)id, "token",
                     json_text((const char *)bytes, n), "bytes", list, "logprob",
                     has_logprob ? json_finite(logprob) : json_null());
}

json_t *json_token_logprobs(const struct tokenizer *tokenizer, const struct token_report *tokens,
                            size_t n, bool with_top) {
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        const struct token_report *t = &tokens[i];
        json_t *one = entry(tokenizer, t->id, t->has_logprob, t->logprob);
        if (with_top) {
            json_t *top = json_array();
            for (int k = 0; k < t->n_top; k++)
                json_array_append_new(top, entry(tokenizer, t->top[k].id, true, t->top[k].logprob));
            json_object_set_new(one, "top", top);
        }
        json_array_append_new(list, one);
    }
    return list;
}
