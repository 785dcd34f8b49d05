#include "serve/output.h"

#include <stdlib.h>
#include <string.h>

struct output {
    char *const *stops;
    struct stop_matcher *stop;
    int stopped; /* the stop string met, or -1 */
    bool ended;
    char *text; /* always with room for a NUL */
    size_t size, capacity, sent;
    size_t *token_end; /* where each token's text ends, held text counted */
    size_t n_tokens, token_capacity, sent_tokens;
};

int output_new(struct output **out, char *const *stops, int n_stops, struct error *e) {
    struct output *o = calloc(1, sizeof *o);
    if (!o) return error_set(e, ERR_MEMORY, "no memory for the text of a request");
    o->stops = stops;
    o->stopped = -1;
    int err = stop_matcher_new(&o->stop, stops, n_stops, e);
    if (!err) err = output_echo(o, "", 0, e);
    if (err) output_free(o);
    else *out = o;
    return err;
}

void output_free(struct output *o) {
    if (!o) return;
    stop_matcher_free(o->stop);
    free(o->text);
    free(o->token_end);
    free(o);
}

int output_echo(struct output *o, const char *text, size_t size, struct error *e) {
    if (o->size + size + 1 > o->capacity) {
        size_t capacity = (o->size + size + 1) * 2;
        char *grown = realloc(o->text, capacity);
        if (!grown) return error_set(e, ERR_MEMORY, "no memory for %zu bytes of text", capacity);
        o->text = grown;
        o->capacity = capacity;
    }
    if (size) memcpy(o->text + o->size, text, size);
    o->size += size;
    return 0;
}

int output_append(struct output *o, const char *text, size_t size, struct error *e) {
    int err = output_echo(o, text, size, e);
    if (err) return err;
    int which;
    size_t used;
    if (stop_matcher_push(o->stop, text, size, &which, &used)) {
        o->stopped = which;
        o->size -= size - used + strlen(o->stops[which]);
    }
    return 0;
}

int output_push(struct output *o, const char *text, size_t size, struct error *e) {
    if (o->n_tokens == o->token_capacity) {
        size_t capacity = o->token_capacity ? o->token_capacity * 2 : 64;
        size_t *grown = realloc(o->token_end, capacity * sizeof *grown);
        if (!grown) return error_set(e, ERR_MEMORY, "no memory for %zu tokens", capacity);
        o->token_end = grown;
        o->token_capacity = capacity;
    }
    int err = output_append(o, text, size, e);
    if (!err) o->token_end[o->n_tokens++] = o->size;
    return err;
}

void output_end(struct output *o) {
    o->ended = true;
}

int output_stop(const struct output *o) {
    return o->stopped;
}

bool output_piece(struct output *o, struct output_piece *piece) {
    bool whole = o->ended || o->stopped >= 0;
    size_t safe = whole ? o->size : o->size - stop_matcher_held(o->stop);
    size_t tokens = o->sent_tokens;
    while (tokens < o->n_tokens && (whole || o->token_end[tokens] <= safe)) tokens++;
    if (safe == o->sent && (!whole || tokens == o->sent_tokens)) return false;
    *piece = (struct output_piece){o->text + o->sent, safe - o->sent, o->sent_tokens,
                                   tokens - o->sent_tokens};
    o->sent = safe;
    o->sent_tokens = tokens;
    return true;
}

char *output_take(struct output *o, size_t *size) {
    char *text = o->text;
    text[o->size] = '\0';
    *size = o->size;
    o->text = NULL;
    return text;
}
