/* text/jinja/jinja.h: a small interpreter for Jinja, the language of chat templates.
 *
 * It renders what jinja2 renders when it is set up as transformers does it: trim_blocks,
 * lstrip_blocks, loop controls, an immutable sandbox, `raise_exception`, `strftime_now`, a `tojson`
 * without HTML escapes and {% generation %} blocks. There is nothing else: no files, no imports, no
 * attributes of the host. A template is untrusted: steps, memory, output and depth are bounded.
 *
 * A compiled template is immutable: any number of threads may render it at once. */
#ifndef TPD_TEXT_JINJA_JINJA_H
#define TPD_TEXT_JINJA_JINJA_H

#include "base/json.h"
#include "text/buffer.h"

#include <time.h>

struct jinja;

/* source: UTF-8, not needed afterwards. An error is ERR_BAD_FILE "TemplateSyntaxError: …" with notes
 * line and column (from 1, in characters). */
int jinja_compile(struct jinja **out, const char *source, size_t size, struct error *e);
void jinja_free(struct jinja *template);
/* Whether the template says by {% generation %} blocks what the assistant writes. */
bool jinja_has_generation(const struct jinja *template);
/* Whether an expression of the template names this variable. */
bool jinja_uses(const struct jinja *template, const char *variable);

struct jinja_output {
    struct buf text;
    struct spans generated; /* bytes of text that {% generation %} blocks wrote, ascending */
};
void jinja_output_free(struct jinja_output *out);

/* variables: an object, what the template may name. now: what strftime_now tells; NULL: local time.
 * *out is zeroed by the caller and freed by it, also after an error. An error is ERR_PARAMS, its
 * message is the exception's name and text as Python has them ("UndefinedError: 'x' is undefined"),
 * with notes line and column; or ERR_MEMORY. */
int jinja_render(const struct jinja *template, const json_t *variables, const struct tm *now,
                 struct jinja_output *out, struct error *e);

#endif
