#include "daemon/sampling_params.h"

#include "base/json.h"
#include "daemon/schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static int no_memory(struct error *e) {
    return error_set(e, ERR_MEMORY, "no memory for the request");
}

/* Below 2^53, so that every JSON reader gives it back unchanged. */
static uint64_t draw_seed(void) {
    uint64_t seed = 0;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != (ssize_t)sizeof seed)
        seed = (uint64_t)clock_ns() * 0x9E3779B97F4A7C15u;
    return seed >> 11;
}

/* NULL: not said. The schema has checked the word. */
static enum speculative speculative_from_name(const char *word) {
    static const char *const words[] = {"", "off", "ngram", "draft", "auto"};
    for (size_t i = 1; word && i < sizeof words / sizeof *words; i++)
        if (strcmp(word, words[i]) == 0) return (enum speculative)i;
    return SPECULATIVE_UNSAID;
}

/* Numbers and switches: the schema has checked type and range. */
static void read_numbers(struct sampling *s, const json_t *params, uint64_t *seed) {
    struct error ignored;
    int64_t logprobs = s->logprobs, given = (int64_t)*seed;
    const struct {
        const char *name;
        double *at;
    } numbers[] = {
        {"temperature", &s->temperature},
        {"top_p", &s->top_p},
        {"min_p", &s->min_p},
        {"repetition_penalty", &s->repetition_penalty},
        {"presence_penalty", &s->presence_penalty},
        {"frequency_penalty", &s->frequency_penalty},
    };
    const struct {
        const char *name;
        int64_t *at;
    } integers[] = {
        {"max_tokens", &s->max_tokens},         {"top_k", &s->top_k},    {"seed", &given},
        {"penalty_last_n", &s->penalty_last_n}, {"logprobs", &logprobs},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        json_get_number(params, numbers[i].name, -1e300, 1e300, numbers[i].at, &ignored);
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++)
        json_get_int(params, integers[i].name, INT64_MIN, INT64_MAX, integers[i].at, &ignored);
    json_get_bool(params, "ignore_eos", &s->ignore_eos, &ignored);
    s->speculative = speculative_from_name(json_word(json_object_get(params, "speculative")));
    json_get_bool(params, "echo", &s->echo, &ignored);
    s->logprobs = (int)logprobs;
    *seed = (uint64_t)given;
}

static int add_stop(struct sampling *s, const json_t *value, const char *field, struct error *e) {
    size_t n = json_string_length(value);
    const char *text = json_string_value(value);
    if (n == 0 || n > STOP_MAX_BYTES || memchr(text, '\0', n)) {
        char expected[80];
        snprintf(expected, sizeof expected, "a text of 1 to %d bytes without NUL", STOP_MAX_BYTES);
        return schema_refuse(e, field, expected, value);
    }
    s->stop[s->n_stop] = strdup(text);
    if (!s->stop[s->n_stop]) return no_memory(e);
    s->n_stop++;
    return 0;
}

static int refuse_count(const char *field, int most, const char *what, const json_t *value,
                        struct error *e) {
    char expected[64];
    snprintf(expected, sizeof expected, "at most %d %s", most, what);
    return schema_refuse(e, field, expected, value);
}

static int read_stop(struct sampling *s, const json_t *stop, struct error *e) {
    if (json_is_string(stop)) return add_stop(s, stop, "stop", e);
    if (json_array_size(stop) > SAMPLING_MAX_STOP)
        return refuse_count("stop", SAMPLING_MAX_STOP, "stop strings", stop, e);
    int rc = 0;
    for (size_t i = 0; i < json_array_size(stop) && rc == 0; i++) {
        char field[32];
        snprintf(field, sizeof field, "stop[%zu]", i);
        rc = add_stop(s, json_array_get(stop, i), field, e);
    }
    return rc;
}

