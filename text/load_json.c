/* text/load_json.c: a Hugging Face tokenizer.json.
 *
 * The file is walked once for the places of its sections. The vocabulary and the merges, nearly all
 * of it, are read where they stand; the small sections go through jansson. "truncation" and
 * "padding" are not looked at: they are for training batches and must not cut a prompt. */
#include "text/internal.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "text/json_scan.h"
#include "text/unicode.h"

enum { MAX_FILE = 64 << 20, MAX_CONFIG = 16 << 20, MAX_SECTION = 16 << 20, MAX_AFFIX = 64 };

/* A member that is wanted, and where it stands; data NULL: it is not there. */
struct section {
    const char *name;
    struct json_text text;
};

/* Fills the sections from the members of the object at *scan. */
static int find_sections(struct json_scan *scan, struct section *sections, size_t n,
                         struct error *e) {
    struct buf spare = {0};
    bool first = true;
    int err = json_scan_open(scan, '{', e), more = 0;
    while (!err && (more = json_scan_next(scan, '}', &first, e)) == 1) {
        struct json_text key, value;
        err = json_scan_key(scan, &spare, &key, e);
        size_t i = 0;
        while (i < n && !(strlen(sections[i].name) == key.size &&
                          memcmp(sections[i].name, key.data, key.size) == 0))
            i++;
        if (!err) err = json_scan_skip(scan, &value, e);
        if (!err && i < n) sections[i].text = value;
    }
    buf_free(&spare);
    return err ? err : more;
}

/* The section as a tree; JSON null when it is not there. */
static json_t *read_section(const struct section *section, struct error *e) {
    if (!section->text.data) return json_null();
    if (section->text.size > MAX_SECTION) { /* as a tree it would take many times that */
        error_set(e, ERR_BAD_FILE, "%s has %zu bytes; at most %d are taken", section->name,
                  section->text.size, MAX_SECTION);
        return NULL;
    }
    json_t *json = json_read(section->text.data, section->text.size, e);
    if (!json) error_prefix(e, "%s: ", section->name);
    return json;
}

static int model_error(struct error *e, const char *what, const char *piece, size_t size) {
    return error_set(e, ERR_BAD_FILE, "model.vocab %s \"%.*s\"", what, size < 60 ? (int)size : 60,
                     piece);
}

/* {"piece": id, …} */
static int load_vocab(struct tokenizer *t, const struct section *section, struct error *e) {
    struct json_scan scan = {section->text.data, section->text.size, 0};
    struct buf spare = {0};
    bool first = true;
    int err, more = 0;
    if (!section->text.data) return error_set(e, ERR_BAD_FILE, "model.vocab is missing");
    err = json_scan_open(&scan, '{', e);
    while (!err && (more = json_scan_next(&scan, '}', &first, e)) == 1) {
        struct json_text piece;
        int64_t id;
        err = json_scan_key(&scan, &spare, &piece, e);
        if (!err) err = json_scan_int(&scan, &id, e);
        if (err) break;
        if (id < 0 || id > VOCAB_MAX_ID) {
            char what[96];
            snprintf(what, sizeof what, "has the id %lld (it may be 0 to %d) for", (long long)id,
                     VOCAB_MAX_ID);
            err = model_error(e, what, piece.data, piece.size);
            break;
        }
        switch (vocab_add(&t->vocab, (token_id)id, piece.data, piece.size)) {
        case VOCAB_ADDED: break;
        case VOCAB_NO_MEMORY: err = error_set(e, ERR_MEMORY, "no memory for a vocabulary"); break;
        case VOCAB_PIECE_TAKEN: err = model_error(e, "has twice", piece.data, piece.size); break;
        case VOCAB_ID_TAKEN: {
            char what[64];
            snprintf(what, sizeof what, "gives the id %lld twice, once to", (long long)id);
            err = model_error(e, what, piece.data, piece.size);
            break;
        }
        }
    }
    buf_free(&spare);
    return err ? err : more;
}

