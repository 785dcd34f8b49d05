/* train/dataset.c: opening a data file: from the cache where that is of the same data, else by
 * reading it in rounds whose records several threads tokenise and one writes in their order. */
#include "train/dataset.h"

#include "base/hash.h"
#include "base/thread.h"
#include "text/unicode.h"
#include "text/chat.h"
#include "train/dataset_private.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A change of a file within one tick of the clock cannot be seen from outside. */
static const int64_t clock_grain_ns = 100000000;

/* --- tokenising a round ----------------------------------------------------------------------- */

struct result {
    enum { NOT_DONE, GOOD, BAD } state;
    struct token_ids tokens;
    struct error *error; /* BAD: what is wrong, owned; NULL when there was no memory for it */
};

struct round {
    const struct dataset_options *options;
    enum example_form form;
    const struct record *records;
    struct result *results;
    size_t n;
    _Atomic size_t next;
    _Atomic bool failed; /* the round ends with an error anyway: no need to go on */
};

static bool is_stopped(const struct dataset_options *o) {
    return o->want.stop && atomic_load_explicit(o->want.stop, memory_order_relaxed);
}

static void encode_one(struct round *round, size_t i) {
    struct result *result = &round->results[i];
    struct error e = {0};
    int err = example_encode(round->options, round->form, &round->records[i], &result->tokens, &e);
    result->state = err ? BAD : GOOD;
    if (!err) return;
    result->error = malloc(sizeof e);
    if (result->error) *result->error = e;
    token_ids_free(&result->tokens);
    if (!result->error || !round->options->skip_bad) atomic_store(&round->failed, true);
}

/* Records are taken in order, so those before the first bad one are all done in the end. */
static void *encode_some(void *arg) {
    struct round *round = arg;
    for (size_t i;
         !atomic_load(&round->failed) && !is_stopped(round->options) &&
         (i = atomic_fetch_add(&round->next, 1)) < round->n;)
        encode_one(round, i);
    return NULL;
}

enum { MAX_THREADS = 64 };

static void encode_round(struct round *round) {
    pthread_t threads[MAX_THREADS];
    int want = round->options->threads < MAX_THREADS ? round->options->threads : MAX_THREADS, n = 0;
    struct error ignored; /* fewer threads do it, too */
    while (n + 1 < want && (size_t)n + 1 < round->n &&
           thread_start(&threads[n], encode_some, round, &ignored) == 0)
        n++;
    encode_some(round);
    while (n > 0) pthread_join(threads[--n], NULL);
}

/* --- a file ----------------------------------------------------------------------------------- */

struct build {
    const char *path;
    const struct dataset_options *options;
    struct records records;
    struct cache_writer out;
    enum example_form form; /* FORM_COUNT: not found yet */
    struct token_ids open;  /* FORM_DOCUMENT: what has not filled an example yet */
};

static int skip(struct build *b, int64_t line) {
    struct cache_footer *f = &b->out.footer;
    if (f->skipped++ == 0) f->first_skipped_line = line;
    return 0;
}

/* Where a text file stops being text. */
static int64_t line_of_broken_byte(const struct record *piece) {
    size_t n = utf8_check(piece->text, piece->size);
    int64_t line = piece->line;
    for (size_t i = piece->context; i < n && n < piece->size; i++) line += piece->text[i] == '\n';
    return line;
}

/* What is to be done about a bad record. */
static int bad_record(struct build *b, const struct record *record, const struct error *why,
                      struct error *e) {
    if (!why) return error_set(e, ERR_MEMORY, "%s: no memory to tokenise it", b->path);
    if (why->kind == ERR_MEMORY) return error_set(e, ERR_MEMORY, "%s: %s", b->path, why->message);
    if (b->options->skip_bad && b->form != FORM_DOCUMENT) return skip(b, record->line);
    int64_t line = b->form == FORM_DOCUMENT ? line_of_broken_byte(record) : record->line;
    return record_error(e, b->path, line, "%s", why->message);
}

static int add_example(struct build *b, struct token_ids *tokens, struct error *e) {
    struct cache_footer *f = &b->out.footer;
    bool cut;
    example_trim(tokens, b->options->seq_len, &cut);
    f->cut += cut;
    if (tokens->n == 0) {
        f->untrained++;
        return 0;
    }
    for (size_t i = 0; i < tokens->n; i++)
        f->trained_tokens += (tokens->ids[i] & TOKEN_TRAINED) != 0;
    return cache_writer_add(&b->out, tokens->ids, tokens->n, e);
}

/* Adds a document's tokens to those waiting; full examples of seq_len rows go out. The token that
 * ends one begins the next, so that every token but the first is learnt once. */