static int read_stop_ids(struct sampling *s, const json_t *ids, int32_t vocab, struct error *e) {
    size_t n = json_array_size(ids);
    if (n == 0) return 0;
    if (n > SAMPLING_MAX_IDS)
        return refuse_count("stop_token_ids", SAMPLING_MAX_IDS, "token ids", ids, e);
    s->stop_token_ids = calloc(n, sizeof *s->stop_token_ids);
    if (!s->stop_token_ids) return no_memory(e);
    for (size_t i = 0; i < n; i++) {
        const json_t *value = json_array_get(ids, i);
        json_int_t id = json_integer_value(value);
        if (id < 0 || id >= vocab) {
            char field[48], expected[64];
            snprintf(field, sizeof field, "stop_token_ids[%zu]", i);
            snprintf(expected, sizeof expected, "a token id from 0 to %d", vocab - 1);
            return schema_refuse(e, field, expected, value);
        }
        s->stop_token_ids[s->n_stop_token_ids++] = (token_id)id;
    }
    return 0;
}

/* The token id that key spells in the one way there is ("7", not "07" or " 7"), or -1: so a bias
 * has one entry a token, however the client writes it. */
static int64_t id_from_key(const char *key, int32_t vocab) {
    size_t n = strspn(key, "0123456789");
    if (n == 0 || n > 10 || key[n] || (n > 1 && *key == '0')) return -1;
    int64_t id = strtoll(key, NULL, 10);
    return id < vocab ? id : -1;
}

/* {"123": -5}: token id to what is added to its logit. */
static int read_bias(struct sampling *s, json_t *bias, int32_t vocab, struct error *e) {
    const char *key;
    json_t *value;
    size_t n = json_object_size(bias);
    if (n == 0) return 0;
    if (n > SAMPLING_MAX_IDS)
        return refuse_count("logit_bias", SAMPLING_MAX_IDS, "token ids", bias, e);
    s->logit_bias = calloc(n, sizeof *s->logit_bias);
    if (!s->logit_bias) return no_memory(e);
    json_object_foreach(bias, key, value) {
        char field[80], expected[64];
        int64_t id = id_from_key(key, vocab);
        snprintf(field, sizeof field, "logit_bias.%.40s", key);
        if (id < 0) {
            snprintf(expected, sizeof expected, "keyed by token ids from 0 to %d", vocab - 1);
            json_t *got = json_string(key);
            int rc = schema_refuse(e, field, expected, got);
            json_decref(got);
            return rc;
        }
        double number = json_is_number(value) ? json_number_value(value) : 1e9;
        if (number < -1000 || number > 1000)
            return schema_refuse(e, field, "a number from -1000 to 1000", value);
        s->logit_bias[s->n_logit_bias++] = (struct logit_bias){(token_id)id, (float)number};
    }
    return 0;
}

int sampling_read(struct sampling *out, const json_t *params, int32_t vocab, struct error *e) {
    sampling_default(out);
    out->seed = draw_seed();
    read_numbers(out, params, &out->seed);
    int rc = read_stop(out, json_object_get(params, "stop"), e);
    if (rc == 0) rc = read_stop_ids(out, json_object_get(params, "stop_token_ids"), vocab, e);
    if (rc == 0) rc = read_bias(out, json_object_get(params, "logit_bias"), vocab, e);
    if (rc != 0) sampling_clear(out);
    return rc;
}

static void *copy_of(const void *data, size_t bytes) {
    void *copy = bytes ? malloc(bytes) : NULL;
    if (copy) memcpy(copy, data, bytes);
    return copy;
}

int sampling_copy(struct sampling *out, const struct sampling *from, uint64_t seed,
                  struct error *e) {
    *out = *from;
    out->seed = seed;
    out->n_stop = 0;
    grammar_share(out->grammar);
    out->logit_bias = copy_of(from->logit_bias, from->n_logit_bias * sizeof *from->logit_bias);
    out->stop_token_ids =
        copy_of(from->stop_token_ids, from->n_stop_token_ids * sizeof *from->stop_token_ids);
    bool whole = (out->logit_bias || from->n_logit_bias == 0) &&
                 (out->stop_token_ids || from->n_stop_token_ids == 0);
    for (int i = 0; i < from->n_stop && whole; i++) {
        out->stop[i] = strdup(from->stop[i]);
        whole = out->stop[i] != NULL;
        if (whole) out->n_stop++;
    }
    if (whole) return 0;
    sampling_clear(out);
    return no_memory(e);
}
