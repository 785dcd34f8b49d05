/* daemon/offline_text.c: see offline_text.h. */
#include "daemon/offline_text.h"

#include "base/json.h"
#include "daemon/offline.h"
#include "text/tokenizer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LINE = 64 << 20 };

/* Answers one line; NULL with e set when it cannot. */
typedef json_t *answer_fn(const struct tokenizer *t, const json_t *line, bool option,
                          struct error *e);

static json_t *no_memory(struct error *e) {
    error_set(e, ERR_MEMORY, "no memory for an answer");
    return NULL;
}

static json_t *json_ids(const struct token_ids *ids) {
    json_t *list = json_array();
    for (size_t i = 0; i < ids->n; i++) json_array_append_new(list, json_integer(ids->ids[i]));
    return list;
}

static json_t *tokenize_line(const struct tokenizer *t, const json_t *line, bool special,
                             struct error *e) {
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
    int err =
        tokenizer_encode(t, json_string_value(text), json_string_length(text), special, &ids, e);
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

static json_t *detokenize_line(const struct tokenizer *t, const json_t *line, bool stream,
                               struct error *e) {
    struct token_ids ids = {0};
    char *text = NULL;
    size_t size;
    json_t *out = NULL, *pieces = NULL;
    int err = read_ids(line, &ids, e);
    if (!err) err = tokenizer_decode(t, ids.ids, ids.n, false, &text, &size, e);
    if (!err && stream && !(pieces = stream_pieces(t, &ids, e))) err = -1;
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

/* One line in, one line out. */
static json_t *answer_line(const struct tokenizer *t, const char *text, size_t size, bool option,
                           answer_fn *answer) {
    struct error e = {0};
    json_t *out = NULL;
    if (size > MAX_LINE)
        error_set(&e, ERR_PARAMS, "the line has %zu bytes; at most %d are taken", size, MAX_LINE);
    else {
        json_t *line = json_read(text, size, &e);
        if (line && !json_is_object(line))
            error_set(&e, ERR_PARAMS, "a line must be a JSON object");
        else if (line) out = answer(t, line, option, &e);
        json_decref(line);
    }
    return out ? out : json_pack("{s:s}", "error", e.message);
}

static int run(const char *command, const char *option, int argc, char **argv, answer_fn *answer) {
    const char *path = NULL;
    struct error e = {0};
    struct tokenizer *t;
    bool given = false;
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], option) == 0) given = true;
        else if (argv[i][0] == '-' || path) {
            error_set(&e, ERR_USAGE, "%s: \"%s\" is not understood; usage: tpd %s PATH [%s]",
                      command, argv[i], command, option);
            return offline_fail(&e);
        } else path = argv[i];
    }
    if (!path) {
        error_set(&e, ERR_USAGE, "%s needs a path; usage: tpd %s PATH [%s]", command, command,
                  option);
        return offline_fail(&e);
    }
    if (tokenizer_open(&t, path, &e) != 0) return offline_fail(&e);
    if (tokenizer_warning(t)) fprintf(stderr, "tpd: %s: %s\n", path, tokenizer_warning(t));
    char *line = NULL;
    size_t capacity = 0;
    ssize_t n;
    bool broken = false;
    while (!broken && (n = getline(&line, &capacity, stdin)) > 0) {
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r')) n--;
        if (n == 0) continue;
        json_t *out = answer_line(t, line, (size_t)n, given, answer);
        broken = !out || json_dumpf(out, stdout, JSON_COMPACT) != 0 || putchar('\n') == EOF ||
                 fflush(stdout) != 0;
        json_decref(out);
    }
    free(line);
    tokenizer_free(t);
    if (!broken) return 0;
    error_set(&e, ERR_IO, "stdout: cannot write: %s", strerror(errno));
    return offline_fail(&e);
}

int offline_tokenize(int argc, char **argv) {
    return run("tokenize", "--special", argc, argv, tokenize_line);
}

int offline_detokenize(int argc, char **argv) {
    return run("detokenize", "--stream", argc, argv, detokenize_line);
}
