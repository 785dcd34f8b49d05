/* daemon/offline_text.c: see offline_text.h. */
#include "daemon/offline_text.h"

#include "base/json.h"
#include "daemon/offline.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a command answers lines with. */
struct text_command {
    struct tokenizer *tokenizer;
    bool option; /* its option is given */
};

static json_t *no_memory(struct error *e) {
    error_set(e, ERR_MEMORY, "no memory for an answer");
    return NULL;
}

static json_t *json_ids(const struct token_ids *ids) {
    json_t *list = json_array();
    for (size_t i = 0; i < ids->n; i++) json_array_append_new(list, json_integer(ids->ids[i]));
    return list;
}

static json_t *tokenize_line(const void *self, json_t *line, struct error *e) {
    const struct text_command *command = self;
    const struct tokenizer *t = command->tokenizer;
    const json_t *text = json_object_get(line, "text");
    struct token_ids ids = {0};
    char *decoded = NULL;
    size_t size;
    json_t *out = NULL;
    if (!json_is_string(text)) {
        char got[128];
        error_set(e, ERR_PARAMS, "text must be a string, not %s",
                  json_describe(text, got, sizeof got));
        return NULL;
    }
    int err = tokenizer_encode(t, json_string_value(text), json_string_length(text),
                               command->option, &ids, e);
    if (!err) err = tokenizer_decode(t, ids.ids, ids.n, false, &decoded, &size, e);
    if (!err) {
        out =
            json_pack("{s:o, s:o}", "ids", json_ids(&ids), "decoded", json_stringn(decoded, size));
        if (!out) no_memory(e);
    }
    token_ids_free(&ids);
    free(decoded);
    return out;
}

/* "ids" as numbers that fit; whether the vocabulary has them is the decoder's question. */
static int read_ids(const json_t *line, struct token_ids *ids, struct error *e) {
    const json_t *list = json_object_get(line, "ids"), *id;
    char got[128];
    size_t i;
    if (!json_is_array(list))
        return error_set(e, ERR_PARAMS, "ids must be an array of numbers, not %s",
                         json_describe(list, got, sizeof got));
    ids->ids = malloc((json_array_size(list) + 1) * sizeof *ids->ids);
    if (!ids->ids) return error_set(e, ERR_MEMORY, "no memory for ids");
    json_array_foreach(list, i, id) {
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) > INT32_MAX)
            return error_set(e, ERR_PARAMS, "ids[%zu] must be a token's number, not %s", i,
                             json_describe(id, got, sizeof got));
        ids->ids[ids->n++] = (token_id)json_integer_value(id);
    }
    return 0;
}

/* The pieces of a stream; NULL with e set on an error. */
static json_t *stream_pieces(const struct tokenizer *t, const struct token_ids *ids,
                             struct error *e) {
    struct token_stream *stream;
    json_t *pieces = json_array(), *last = json_string("");
    const char *piece;
    size_t size;
    int err = token_stream_new(&stream, t, false, false, e);
    if (err) stream = NULL;
    for (size_t i = 0; i < ids->n && !err; i++) {
        err = token_stream_push(stream, ids->ids[i], &piece, &size, e);
        if (err) break;
        json_decref(last);
        last = json_stringn(piece, size);
        if (i + 1 < ids->n) json_array_append(pieces, last);
    }
    if (!err) err = token_stream_end(stream, &piece, &size, e);
    if (!err && ids->n > 0) { /* the last piece has what the end brings */
        size_t before = json_string_length(last);
        char *joined = malloc(before + size + 1);
        if (!joined) err = error_set(e, ERR_MEMORY, "no memory for pieces");
        else {
            memcpy(joined, json_string_value(last), before);
            memcpy(joined + before, piece, size);
            json_array_append_new(pieces, json_stringn(joined, before + size));
            free(joined);
        }
    }
    token_stream_free(stream);
    json_decref(last);
    if (err) {
        json_decref(pieces);
        pieces = NULL;
    }
    return pieces;
}

static json_t *detokenize_line(const void *self, json_t *line, struct error *e) {
    const struct text_command *command = self;
    const struct tokenizer *t = command->tokenizer;
    struct token_ids ids = {0};
    char *text = NULL;
    size_t size;
    json_t *out = NULL, *pieces = NULL;
    int err = read_ids(line, &ids, e);
    if (!err) err = tokenizer_decode(t, ids.ids, ids.n, false, &text, &size, e);
    if (!err && command->option && !(pieces = stream_pieces(t, &ids, e))) err = -1;
    if (!err) {
        out = json_pack("{s:o}", "text", json_stringn(text, size));
        if (!out) no_memory(e);
        else if (pieces) json_object_set(out, "pieces", pieces);
    }
    json_decref(pieces);
    token_ids_free(&ids);
    free(text);
    return out;
}

static int run(const char *name, const char *option, int argc, char **argv, offline_answer_fn *answer) {
    const char *path = NULL;
    struct error e = {0};
    struct text_command command = {0};
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], option) == 0) command.option = true;
        else if (argv[i][0] == '-' || path) {
            error_set(&e, ERR_USAGE, "%s: \"%s\" is not understood; usage: tpd %s PATH [%s]",
                      name, argv[i], name, option);
            return offline_fail(&e);
        } else path = argv[i];
    }
    if (!path) {
        error_set(&e, ERR_USAGE, "%s needs a path; usage: tpd %s PATH [%s]", name, name,
                  option);
        return offline_fail(&e);
    }
    if (tokenizer_open(&command.tokenizer, path, &e) != 0) return offline_fail(&e);
    const char *warning = tokenizer_warning(command.tokenizer);
    if (warning) fprintf(stderr, "tpd: %s: %s\n", path, warning);
    int rc = offline_answer_lines(answer, &command);
    tokenizer_free(command.tokenizer);
    return rc;
}

int offline_tokenize(int argc, char **argv) {
    return run("tokenize", "--special", argc, argv, tokenize_line);
}

int offline_detokenize(int argc, char **argv) {
    return run("detokenize", "--stream", argc, argv, detokenize_line);
}
