/* tests/unit/token_cases.h: what the tokenizer tests share: JSON lines of cases, and checks of one
 * case that say which it was. */
#ifndef TPD_TESTS_TOKEN_CASES_H
#define TPD_TESTS_TOKEN_CASES_H

#include "text/tokenizer.h"

#include <jansson.h>

/* Calls check for each line of a file of JSON objects; returns how many there were. */
typedef void case_fn(const struct tokenizer *t, const json_t *line);
size_t each_case(const char *path, const struct tokenizer *t, case_fn *check);

/* Fails the test with the message when there is none. */
struct tokenizer *open_tokenizer(const char *path);
/* The ids of a JSON array; free with token_ids_free. */
struct token_ids ids_of(const json_t *array);

void check_encode(const struct tokenizer *t, const json_t *line, const char *text, size_t size,
                  bool special, const json_t *expected);
void check_pieces(const struct tokenizer *t, const json_t *line, const json_t *ids,
                  const json_t *expected);
/* Decoding at once; expected is a JSON string. */
void check_decode(const struct tokenizer *t, const json_t *line, const struct token_ids *ids,
                  bool skip_special, const json_t *expected);
/* The pieces of a stream put together are the decoding of all ids, and each is UTF-8. */
void check_stream(const struct tokenizer *t, const json_t *line, const struct token_ids *ids,
                  bool skip_special);

#endif