static int add_piece(struct build *b, const struct token_ids *more, struct error *e) {
    struct token_ids *open = &b->open;
    size_t full = (size_t)b->options->seq_len + 1, at = 0;
    token_id *ids = realloc(open->ids, (open->n + more->n + 1) * sizeof *ids);
    if (!ids) return error_set(e, ERR_MEMORY, "%s: no memory to tokenise it", b->path);
    open->ids = ids;
    if (more->n > 0) memcpy(ids + open->n, more->ids, more->n * sizeof *ids);
    open->n += more->n;
    int err = 0;
    for (; !err && open->n - at >= full; at += full - 1) {
        struct token_ids part = {ids + at, full, 0};
        err = add_example(b, &part, e);
    }
    memmove(ids, ids + at, (open->n - at) * sizeof *ids);
    open->n -= at;
    return err;
}

static int end_document(struct build *b, struct error *e) {
    struct token_ids eos = {(token_id[]){b->options->eos | TOKEN_TRAINED}, 1, 1};
    int err = b->options->eos >= 0 ? add_piece(b, &eos, e) : 0;
    /* what ended the last example is no example by itself */
    return err || b->open.n < 2 ? err : add_example(b, &b->open, e);
}

/* The first record that can be read says the form. */
static int find_form(struct build *b, const struct record *records, size_t n, size_t *from,
                     struct error *e) {
    *from = 0;
    if (b->records.layout == RECORDS_TEXT) b->form = FORM_DOCUMENT;
    while (b->form == FORM_COUNT && *from < n) {
        struct error why = {0};
        enum example_form form;
        int err = example_find_form(&records[*from], &form, &why);
        if (!err) b->form = form;
        else if ((err = bad_record(b, &records[(*from)++], &why, e))) return err;
    }
    return 0;
}

static int take_results(struct build *b, struct round *round, struct error *e) {
    int err = 0;
    for (size_t i = 0; i < round->n && !err; i++) {
        struct result *r = &round->results[i];
        if (r->state != GOOD) err = bad_record(b, &round->records[i], r->error, e);
        else if (b->form == FORM_DOCUMENT) err = add_piece(b, &r->tokens, e);
        else err = add_example(b, &r->tokens, e);
    }
    return err;
}

static int build_round(struct build *b, const struct record *records, size_t n, struct error *e) {
    size_t from;
    int err = find_form(b, records, n, &from, e);
    if (err || from == n) return err;
    struct round round = {
        .options = b->options, .form = b->form, .records = records + from, .n = n - from};
    round.results = calloc(round.n, sizeof *round.results);
    if (!round.results) return error_set(e, ERR_MEMORY, "%s: no memory to tokenise it", b->path);
    encode_round(&round);
    err = is_stopped(b->options)
              ? error_set(e, ERR_CANCELLED, "%s: reading it was given up", b->path)
              : take_results(b, &round, e);
    for (size_t i = 0; i < round.n; i++) {
        token_ids_free(&round.results[i].tokens);
        free(round.results[i].error);
    }
    free(round.results);
    return err;
}

/* A file from which nothing can be learnt is no data. */
static int check_use(const struct build *b, struct error *e) {
    const struct cache_footer *f = &b->out.footer;
    if (f->n_examples > 0 || b->options->want.growing) return 0;
    if (f->untrained > 0)
        return error_bad_file(e, b->path, NULL, NULL,
                              "none of its %lld records has a token to learn within seq_len %d",
                              (long long)f->untrained, b->options->seq_len);
    if (f->skipped > 0)
        return error_bad_file(e, b->path, NULL, NULL,
                              "all of its %lld records are broken, the first in line %lld",
                              (long long)f->skipped, (long long)f->first_skipped_line);
    return error_bad_file(e, b->path, NULL, NULL, "has no records");
}

static int build_all(struct build *b, struct error *e) {
    const struct record *records;
    size_t n;
    int err;
    while (!(err = records_next(&b->records, &records, &n, e)) && n > 0)
        if ((err = build_round(b, records, n, e))) break;
    if (!err && b->form == FORM_DOCUMENT) err = end_document(b, e);
    if (!err) err = check_use(b, e);
    return err ? err : records_check(&b->records, e);
}

static int build_cache(const char *path, const char *cache_path, uint64_t options_hash,
                       const struct dataset_options *options, bool *rewritten, struct error *e) {
    struct build b = {.path = path, .options = options, .form = FORM_COUNT};
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    int err = records_open(&b.records, path, &options->want, e);
    if (err) return err;
    err = cache_writer_open(&b.out, cache_path, e);
    if (!err) err = build_all(&b, e);
    struct cache_footer *f = &b.out.footer;
    f->options = options_hash;
    f->part = (struct data_part){b.records.from, b.records.to, b.records.hash};
    f->source = file_state_of(&b.records.stat);
    f->made_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    f->form = b.form;
    *rewritten = b.records.rewritten;
    if (!err) err = cache_writer_commit(&b.out, e);
    cache_writer_abandon(&b.out);
    token_ids_free(&b.open);
    records_close(&b.records);
    return err;
}

