/* daemon/draft_model.h: the model that guesses ahead for another (--draft). */
#ifndef TPD_DAEMON_DRAFT_MODEL_H
#define TPD_DAEMON_DRAFT_MODEL_H

#include "model/model.h"
#include "text/tokenizer.h"

/* Any thread. Opens it; ERR_CONFIG where its vocabulary is not that of tokenizer, with the first token that
 * differs. One may have more tokens than the other. */
int draft_model_open(struct model **out, const char *path, const struct tokenizer *tokenizer,
                     struct error *e);

#endif
