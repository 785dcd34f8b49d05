/* train/chat.h: a record of messages as the text that the model reads when it is served, with what the
 * assistant says marked. Any thread. */
#ifndef TPD_TRAIN_CHAT_H
#define TPD_TRAIN_CHAT_H

#include "base/json.h"
#include "text/buffer.h"
#include "text/chat.h"

struct rendered {
    struct buf text;
    struct spans learnt; /* bytes of text, ascending: the assistant's turns with their ends */
};

void rendered_free(struct rendered *r);

/* Appends the record's messages (with its tools) by the model's chat template; *r is zeroed or emptied
 * by the caller. What is learnt is what {% generation %} blocks write, or else what the template writes
 * behind the prompt that serving would give for the messages before; a template that writes a turn in
 * another way once more follows is an error that says so. Special tokens are in the text. */
int chat_render_record(const struct chat *chat, const json_t *record, struct rendered *r,
                       struct error *e);

#endif