/* --- opening ---------------------------------------------------------------------------------- */

static uint64_t hash_options(const struct dataset_options *o) {
    const uint64_t parts[] = {tokenizer_fingerprint(o->tokenizer),
                              o->chat ? chat_fingerprint(o->chat) : 0,
                              (uint64_t)o->vocab,
                              (uint64_t)o->eos,
                              (uint64_t)o->seq_len,
                              o->on_completion,
                              o->skip_bad};
    return hash_bytes(0, (const char *)parts, sizeof parts);
}

/* One file for a path and options: a new state of the data takes the place of the old one. */
static char *cache_path_of(const char *path, const char *dir, uint64_t options) {
    char name[32];
    snprintf(name, sizeof name, "%016llx.tokens",
             (unsigned long long)hash_bytes(options, path, strlen(path)));
    return path_join(dir, name);
}

/* Whether the cache is of the whole file as it is now. A file that looks untouched since well before
 * it was read is; any other is read to be sure. */
static bool is_whole_file(const struct cache *c, const char *path, const _Atomic bool *stop) {
    const struct cache_footer *f = &c->footer;
    struct stat st;
    uint64_t hash;
    if (stat(path, &st) != 0 || f->part.from != 0 || f->part.to != st.st_size) return false;
    struct file_state now = file_state_of(&st);
    if (!memcmp(&now, &f->source, sizeof now) && f->made_ns - now.ctime_ns > clock_grain_ns)
        return true;
    return records_hash_file(path, stop, &hash, NULL) == 0 && hash == f->part.hash;
}

/* What was pinned may be gone from the file, and what is new in one is known only by reading it. */
static bool cache_serves(const struct cache *c, const char *path, const struct data_want *want) {
    const struct data_part *part = &c->footer.part, *pinned = &want->pinned;
    if (pinned->to > 0)
        return part->from == pinned->from && part->to == pinned->to && part->hash == pinned->hash;
    return !want->growing && is_whole_file(c, path, want->stop);
}

static int open_or_build(struct dataset *d, const char *path, const struct dataset_options *options,
                         const char *cache_path, struct error *e) {
    uint64_t hash = hash_options(options);
    int64_t max_tokens = (int64_t)options->seq_len + 1;
    if (cache_open(&d->cache, cache_path, hash, max_tokens)) {
        if (cache_serves(&d->cache, path, &options->want)) {
            d->cached = true;
            return 0;
        }
        cache_close(&d->cache);
    }
    int err = build_cache(path, cache_path, hash, options, &d->rewritten, e);
    if (err || cache_open(&d->cache, cache_path, hash, max_tokens)) return err;
    return error_set(e, ERR_IO, "%s: cannot be read back", cache_path);
}

int dataset_open(struct dataset **out, const char *path, const struct dataset_options *options,
                 struct error *e) {
    struct dataset *d = calloc(1, sizeof *d);
    char *cache_path = cache_path_of(path, options->cache_dir, hash_options(options));
    int err = d && cache_path ? open_or_build(d, path, options, cache_path, e)
                              : error_set(e, ERR_MEMORY, "%s: no memory to open it", path);
    free(cache_path);
    if (err) free(d);
    else {
        d->seq_len = options->seq_len;
        *out = d;
    }
    return err;
}

bool dataset_has_news(const char *path, const struct data_part *known) {
    struct data_want want = {.known = *known, .growing = true};
    struct records r;
    const struct record *some;
    size_t n = 0;
    if (records_open(&r, path, &want, NULL) != 0) return true;
    bool news = r.rewritten || records_next(&r, &some, &n, NULL) != 0 || n > 0;
    records_close(&r);
    return news;
}

void dataset_close(struct dataset *d) {
    if (!d) return;
    cache_close(&d->cache);
    free(d);
}

void dataset_report(const struct dataset *d, struct dataset_report *out) {
    const struct cache_footer *f = &d->cache.footer;
    *out = (struct dataset_report){.examples = f->n_examples,
                                   .skipped = f->skipped,
                                   .cut = f->cut,
                                   .first_skipped_line = f->first_skipped_line,
                                   .untrained = f->untrained,
                                   .tokens = f->n_tokens - f->n_examples,
                                   .trained_tokens = f->trained_tokens,
                                   .form = example_form_name((enum example_form)f->form),
                                   .cached = d->cached,
                                   .part = f->part,
                                   .rewritten = d->rewritten};
}
