/* text/decode_parse.c: the decoder section of a tokenizer file into a chain of steps. */
#include "text/decode.h"

#include "base/json.h"
#include "text/pretokenise.h"

static struct decode_step *add_step(struct decoder *d, enum decode_kind kind, struct error *e) {
    if (!d->steps) d->steps = calloc(DECODE_MAX_STEPS, sizeof *d->steps);
    if (!d->steps) {
        error_set(e, ERR_MEMORY, "no memory for a decoder");
        return NULL;
    }
    if (d->n == DECODE_MAX_STEPS) {
        error_set(e, ERR_BAD_FILE, "more than %d decoders", DECODE_MAX_STEPS);
        return NULL;
    }
    d->steps[d->n] = (struct decode_step){.kind = kind};
    return &d->steps[d->n++];
}

/* Appends a step that works on items, or where it may on fragments. Once fragments flow, a step
 * that needs a whole item gets a DECODE_COLLECT before it, and all behind it see one item. */
static int append(struct decoder *d, struct decode_step step, struct error *e) {
    bool fused = false;
    for (size_t i = 0; i < d->n; i++) {
        enum decode_kind kind = d->steps[i].kind;
        if (kind == DECODE_FUSE || kind == DECODE_BYTE_LEVEL) fused = true;
        if (kind == DECODE_COLLECT) fused = false;
    }
    bool by_fragment = step.kind == DECODE_STRIP || step.kind == DECODE_FUSE ||
                       (step.kind == DECODE_REPLACE && step.pattern.kind == PATTERN_STRING &&
                        step.pattern.size == 1);
    struct decode_step *collect = NULL, *added = NULL;
    if (fused && !by_fragment) collect = add_step(d, DECODE_COLLECT, e);
    if (!(fused && !by_fragment) || collect) added = add_step(d, step.kind, e);
    if (!added) {
        pattern_free(&step.pattern);
        buf_free(&step.text);
        return e ? -(int)e->kind : -(int)ERR_BAD_FILE;
    }
    step.fused = fused && by_fragment;
    *added = step;
    return 0;
}

void decoder_free(struct decoder *d) {
    for (size_t i = 0; i < d->n; i++) {
        pattern_free(&d->steps[i].pattern);
        buf_free(&d->steps[i].text);
    }
    free(d->steps);
    *d = (struct decoder){0};
}

static int bad_member(const json_t *json, const char *key, const char *expected, struct error *e) {
    char got[96];
    return error_set(e, ERR_BAD_FILE, "%s must be %s, not %s", key, expected,
                     json_describe(json_object_get(json, key), got, sizeof got));
}

static int take_text(struct decode_step *step, const json_t *json, const char *key,
                     struct error *e) {
    const json_t *value = json_object_get(json, key);
    if (!json_is_string(value)) return bad_member(json, key, "a string", e);
    buf_add(&step->text, json_string_value(value), json_string_length(value));
    return step->text.failed ? error_set(e, ERR_MEMORY, "no memory for a decoder") : 0;
}

static int take_count(const json_t *json, const char *key, size_t *out, struct error *e) {
    const json_t *value = json_object_get(json, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        json_integer_value(value) > 1 << 20)
        return bad_member(json, key, "a number from 0 to 1048576", e);
    *out = (size_t)json_integer_value(value);
    return 0;
}

static int parse_step(struct decode_step *step, const json_t *json, struct error *e) {
    int err = 0;
    char mark[5];
    enum prepend_scheme scheme;
    bool split;
    switch (step->kind) {
    case DECODE_REPLACE:
        err = pattern_parse(&step->pattern, json_object_get(json, "pattern"), e);
        return err ? err : take_text(step, json, "content", e);
    case DECODE_STRIP:
        err = take_text(step, json, "content", e);
        if (!err) err = take_count(json, "start", &step->start, e);
        return err ? err : take_count(json, "stop", &step->stop, e);
    case DECODE_METASPACE:
        if ((err = metaspace_parse(json, mark, &scheme, &split, e)) != 0) return err;
        buf_add(&step->text, mark, strlen(mark));
        step->start = scheme != PREPEND_NEVER;
        return 0;
    case DECODE_BPE_SUFFIX: return take_text(step, json, "suffix", e);
    case DECODE_BYTE_FALLBACK:
    case DECODE_BYTE_LEVEL:
    case DECODE_FUSE:
    case DECODE_JOIN:
    case DECODE_COLLECT: return 0;
    }
    return 0;
}

static int parse_object(struct decoder *d, const json_t *json, struct error *e);

static int parse_sequence(struct decoder *d, const json_t *json, struct error *e) {
    const json_t *list = json_object_get(json, "decoders"), *item;
    size_t i;
    if (!json_is_array(list)) return bad_member(json, "decoders", "an array", e);
    json_array_foreach(list, i, item) {
        int err = parse_object(d, item, e);
        if (err) return error_prefix(e, "decoders[%zu].", i);
    }
    return 0;
}

static int parse_object(struct decoder *d, const json_t *json, struct error *e) {
    static const struct {
        const char *name;
        enum decode_kind kind;
    } kinds[] = {{"Replace", DECODE_REPLACE},
                 {"ByteFallback", DECODE_BYTE_FALLBACK},
                 {"Strip", DECODE_STRIP},
                 {"Metaspace", DECODE_METASPACE},
                 {"BPEDecoder", DECODE_BPE_SUFFIX},
                 {"ByteLevel", DECODE_BYTE_LEVEL},
                 {"Fuse", DECODE_FUSE}};
    const char *type = json_string_value(json_object_get(json, "type"));
    if (!type) return error_set(e, ERR_BAD_FILE, "type must name a decoder");
    if (strcmp(type, "Sequence") == 0) return parse_sequence(d, json, e);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(type, kinds[i].name) != 0) continue;
        struct decode_step step = {.kind = kinds[i].kind};
        int err = parse_step(&step, json, e);
        if (!err) return append(d, step, e);
        pattern_free(&step.pattern);
        buf_free(&step.text);
        return err;
    }
    return error_set(
        e, ERR_BAD_FILE,
        "type \"%.60s\" is a decoder that tpd does not have (it has Sequence, Replace, "
        "ByteFallback, Strip, Metaspace, BPEDecoder, ByteLevel, Fuse)",
        type);
}

int decoder_parse(struct decoder *d, const json_t *json, struct error *e) {
    if (json_is_null(json)) return append(d, (struct decode_step){.kind = DECODE_JOIN}, e);
    return parse_object(d, json, e);
}

int decoder_byte_level(struct decoder *d, struct error *e) {
    return append(d, (struct decode_step){.kind = DECODE_BYTE_LEVEL}, e);
}

int decoder_sentencepiece(struct decoder *d, bool strip_prefix, struct error *e) {
    struct decode_step spaces = {.kind = DECODE_REPLACE};
    buf_add_char(&spaces.text, ' ');
    int err = pattern_of_string(&spaces.pattern, "\xE2\x96\x81", 3, e);
    if (!err) err = append(d, spaces, e);
    if (!err) err = append(d, (struct decode_step){.kind = DECODE_BYTE_FALLBACK}, e);
    if (!err) err = append(d, (struct decode_step){.kind = DECODE_FUSE}, e);
    if (err || !strip_prefix) return err;
    struct decode_step strip = {.kind = DECODE_STRIP, .start = 1};
    buf_add_char(&strip.text, ' ');
    return append(d, strip, e);
}
