/* text/tokenizer.c: opening, looking up, and the way of a text through the parts:
 *
 *   added tokens → normalizer → added tokens of normalised text → pre-tokenizer → merging
 */
#include "text/internal.h"

#include "base/file.h"
#include "text/unicode.h"


void token_ids_free(struct token_ids *ids) {
    free(ids->ids);
    *ids = (struct token_ids){0};
}

static bool is_gguf(const char *path) {
    size_t n = strlen(path);
    return (n > 5 && strcmp(path + n - 5, ".gguf") == 0) || file_begins_with(path, "GGUF");
}

/* path is a directory: its tokenizer.json. */
static int load_dir(struct tokenizer *t, const char *dir, struct error *e) {
    char *path = path_join(dir, "tokenizer.json");
    if (!path) return error_set(e, ERR_MEMORY, "no memory for a path");
    int err = path_exists(path)
                  ? tokenizer_load_json(t, path, e)
                  : error_set(e, ERR_NOT_FOUND,
                              "%s: there is no tokenizer.json (tpd reads tokenizer.json "
                              "or a .gguf file; transformers writes it with save_pretrained)",
                              dir);
    free(path);
    return err ? err : tokenizer_load_config(t, dir, e);
}

/* path is a tokenizer.json: its configuration stands beside it. */
static int load_file(struct tokenizer *t, const char *path, struct error *e) {
    int err = tokenizer_load_json(t, path, e);
    if (err) return err;
    size_t n = (size_t)(path_base(path) - path);
    char *dir = n ? strndup(path, n) : strdup(".");
    if (!dir) return error_set(e, ERR_MEMORY, "no memory for a path");
    err = tokenizer_load_config(t, dir, e);
    free(dir);
    return err;
}

int tokenizer_open(struct tokenizer **out, const char *path, struct error *e) {
    struct tokenizer *t = calloc(1, sizeof *t);
    if (!t) return error_set(e, ERR_MEMORY, "no memory for a tokenizer");
    t->bos = t->eos = t->subword.unk = -1;
    int err = path_is_dir(path) ? load_dir(t, path, e)
              : is_gguf(path)   ? tokenizer_load_gguf(t, path, e)
                                : load_file(t, path, e);
    if (err) {
        tokenizer_free(t);
        return err;
    }
    *out = t;
    return 0;
}

void tokenizer_free(struct tokenizer *t) {
    if (!t) return;
    vocab_free(&t->vocab);
    subword_free(&t->subword);
    added_free(&t->raw);
    added_free(&t->normal);
    normaliser_free(&t->normaliser);
    pretokeniser_free(&t->pretokeniser);
    decoder_free(&t->decoder);
    token_ids_free(&t->before);
    token_ids_free(&t->behind);
    free(t->warning);
    free(t);
}

int tokenizer_add_token(struct tokenizer *t, token_id id, const char *content, size_t size,
                        struct added_flags flags, struct error *e) {
    struct added_token token = {id, flags.single_word, flags.lstrip, flags.rstrip};
    struct buf text = {0}, spare = {0};
    struct regex_scratch *scratch = NULL;
    bool at_start = true, ok = true;
    int err = 0;
    if (flags.special) t->vocab.entries[id].flags |= VOCAB_SPECIAL;
    if (flags.normalized) {
        buf_add(&text, content, size);
        err = normalise(&t->normaliser, &text, &spare, &scratch, &at_start, e);
        if (!err && text.size) ok = added_put(&t->normal, text.data, text.size, token);
    } else ok = added_put(&t->raw, content, size, token);
    buf_free(&text);
    buf_free(&spare);
    regex_scratch_free(scratch);
    return !err && !ok ? error_set(e, ERR_MEMORY, "no memory for added tokens") : err;
}

int32_t tokenizer_size(const struct tokenizer *t) {
    return t->vocab.n;
}

const char *tokenizer_piece(const struct tokenizer *t, token_id id, size_t *size) {
    return vocab_has(&t->vocab, id) ? vocab_piece(&t->vocab, id, size) : NULL;
}

token_id tokenizer_find(const struct tokenizer *t, const char *piece) {
    return vocab_find(&t->vocab, piece, strlen(piece));
}