static int bad_merge(struct error *e, size_t number, const char *why, const char *piece,
                     size_t size) {
    return error_set(e, ERR_BAD_FILE, "model.merges[%zu] %s \"%.*s\"", number, why,
                     size < 60 ? (int)size : 60, piece);
}

static int resolve_merge(const struct tokenizer *t, size_t number, struct json_text left,
                         struct json_text right, struct buf *whole, struct merge_ids *out,
                         struct error *e) {
    static const char missing[] = "names a token that is not in the vocabulary:";
    size_t skip = t->subword.prefix.size; /* the right half drops its continuing_subword_prefix */
    if (skip > right.size) skip = right.size;
    whole->size = 0;
    buf_add(whole, left.data, left.size);
    buf_add(whole, right.data + skip, right.size - skip);
    if (whole->failed) return error_set(e, ERR_MEMORY, "no memory for merges");
    out->left = vocab_find(&t->vocab, left.data, left.size);
    out->right = vocab_find(&t->vocab, right.data, right.size);
    out->whole = vocab_find(&t->vocab, whole->data ? whole->data : "", whole->size);
    if (out->left < 0) return bad_merge(e, number, missing, left.data, left.size);
    if (out->right < 0) return bad_merge(e, number, missing, right.data, right.size);
    if (out->whole < 0) return bad_merge(e, number, missing, whole->data, whole->size);
    return 0;
}

/* One element: "left right", or ["left", "right"]. 1 when it was a "#version" line. */
static int read_merge(struct json_scan *scan, size_t number, struct buf spare[2],
                      struct json_text *left, struct json_text *right, struct error *e) {
    if (json_scan_peek(scan) == '[') {
        bool first = true;
        int err = json_scan_open(scan, '[', e);
        if (!err && json_scan_next(scan, ']', &first, e) == 1 && json_scan_peek(scan) == '"')
            err = json_scan_string(scan, &spare[0], left, e);
        else return error_set(e, ERR_BAD_FILE, "model.merges[%zu] is not two strings", number);
        if (!err && json_scan_next(scan, ']', &first, e) == 1 && json_scan_peek(scan) == '"')
            err = json_scan_string(scan, &spare[1], right, e);
        else
            return err ? err
                       : error_set(e, ERR_BAD_FILE, "model.merges[%zu] is not two strings", number);
        if (!err && json_scan_next(scan, ']', &first, e) != 0)
            return error_set(e, ERR_BAD_FILE, "model.merges[%zu] is not two strings", number);
        return err;
    }
    if (json_scan_peek(scan) != '"')
        return error_set(e, ERR_BAD_FILE, "model.merges[%zu] is neither a string nor two", number);
    int err = json_scan_string(scan, &spare[0], left, e);
    if (err) return err;
    if (left->size >= 8 && memcmp(left->data, "#version", 8) == 0) return 1;
    const char *space = memchr(left->data, ' ', left->size);
    size_t at = space ? (size_t)(space - left->data) : 0;
    if (!space || memchr(space + 1, ' ', left->size - at - 1))
        return bad_merge(e, number, "must be two tokens with one space between, not", left->data,
                         left->size);
    *right = (struct json_text){space + 1, left->size - at - 1};
    left->size = at;
    return 0;
}

