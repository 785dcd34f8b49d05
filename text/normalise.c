/* text/normalise.c: see normalise.h. */
#include "text/normalise.h"

#include "base/json.h"
#include "text/unicode.h"

#include <utf8proc.h>

static struct normal_step *add_step(struct normaliser *n, enum normal_kind kind, struct error *e) {
    if (n->n == NORMAL_MAX_STEPS) {
        error_set(e, ERR_BAD_FILE, "more than %d normalizers", NORMAL_MAX_STEPS);
        return NULL;
    }
    struct normal_step *steps = realloc(n->steps, (n->n + 1) * sizeof *steps);
    if (!steps) {
        error_set(e, ERR_MEMORY, "no memory for a normalizer");
        return NULL;
    }
    n->steps = steps;
    steps[n->n] = (struct normal_step){.kind = kind};
    return &steps[n->n++];
}

void normaliser_free(struct normaliser *n) {
    for (size_t i = 0; i < n->n; i++) {
        pattern_free(&n->steps[i].pattern);
        buf_free(&n->steps[i].text);
    }
    free(n->steps);
    *n = (struct normaliser){0};
}

/* A member that must be a string, into the step's text. */
static int take_text(struct normal_step *step, const json_t *json, const char *key,
                     struct error *e) {
    const json_t *value = json_object_get(json, key);
    if (!json_is_string(value)) {
        char got[96];
        return error_set(e, ERR_BAD_FILE, "%s must be a string, not %s", key,
                         json_describe(value, got, sizeof got));
    }
    buf_add(&step->text, json_string_value(value), json_string_length(value));
    return step->text.failed ? error_set(e, ERR_MEMORY, "no memory for a normalizer") : 0;
}

static int parse_sequence(struct normaliser *n, const json_t *json, struct error *e) {
    const json_t *list = json_object_get(json, "normalizers"), *item;
    size_t i;
    if (!json_is_array(list)) return error_set(e, ERR_BAD_FILE, "normalizers must be an array");
    json_array_foreach(list, i, item) {
        int err = json_is_null(item) ? error_set(e, ERR_BAD_FILE, "must be an object, not null")
                                     : normaliser_parse(n, item, e);
        if (err) return error_prefix(e, "normalizers[%zu].", i);
    }
    return 0;
}

int normaliser_parse(struct normaliser *n, const json_t *json, struct error *e) {
    static const struct {
        const char *name;
        enum normal_kind kind;
        int form;
    } kinds[] = {{"Prepend", NORMAL_PREPEND, 0},
                 {"Replace", NORMAL_REPLACE, 0},
                 {"NFC", NORMAL_FORM, UTF8PROC_STABLE | UTF8PROC_COMPOSE},
                 {"NFD", NORMAL_FORM, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE},
                 {"NFKC", NORMAL_FORM, UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
                 {"NFKD", NORMAL_FORM, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT},
                 {"Lowercase", NORMAL_LOWERCASE, 0},
                 {"Strip", NORMAL_STRIP, 0},
                 {"StripAccents", NORMAL_STRIP_ACCENTS, 0},
                 {"Nmt", NORMAL_NMT, 0},
                 {"ByteLevel", NORMAL_BYTE_LEVEL, 0}};
    if (json_is_null(json)) return 0;
    const char *type = json_string_value(json_object_get(json, "type"));
    if (!type) return error_set(e, ERR_BAD_FILE, "type must name a normalizer");
    if (strcmp(type, "Sequence") == 0) return parse_sequence(n, json, e);

    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(type, kinds[i].name) != 0) continue;
        struct normal_step *step = add_step(n, kinds[i].kind, e);
        if (!step) return -(int)ERR_BAD_FILE;
        step->form = kinds[i].form;
        if (step->kind == NORMAL_PREPEND) return take_text(step, json, "prepend", e);
        if (step->kind == NORMAL_REPLACE) {
            int err = pattern_parse(&step->pattern, json_object_get(json, "pattern"), e);
            return err ? err : take_text(step, json, "content", e);
        }
        if (step->kind == NORMAL_STRIP) {
            step->left = json_is_true(json_object_get(json, "strip_left"));
            step->right = json_is_true(json_object_get(json, "strip_right"));
        }
        return 0;
    }
    return error_set(e, ERR_BAD_FILE,
                     "type \"%.60s\" is a normalizer that tpd does not have (it has Sequence, "
                     "Prepend, Replace, NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Nmt, "
                     "ByteLevel)",
                     type);
}

