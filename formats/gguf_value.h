/* formats/gguf_value.h: what gguf_value.c (typed reading of values) needs of gguf.c. */
#ifndef TPD_FORMATS_GGUF_VALUE_H
#define TPD_FORMATS_GGUF_VALUE_H

#include "formats/gguf.h"

/* A key's value and type: an array's elements, or just where the value is (data). NULL when the key
 * is not there. */
const struct gguf_array *gguf_value_at(const struct gguf *gguf, const char *key,
                                       enum gguf_type *type);

#endif
