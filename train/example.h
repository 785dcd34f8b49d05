/* train/example.h: one record becomes the tokens of an example, each with a mark whether it is
 * learnt. Any thread; nothing is kept between calls. */
#ifndef TPD_TRAIN_EXAMPLE_H
#define TPD_TRAIN_EXAMPLE_H

#include "train/dataset.h"
#include "train/records.h"

#include <jansson.h>

enum example_form {
    FORM_TEXT,        /* {"text"} */
    FORM_COMPLETION,  /* {"prompt", "completion"} */
    FORM_MESSAGES,    /* {"messages": [{"role", "content"}, …]} */
    FORM_INSTRUCTION, /* {"instruction", "input", "output"} */
    FORM_IDS,         /* {"input_ids", "labels"} */
    FORM_DOCUMENT,    /* a piece of a text file */
    FORM_COUNT
};
const char *example_form_name(enum example_form form);

/* A token id with this bit is one that the model learns to say. */
enum { TOKEN_TRAINED = 1 << 30 };
static inline token_id token_of(token_id marked) {
    return marked & ~TOKEN_TRAINED;
}

/* The form that a record has. Errors of this file say what is wrong with the record; the caller
 * knows file and line, and brings a struct error. ERR_MEMORY is no fault of the record. */
int example_find_form(const struct record *record, enum example_form *form, struct error *e);

/* Appends the record's tokens, whole, marked; with eos at the end, but after messages (their turns
 * have ends) and input_ids. Of a document's piece: the tokens that are new in it. */
int example_encode(const struct dataset_options *options, enum example_form form,
                   const struct record *record, struct token_ids *out, struct error *e);

/* Cuts an example to seq_len + 1 tokens (seq_len rows, each with the next as its label) and takes
 * off what follows the last learnt token, for nothing learns from it. n becomes 0 when no token is
 * learnt. *cut: whether learnt tokens were lost. */
void example_trim(struct token_ids *example, int32_t seq_len, bool *cut);

#endif
