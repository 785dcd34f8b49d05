/* What a caller makes and gets: requests, events, sampling parameters. */
#include "serve/engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void sampling_default(struct sampling *s) {
    *s = (struct sampling){.max_tokens = -1,
                           .temperature = 1,
                           .top_p = 1,
                           .repetition_penalty = 1,
                           .penalty_last_n = -1,
                           .logprobs = -1};
}

void sampling_clear(struct sampling *s) {
    for (int i = 0; i < s->n_stop; i++) free(s->stop[i]);
    free(s->logit_bias);
    free(s->stop_token_ids);
    grammar_release(s->grammar);
    s->grammar = NULL;
    s->n_stop = 0;
    s->logit_bias = NULL;
    s->stop_token_ids = NULL;
    s->n_logit_bias = s->n_stop_token_ids = 0;
}

const char *finish_reason_name(enum finish_reason reason) {
    switch (reason) {
    case FINISH_STOP: return "stop";
    case FINISH_LENGTH: return "length";
    case FINISH_CANCELLED: return "cancelled";
    case FINISH_ERROR:
    case FINISH_COUNT: break;
    }
    return "error";
}

static int bad_field(struct error *e, const char *field, const char *expected, double got) {
    char text[32];
    snprintf(text, sizeof text, "%.17g", got);
    int err = error_set(e, ERR_PARAMS, "%s must be %s, got %s", field, expected, text);
    error_note(e, "field", field);
    error_note(e, "expected", expected);
    error_note(e, "got", text);
    return err;
}

static int check_id(struct error *e, const char *field, int64_t id, int32_t vocab) {
    if (id >= 0 && id < vocab) return 0;
    char expected[64];
    snprintf(expected, sizeof expected, "a token id from 0 to %d", vocab - 1);
    return bad_field(e, field, expected, (double)id);
}

static int check_stops(const struct sampling *s, struct error *e) {
    if (s->n_stop < 0 || s->n_stop > SAMPLING_MAX_STOP)
        return bad_field(e, "stop", "at most 16 strings", s->n_stop);
    for (int i = 0; i < s->n_stop; i++) {
        size_t size = strlen(s->stop[i]);
        if (size == 0 || size > STOP_MAX_BYTES)
            return bad_field(e, "stop", "strings of 1 to 1024 bytes", (double)size);
    }
    return 0;
}

/* Written so that a NaN fails too. */
static int check_numbers(const struct sampling *s, struct error *e) {
    const struct {
        const char *field;
        double value, min, max;
        const char *expected;
    } ranges[] = {
        {"temperature", s->temperature, 0, HUGE_VAL, "a number from 0 up"},
        {"top_p", s->top_p, 0, 1, "a number from 0 to 1"},
        {"min_p", s->min_p, 0, 1, "a number from 0 to 1"},
        {"repetition_penalty", s->repetition_penalty, 1e-6, 1e6, "a number from 1e-6 to 1e6"},
        {"presence_penalty", s->presence_penalty, -1e6, 1e6, "a number from -1e6 to 1e6"},
        {"frequency_penalty", s->frequency_penalty, -1e6, 1e6, "a number from -1e6 to 1e6"},
        {"penalty_last_n", (double)s->penalty_last_n, -1, HUGE_VAL, "-1 (all) or a count"},
        {"max_tokens", (double)s->max_tokens, -1, HUGE_VAL, "-1 (to the context's end) or a count"},
        {"logprobs", s->logprobs, -1, SAMPLING_MAX_LOGPROBS, "a number from 0 to 20"},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (!(ranges[i].value >= ranges[i].min && ranges[i].value <= ranges[i].max))
            return bad_field(e, ranges[i].field, ranges[i].expected, ranges[i].value);
    return 0;
}

static int check_ids(const struct sampling *s, int32_t vocab, struct error *e) {
    int err = 0;
    if (s->n_stop_token_ids > SAMPLING_MAX_IDS)
        return bad_field(e, "stop_token_ids", "at most 4096 ids", (double)s->n_stop_token_ids);
    if (s->n_logit_bias > SAMPLING_MAX_IDS)
        return bad_field(e, "logit_bias", "at most 4096 ids", (double)s->n_logit_bias);
    for (size_t i = 0; i < s->n_stop_token_ids && !err; i++)
        err = check_id(e, "stop_token_ids", s->stop_token_ids[i], vocab);
    for (size_t i = 0; i < s->n_logit_bias && !err; i++) {
        err = check_id(e, "logit_bias", s->logit_bias[i].id, vocab);
        if (!err && !(fabsf(s->logit_bias[i].bias) <= 1e6f))
            err = bad_field(e, "logit_bias", "a number from -1e6 to 1e6", s->logit_bias[i].bias);
    }
    return err;
}

int sampling_check(const struct sampling *s, int32_t vocab, struct error *e) {
    int err = check_numbers(s, e);
    if (!err) err = check_stops(s, e);
    return err ? err : check_ids(s, vocab, e);
}

struct gen_request *gen_request_new(void) {
    struct gen_request *request = calloc(1, sizeof *request);
    if (!request) return NULL;
    sampling_default(&request->sampling);
    request->adapter = -1;
    return request;
}

void gen_request_free(struct gen_request *request) {
    if (!request) return;
    free(request->prompt);
    sampling_clear(&request->sampling);
    free(request);
}

void gen_event_free(struct gen_event *event) {
    if (!event) return;
    free(event->text);
    free(event->tokens);
    free(event->prompt_tokens);
    free(event->embedding);
    free(event->stop);
    free(event);
}