static int load_merges(struct tokenizer *t, const struct section *section, struct error *e) {
    struct json_scan scan = {section->text.data, section->text.size, 0};
    struct buf spare[2] = {0}, whole = {0};
    struct merge_list merges = {0};
    size_t number = 0;
    bool first = true;
    if (!section->text.data) return error_set(e, ERR_BAD_FILE, "model.merges is missing");
    int err = json_scan_peek(&scan) == '['
                  ? json_scan_open(&scan, '[', e)
                  : error_set(e, ERR_BAD_FILE, "model.merges is not an array");
    int more = 0;
    for (; !err && (more = json_scan_next(&scan, ']', &first, e)) == 1; number++) {
        struct json_text left, right;
        err = read_merge(&scan, number, spare, &left, &right, e);
        if (err == 1) err = 0;
        else if (!err) {
            struct merge_ids ids;
            err = resolve_merge(t, number, left, right, &whole, &ids, e);
            if (!err && !merge_list_add(&merges, ids)) err = error_set(e, ERR_MEMORY, "no memory for merges");
        }
    }
    if (!err) err = more;
    if (!err && !merges_make(&t->subword.merges, merges.at, merges.n, t->vocab.n, true))
        err = error_set(e, ERR_MEMORY, "no memory for merges");
    free(merges.at);
    buf_free(&spare[0]);
    buf_free(&spare[1]);
    buf_free(&whole);
    return err;
}

enum { TYPE, VOCAB, MERGES, UNK, PREFIX, SUFFIX, FUSE, FALLBACK, IGNORE, N_MODEL };

/* A member of the model that is a string or null. */
static int model_string(const struct section *section, struct buf *out, struct error *e) {
    json_t *json = read_section(section, e);
    if (!json) return -(int)ERR_BAD_FILE;
    int err = 0;
    if (json_is_string(json)) {
        buf_add(out, json_string_value(json), json_string_length(json));
        if (out->failed) err = error_set(e, ERR_MEMORY, "no memory for a tokenizer");
    } else if (!json_is_null(json)) {
        char got[96];
        err = error_set(e, ERR_BAD_FILE, "model.%s must be a string, not %s", section->name,
                        json_describe(json, got, sizeof got));
    }
    json_decref(json);
    return err;
}

static int model_bool(const struct section *section, bool *out, struct error *e) {
    json_t *json = read_section(section, e);
    if (!json) return -(int)ERR_BAD_FILE;
    int err = 0;
    *out = json_is_true(json);
    if (!json_is_boolean(json) && !json_is_null(json)) {
        char got[96];
        err = error_set(e, ERR_BAD_FILE, "model.%s must be true or false, not %s", section->name,
                        json_describe(json, got, sizeof got));
    }
    json_decref(json);
    return err;
}

/* *unk: the name of the unknown token, empty when there is none. */
static int load_model(struct tokenizer *t, const struct section *section, struct buf *unk,
                      struct error *e) {
    struct section s[N_MODEL] = {{.name = "type"},
                                 {.name = "vocab"},
                                 {.name = "merges"},
                                 {.name = "unk_token"},
                                 {.name = "continuing_subword_prefix"},
                                 {.name = "end_of_word_suffix"},
                                 {.name = "fuse_unk"},
                                 {.name = "byte_fallback"},
                                 {.name = "ignore_merges"}};
    if (!section->text.data) return error_set(e, ERR_BAD_FILE, "model is missing");
    struct json_scan scan = {section->text.data, section->text.size, 0};
    struct buf type = {0};
    int err = json_scan_peek(&scan) == '{' ? find_sections(&scan, s, N_MODEL, e)
                                           : error_set(e, ERR_BAD_FILE, "model is not an object");
    if (!err) err = model_string(&s[TYPE], &type, e);
    bool bpe = type.size ? type.size == 3 && memcmp(type.data, "BPE", 3) == 0
                         : s[MERGES].text.data != NULL; /* old files do not say */
    if (!err && !bpe)
        err = error_set(e, ERR_BAD_FILE, "model.type is \"%.*s\"; tpd has BPE",
                        type.size < 60 ? (int)type.size : 60, type.data ? type.data : "");
    buf_free(&type);
    if (!err && !vocab_init(&t->vocab, s[VOCAB].text.size / 20))
        err = error_set(e, ERR_MEMORY, "no memory for a vocabulary");
    if (!err) err = load_vocab(t, &s[VOCAB], e);
    if (!err) err = model_string(&s[PREFIX], &t->subword.prefix, e);
    if (!err) err = model_string(&s[SUFFIX], &t->subword.suffix, e);
    if (!err && (t->subword.prefix.size > MAX_AFFIX || t->subword.suffix.size > MAX_AFFIX))
        err = error_set(e, ERR_BAD_FILE,
                        "model.continuing_subword_prefix and end_of_word_suffix "
                        "may have %d bytes",
                        MAX_AFFIX);
    if (!err) err = model_bool(&s[FUSE], &t->subword.fuse_unk, e);
    if (!err) err = model_bool(&s[FALLBACK], &t->subword.byte_fallback, e);
    if (!err) err = model_bool(&s[IGNORE], &t->subword.ignore_merges, e);
    if (!err) err = model_string(&s[UNK], unk, e);
    t->subword.kind = SUBWORD_BPE;
    t->subword.vocab = &t->vocab;
    return err ? err : load_merges(t, &s[MERGES], e);
}

