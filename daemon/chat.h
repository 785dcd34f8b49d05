/* daemon/chat.h: conversations as prompts, for every language that clients speak.
 *
 * The parameters, whoever has read them: `messages`, `tools`, `chat_template_kwargs` (more variables of
 * the template) and `add_generation_prompt` (absent: true). */
#ifndef TPD_DAEMON_CHAT_H
#define TPD_DAEMON_CHAT_H

#include "daemon/generation.h"

/* For generation_start: makes g->prompts[0] of the call's parameters, or g->error. */
void chat_encode(struct call *call);
/* About how many bytes chat_encode works on. */
size_t chat_text_bytes(const json_t *params);
/* Lets the answer end where the template ends a turn, unless ignore_eos. Loop's thread. */
int chat_end_turns(struct generation *g, struct error *e);

#endif
