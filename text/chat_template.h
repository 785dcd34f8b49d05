/* text/chat_template.h: how a model wants a conversation written: its own Jinja template, with the
 * variables that transformers gives it.
 *
 * Immutable once open: any number of threads may render at once. */
#ifndef TPD_TEXT_CHAT_TEMPLATE_H
#define TPD_TEXT_CHAT_TEMPLATE_H

#include "base/json.h"
#include "text/jinja/jinja.h"

struct chat_template;

/* path: a model directory (chat_template.jinja, tokenizer_config.json, chat_template.json, the first
 * of them that has one), a .gguf file or a .jinja file. choice: NULL or "", or what is taken instead
 * of the model's: the path of a .jinja file or the name of a built-in template. A model without any
 * template, or with one that is broken, opens all the same; rendering then says what is wrong and what
 * to do, naming the file, and for a template's own faults line and column. */
int chat_template_open(struct chat_template **out, const char *path, const char *choice,
                       struct error *e);
void chat_template_free(struct chat_template *t);

/* NULL: rendering can work; else the sentence that says why it can not. */
const char *chat_template_missing(const struct chat_template *t);
/* Whether its {% generation %} blocks say what the assistant writes. */
bool chat_template_has_generation(const struct chat_template *t, bool with_tools);
/* Whether a message's content may be a list of parts; else it must be a string. */
bool chat_template_takes_parts(const struct chat_template *t);
/* Whether it writes the variable tools, and the tool_calls of a message, at all. */
bool chat_template_takes_tools(const struct chat_template *t);
bool chat_template_takes_tool_calls(const struct chat_template *t);
/* The same for two templates only if (but for chance) they render alike: a hash of their text. */
uint64_t chat_template_fingerprint(const struct chat_template *t);

/* variables: an object: messages, tools, add_generation_prompt and whatever else the template asks
 * for. The model's special tokens (bos_token, eos_token, …) and tools and documents as none are there
 * unless variables have them; with tools the template that a model has for them is taken. now and
 * *out as for jinja_render. */
int chat_template_render(const struct chat_template *t, const json_t *variables,
                         const struct tm *now, struct jinja_output *out, struct error *e);

/* "chatml, llama3, …": for messages and help. */
const char *chat_template_names(void);

#endif
