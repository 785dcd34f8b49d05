/* text/regex.h: the regular expressions of tokenizer files, run by PCRE2 with its JIT.
 *
 * Published files are written for Oniguruma (Ruby syntax, Unicode); regex_new translates what PCRE2
 * reads otherwise. A struct regex is immutable and may be used by any number of threads, each with
 * a struct regex_scratch of its own. */
#ifndef TPD_TEXT_REGEX_H
#define TPD_TEXT_REGEX_H

#include "base/error.h"

struct regex;
struct regex_scratch;

/* What Hugging Face's own code (not the files) takes for a word character: the inside of a class.
 * It is narrower than the \w of files: no ² and no ½. */
#define REGEX_WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200C}\\x{200D}"

/* ERR_BAD_FILE, without a path, when the expression does not compile. */
int regex_new(struct regex **out, const char *pattern, size_t size, struct error *e);
void regex_free(struct regex *r);

/* NULL when there is no memory. */
struct regex_scratch *regex_scratch_new(void);
void regex_scratch_free(struct regex_scratch *scratch);

/* The first match that starts at or after at, in valid UTF-8: 1 and its bytes from … to-1 (from =
 * to when it is empty), 0 when there is none, negative on an error (a match that would take too
 * long). */
int regex_find(const struct regex *r, struct regex_scratch *scratch, const char *text, size_t size,
               size_t at, size_t *from, size_t *to, struct error *e);

/* The translation, for regex_new and its test: appends PCRE2's spelling of pattern to out. */
struct buf;
int regex_translate(struct buf *out, const char *pattern, size_t size, struct error *e);

#endif
