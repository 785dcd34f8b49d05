/* formats/gguf_types.h: the tensor types that a GGUF file may name, by their number in the file. */
#ifndef TPD_FORMATS_GGUF_TYPES_H
#define TPD_FORMATS_GGUF_TYPES_H

#include <stdint.h>

struct gguf_tensor_type {
    const char *name;
    int dtype;       /* enum dtype, or -1: known, but not a type that tpd computes with */
    int block;       /* elements in a block */
    int block_bytes; /* 0: the type was taken out of the format */
};

/* NULL when there is no such type. */
const struct gguf_tensor_type *gguf_tensor_type(uint32_t number);

#endif
