/* text/chat.h: a conversation as the text that a model reads, for serving and for training alike: its
 * chat template, the messages as templates want them, and the tokens that end a turn.
 *
 * Immutable once open: any number of threads may use it at once. */
#ifndef TPD_TEXT_CHAT_H
#define TPD_TEXT_CHAT_H

#include "text/chat_template.h"
#include "text/tokenizer.h"

struct chat;

/* As chat_template_open; the tokenizer is only used while opening. */
int chat_open(struct chat **out, const char *path, const char *choice,
              const struct tokenizer *tokenizer, struct error *e);
void chat_free(struct chat *c);

/* NULL, or the sentence that says that there is no template and what to do. */
const char *chat_missing(const struct chat *c);
/* The tokens that the template writes behind what the assistant says, and the tokenizer's own end: an
 * answer ends with one of them. */
const token_id *chat_ends(const struct chat *c, size_t *n);
/* Whether the text ends with such a token, and then white space: how many bytes of white space. */
bool chat_ends_turn(const struct chat *c, const char *text, size_t size, size_t *space);
/* Where the last such token in the text ends; 0: there is none. */
size_t chat_last_end(const struct chat *c, const char *text, size_t size);
bool chat_has_generation(const struct chat *c, bool with_tools);
/* Whether the template has a form for tools, and for a message's tool_calls. */
bool chat_takes_tools(const struct chat *c);
bool chat_takes_tool_calls(const struct chat *c);
/* Changes whenever the same messages would become another text. */
uint64_t chat_fingerprint(const struct chat *c);

/* The messages as templates expect them, a new array: members that are null are left out; a tool
 * call's arguments that came as JSON in a string (as OpenAI's clients send them) are an object; a
 * content that is a list of texts is one string, lines between, where the template knows no lists.
 * ERR_PARAMS with the note field ("messages[2].content") for what no template could take. */
json_t *chat_messages(const struct chat *c, const json_t *messages, struct error *e);

struct chat_request {
    const json_t *messages;  /* of chat_messages */
    const json_t *tools;     /* an array; NULL or JSON null: none */
    const json_t *variables; /* an object of more that the template may ask for, or NULL */
    bool add_generation_prompt;
    const struct tm *now; /* NULL: local time */
};
/* *out as for jinja_render. A template that refuses the conversation is ERR_PARAMS with the notes
 * field, line and column. The text has all special tokens in it: encode it without more. */
int chat_render(const struct chat *c, const struct chat_request *request, struct jinja_output *out,
                struct error *e);

#endif