int normaliser_sentencepiece(struct normaliser *n, bool prefix, struct error *e) {
    static const char mark[] = "\xE2\x96\x81"; /* ▁ */
    struct normal_step *step;
    if (prefix) {
        if (!(step = add_step(n, NORMAL_PREPEND, e))) return -(int)ERR_MEMORY;
        buf_add(&step->text, mark, 3);
    }
    if (!(step = add_step(n, NORMAL_REPLACE, e))) return -(int)ERR_MEMORY;
    buf_add(&step->text, mark, 3);
    return pattern_of_string(&step->pattern, " ", 1, e);
}

static int form(const struct normal_step *step, const struct buf *in, struct buf *out,
                struct error *e) {
    utf8proc_uint8_t *mapped;
    utf8proc_ssize_t n =
        utf8proc_map((const utf8proc_uint8_t *)in->data, (utf8proc_ssize_t)in->size, &mapped,
                     (utf8proc_option_t)step->form);
    if (n < 0)
        return error_set(e, n == UTF8PROC_ERROR_NOMEM ? ERR_MEMORY : ERR_PARAMS,
                         "the text cannot be normalised: %s", utf8proc_errmsg(n));
    buf_add(out, mapped, (size_t)n);
    free(mapped);
    return 0;
}

static void strip(const struct normal_step *step, const struct buf *in, struct buf *out,
                  bool *at_start) {
    size_t from = 0, to = in->size;
    uint32_t c;
    while (step->left && from < to) {
        size_t n = utf8_next(in->data + from, &c);
        if (!char_is_space(c)) break;
        from += n;
    }
    while (step->right && to > from) {
        size_t before = utf8_before(in->data, to);
        utf8_next(in->data + before, &c);
        if (!char_is_space(c)) break;
        to = before;
    }
    if (from > 0) *at_start = false;
    buf_add(out, in->data + from, to - from);
}

enum { GONE = -1 };

/* What SentencePiece's NMT rules make of a character: itself, a space, or GONE. NUL stays. */
static int32_t nmt(uint32_t c) {
    if (c == '\t' || c == '\n' || c == '\f' || c == '\r') return ' ';
    if ((c > 0 && c < ' ') || c == 0x7F || c == 0x8F || c == 0x9F) return GONE;
    if (c == 0x1680 || (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
        c == 0xFEFF || c == 0xFFFD)
        return ' ';
    return (int32_t)c;
}

/* The steps that look at one character after the other. */
static void each_char(enum normal_kind kind, const struct buf *in, struct buf *out) {
    uint32_t c;
    for (size_t at = 0, n; at < in->size; at += n) {
        n = utf8_next(in->data + at, &c);
        int32_t to = (int32_t)c;
        if (kind == NORMAL_STRIP_ACCENTS && char_is_mark(c)) continue;
        if (kind == NORMAL_NMT) {
            to = nmt(c);
            if (to == GONE) continue;
        } else if (kind == NORMAL_LOWERCASE) to = utf8proc_tolower((utf8proc_int32_t)c);
        if (kind == NORMAL_LOWERCASE && c == 0x130)
            buf_add(out, "i\xCC\x87", 3); /* İ alone has two */
        else if (to == (int32_t)c) buf_add(out, in->data + at, n);
        else {
            char bytes[4];
            buf_add(out, bytes, utf8_put(bytes, (uint32_t)to));
        }
    }
}

int normalise(const struct normaliser *n, struct buf *text, struct buf *spare,
              struct regex_scratch **scratch, bool *at_start, struct error *e) {
    size_t limit = pattern_limit(text->size);
    for (size_t i = 0; i < n->n && text->size > 0; i++) {
        const struct normal_step *step = &n->steps[i];
        int err = 0;
        spare->size = 0;
        switch (step->kind) {
        case NORMAL_PREPEND:
            buf_add(spare, step->text.data, step->text.size);
            buf_add(spare, text->data, text->size);
            break;
        case NORMAL_REPLACE:
            err = pattern_replace(&step->pattern, scratch, text->data, text->size, &step->text,
                                  limit, spare, e);
            break;
        case NORMAL_FORM: err = form(step, text, spare, e); break;
        case NORMAL_STRIP: strip(step, text, spare, at_start); break;
        case NORMAL_BYTE_LEVEL: bytes_to_chars(spare, text->data, text->size); break;
        case NORMAL_LOWERCASE:
        case NORMAL_STRIP_ACCENTS:
        case NORMAL_NMT: each_char(step->kind, text, spare); break;
        }
        if (err) return err;
        buf_swap(text, spare);
    }
    if (text->failed || spare->failed)
        return error_set(e, ERR_MEMORY, "no memory to normalise text");
    return 0;
}