/* One of added_tokens. Its id is the vocabulary's where that has the token, else its own. */
static int load_added(struct tokenizer *t, const json_t *json, struct error *e) {
    const json_t *content = json_object_get(json, "content"), *id = json_object_get(json, "id");
    size_t size = json_string_length(content);
    char got[96];
    if (!json_is_string(content))
        return error_set(e, ERR_BAD_FILE, "content must be a string, not %s",
                         json_describe(content, got, sizeof got));
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > VOCAB_MAX_ID)
        return error_set(e, ERR_BAD_FILE, "id must be a number from 0 to %d, not %s", VOCAB_MAX_ID,
                         json_describe(id, got, sizeof got));
    if (size == 0) return 0;
    const char *text = json_string_value(content);
    token_id known = vocab_find(&t->vocab, text, size);
    if (known < 0) {
        known = (token_id)json_integer_value(id);
        enum vocab_added added = vocab_add(&t->vocab, known, text, size);
        if (added == VOCAB_NO_MEMORY) return error_set(e, ERR_MEMORY, "no memory for a vocabulary");
        if (added != VOCAB_ADDED)
            return error_set(e, ERR_BAD_FILE, "\"%.60s\" has the id %d of another token", text,
                             known);
    }
    struct added_flags flags = {.special = json_is_true(json_object_get(json, "special")),
                                .single_word = json_is_true(json_object_get(json, "single_word")),
                                .lstrip = json_is_true(json_object_get(json, "lstrip")),
                                .rstrip = json_is_true(json_object_get(json, "rstrip")),
                                .normalized = json_is_true(json_object_get(json, "normalized"))};
    return tokenizer_add_token(t, known, text, size, flags, e);
}

static int load_all_added(struct tokenizer *t, const json_t *list, struct error *e) {
    size_t i;
    const json_t *item;
    if (json_is_null(list)) return 0;
    if (!json_is_array(list)) return error_set(e, ERR_BAD_FILE, " is not an array");
    json_array_foreach(list, i, item) {
        int err = load_added(t, item, e);
        if (err) return error_prefix(e, "[%zu].", i);
    }
    return 0;
}

static int load_normalizer(struct tokenizer *t, const json_t *json, struct error *e) {
    return normaliser_parse(&t->normaliser, json, e);
}

static int load_pre_tokenizer(struct tokenizer *t, const json_t *json, struct error *e) {
    return pretokeniser_parse(&t->pretokeniser, json, e);
}

static int load_decoder(struct tokenizer *t, const json_t *json, struct error *e) {
    return decoder_parse(&t->decoder, json, e);
}

