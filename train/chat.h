/* train/chat.h: messages as the text that the model reads, with what the assistant says marked. Any
 * thread. */
#ifndef TPD_TRAIN_CHAT_H
#define TPD_TRAIN_CHAT_H

#include "base/json.h"
#include "text/buffer.h"
#include "text/tokenizer.h"

struct rendered {
    struct buf text;
    struct spans learnt; /* bytes of text, ascending: the assistant's turns with their ends */
};

void rendered_free(struct rendered *r);

/* Appends messages, a JSON array of {"role", "content"}; *r is zeroed or emptied by the caller. In
 * ChatML, for tokenizers that have <|im_start|> and <|im_end|>. Special tokens are in the text. */
int chat_render(const struct tokenizer *tokenizer, const json_t *messages, struct rendered *r,
                struct error *e);
/* Changes whenever the same messages would become another text: part of a cache's key. */
uint64_t chat_identity(const struct tokenizer *tokenizer);

#endif
