/* text/regex.c: compiling and matching; the translation is in regex_translate.c. */
#include "text/regex.h"

#include "text/buffer.h"

#include <pcre2.h>

enum { JIT_STACK_START = 64 << 10, JIT_STACK_MAX = 16 << 20, MATCH_LIMIT = 50000000 };

struct regex {
    pcre2_code *code;
};

struct regex_scratch {
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack; /* NULL: the machine's own has been enough */
};

int regex_new(struct regex **out, const char *pattern, size_t size, struct error *e) {
    struct buf translated = {0};
    int err = regex_translate(&translated, pattern, size, e);
    struct regex *r = calloc(1, sizeof *r);
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!err && (!r || !context || translated.failed))
        err = error_set(e, ERR_MEMORY, "no memory for a regular expression");
    if (!err) {
        int code;
        PCRE2_SIZE at;
        pcre2_set_newline(context, PCRE2_NEWLINE_LF);
        r->code =
            pcre2_compile((PCRE2_SPTR)(translated.data ? translated.data : ""), translated.size,
                          PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &code, &at, context);
        if (!r->code) {
            char why[128];
            pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
            err = error_set(e, ERR_BAD_FILE, "the regular expression \"%.*s\" is broken: %s",
                            size < 100 ? (int)size : 100, pattern, why);
        } else
            pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE); /* without it matching is only slower */
    }
    pcre2_compile_context_free(context);
    buf_free(&translated);
    if (err) {
        regex_free(r);
        return err;
    }
    *out = r;
    return 0;
}

void regex_free(struct regex *r) {
    if (!r) return;
    pcre2_code_free(r->code);
    free(r);
}

struct regex_scratch *regex_scratch_new(void) {
    struct regex_scratch *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->match = pcre2_match_data_create(1, NULL);
    s->context = pcre2_match_context_create(NULL);
    if (!s->match || !s->context) {
        regex_scratch_free(s);
        return NULL;
    }
    pcre2_set_match_limit(s->context, MATCH_LIMIT);
    return s;
}

void regex_scratch_free(struct regex_scratch *s) {
    if (!s) return;
    pcre2_match_data_free(s->match);
    pcre2_match_context_free(s->context);
    pcre2_jit_stack_free(s->stack);
    free(s);
}

/* A stack of its own is a map of memory, too dear for each short text: it comes when one is needed. */
static bool grow_stack(struct regex_scratch *s) {
    if (s->stack) return false;
    s->stack = pcre2_jit_stack_create(JIT_STACK_START, JIT_STACK_MAX, NULL);
    if (s->stack) pcre2_jit_stack_assign(s->context, NULL, s->stack);
    return s->stack != NULL;
}

static int match(const struct regex *r, struct regex_scratch *s, const char *text, size_t size,
                 size_t at) {
    return pcre2_match(r->code, (PCRE2_SPTR)text, size, at, PCRE2_NO_UTF_CHECK, s->match,
                       s->context);
}

int regex_find(const struct regex *r, struct regex_scratch *s, const char *text, size_t size,
               size_t at, size_t *from, size_t *to, struct error *e) {
    int got = match(r, s, text, size, at);
    if (got == PCRE2_ERROR_JIT_STACKLIMIT && grow_stack(s)) got = match(r, s, text, size, at);
    if (got == PCRE2_ERROR_NOMATCH) return 0;
    if (got < 0) {
        char why[128];
        pcre2_get_error_message(got, (PCRE2_UCHAR *)why, sizeof why);
        return error_set(e, ERR_PARAMS,
                         "the tokenizer's regular expression gives up on this text at byte %zu: %s",
                         at, why);
    }
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(s->match);
    *from = range[0];
    *to = range[1];
    if (*to < *from) *to = *from; /* \K in a lookahead */
    return 1;
}