static int load_text(struct tokenizer *t, const char *text, size_t size, struct error *e) {
    /* In the order in which they need each other. */
    struct section s[] = {{.name = "normalizer"},    {.name = "added_tokens"},
                          {.name = "pre_tokenizer"}, {.name = "post_processor"},
                          {.name = "decoder"},       {.name = "model"}};
    static const struct {
        int (*load)(struct tokenizer *t, const json_t *json, struct error *e);
        const char *prefix;
    } loaders[] = {{load_normalizer, "normalizer."},
                   {load_all_added, "added_tokens"},
                   {load_pre_tokenizer, "pre_tokenizer."},
                   {postprocessor_parse, "post_processor."},
                   {load_decoder, "decoder."}};
    enum { N = sizeof loaders / sizeof *loaders };
    size_t bad = utf8_check(text, size);
    if (bad < size) return error_set(e, ERR_BAD_FILE, "not UTF-8 at byte %zu", bad);
    struct json_scan scan = {text, size, 0};
    struct buf unk = {0};
    int err = find_sections(&scan, s, N + 1, e);
    if (!err) err = json_scan_end(&scan, e);
    if (!err) err = load_model(t, &s[N], &unk, e);
    for (int i = 0; i < N && !err; i++) {
        json_t *json = read_section(&s[i], e);
        err = json ? loaders[i].load(t, json, e) : -(int)ERR_BAD_FILE;
        if (json && err) error_prefix(e, "%s", loaders[i].prefix);
        json_decref(json);
    }
    t->subword.unk = unk.size ? vocab_find(&t->vocab, unk.data, unk.size) : -1;
    buf_free(&unk);
    if (!err && !subword_prepare(&t->subword, &t->vocab))
        err = error_set(e, ERR_MEMORY, "no memory for a tokenizer");
    return err;
}

int tokenizer_load_json(struct tokenizer *t, const char *path, struct error *e) {
    char *text;
    size_t size;
    int err = file_read(path, MAX_FILE, &text, &size, e);
    if (err) return err;
    size_t bom = size >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
    struct error why = {0};
    t->fingerprint = hash_bytes(0, text, size);
    err = load_text(t, text + bom, size - bom, &why);
    free(text);
    if (!err) return 0;
    if (why.kind == ERR_MEMORY) return error_set(e, ERR_MEMORY, "%s: %s", path, why.message);
    return error_bad_file(e, path, NULL, NULL, "%s", why.message);
}

/* "eos_token": "</s>" or {"content": "</s>", …} */
static token_id config_token(const struct tokenizer *t, const struct section *section) {
    struct error ignored;
    json_t *json = read_section(section, &ignored);
    const json_t *value = json_is_object(json) ? json_object_get(json, "content") : json;
    token_id id = json_is_string(value)
                      ? vocab_find(&t->vocab, json_string_value(value), json_string_length(value))
                      : -1;
    json_decref(json);
    return id;
}

/* Walked like the vocabulary, for these files have numbers that jansson does not take:
 * "model_max_length": 1000000000000000019884624838656. */
static int load_config_file(struct tokenizer *t, const char *path, struct error *e) {
    struct section s[] = {{.name = "bos_token"}, {.name = "eos_token"}};
    char *text;
    size_t size;
    int err = file_read(path, MAX_CONFIG, &text, &size, e);
    if (err) return err;
    struct error why = {0};
    struct json_scan scan = {text, size, 0};
    err = find_sections(&scan, s, 2, &why);
    if (!err && t->bos < 0) t->bos = config_token(t, &s[0]);
    if (!err && t->eos < 0) t->eos = config_token(t, &s[1]);
    free(text);
    return err ? error_bad_file(e, path, NULL, NULL, "%s", why.message) : 0;
}

int tokenizer_load_config(struct tokenizer *t, const char *dir, struct error *e) {
    static const char *const names[] = {"tokenizer_config.json", "special_tokens_map.json"};
    for (int i = 0; i < 2; i++) {
        char *path = path_join(dir, names[i]);
        if (!path) return error_set(e, ERR_MEMORY, "no memory for a path");
        int err = path_exists(path) ? load_config_file(t, path, e) : 0;
        free(path);
        if (err) return err;
    }
    return 0;
}