bool tokenizer_is_special(const struct tokenizer *t, token_id id) {
    return vocab_has(&t->vocab, id) && (t->vocab.entries[id].flags & VOCAB_SPECIAL);
}

uint64_t tokenizer_fingerprint(const struct tokenizer *t) {
    return t->fingerprint;
}

token_id tokenizer_bos(const struct tokenizer *t) {
    return t->bos;
}

token_id tokenizer_eos(const struct tokenizer *t) {
    return t->eos;
}

const char *tokenizer_warning(const struct tokenizer *t) {
    return t->warning;
}

/* Everything that one call of tokenizer_encode needs. */
struct encoding {
    const struct tokenizer *t;
    struct token_ids *out;
    struct error *e;
    struct buf normal, spare;
    struct pieces pieces, spare_pieces;
    struct regex_scratch *scratch;
    struct subword_work work;
};

static int add_id(struct encoding *c, token_id id) {
    return token_ids_add(c->out, id) ? 0 : error_set(c->e, ERR_MEMORY, "no memory for ids");
}

/* Normalised text without added tokens. */
static int encode_plain(struct encoding *c, const char *text, size_t size, bool at_start) {
    struct pieces *p = &c->pieces;
    p->text.size = 0;
    p->spans.n = 0;
    buf_add(&p->text, text, size);
    spans_add(&p->spans, 0, size);
    int err = pretokenise(&c->t->pretokeniser, p, &c->spare_pieces, &c->scratch, at_start, c->e);
    for (size_t i = 0; i < p->spans.n && !err; i++)
        err = subword_encode(&c->t->subword, &c->work, p->text.data + p->spans.at[i].from,
                             p->spans.at[i].to - p->spans.at[i].from, c->out, c->e);
    return err;
}

typedef int encode_fn(struct encoding *c, const char *text, size_t size, bool at_start);

/* Cuts text at the added tokens; what is between goes to between. */
static int encode_around(struct encoding *c, const struct added *added, const char *text,
                         size_t size, bool at_start, encode_fn *between) {
    struct added_walk walk = {text, size, 0, 0};
    struct added_match match;
    size_t done = 0;
    int found, err = 0;
    while (!err && (found = added_next(added, &walk, &c->scratch, &match, c->e)) != 0) {
        if (found < 0) return found;
        if (match.from > done)
            err = between(c, text + done, match.from - done, at_start && done == 0);
        if (!err) err = add_id(c, match.id);
        done = match.to;
    }
    if (!err && done < size) err = between(c, text + done, size - done, at_start && done == 0);
    return err;
}

/* Text without the added tokens that are looked for before normalisation. */
static int encode_segment(struct encoding *c, const char *text, size_t size, bool at_start) {
    c->normal.size = 0;
    buf_add(&c->normal, text, size);
    int err = normalise(&c->t->normaliser, &c->normal, &c->spare, &c->scratch, &at_start, c->e);
    return err ? err
               : encode_around(c, &c->t->normal, c->normal.data, c->normal.size, at_start,
                               encode_plain);
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t size, bool add_special,
                     struct token_ids *out, struct error *e) {
    size_t bad = utf8_check(text, size), first = out->n;
    if (bad < size) {
        error_set(e, ERR_PARAMS, "the text is not UTF-8 at byte %zu", bad);
        error_note_number(e, "offset", (int64_t)bad);
        return -(int)ERR_PARAMS;
    }
    struct encoding c = {.t = t, .out = out, .e = e};
    if (size >= SUBWORD_CACHE_FROM) subword_work_cache(&c.work);
    int err = 0;
    for (size_t i = 0; add_special && i < t->before.n && !err; i++)
        err = add_id(&c, t->before.ids[i]);
    if (!err) err = encode_around(&c, &t->raw, text, size, true, encode_segment);
    for (size_t i = 0; add_special && i < t->behind.n && !err; i++)
        err = add_id(&c, t->behind.ids[i]);
    buf_free(&c.normal);
    buf_free(&c.spare);
    pieces_free(&c.pieces);
    pieces_free(&c.spare_pieces);
    regex_scratch_free(c.scratch);
    subword_work_free(&c.work);
    if (err) out->n = first;
    return err;
}
