/* formats/gguf.h: a GGUF v2 or v3 file, mapped and checked whole when it is opened: every count,
 * length, offset and type is held against the file's size before it is used. Read-only afterwards;
 * any thread. Keys and strings are not NUL-terminated in the file, so they come with a length. */
#ifndef TPD_FORMATS_GGUF_H
#define TPD_FORMATS_GGUF_H

#include "base/dtype.h"
#include "base/error.h"
#include "base/file.h"

enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_TYPE_COUNT
};

struct gguf_string {
    const char *data; /* borrowed from the map */
    size_t size;
};

struct gguf_array {
    enum gguf_type element;
    uint64_t count;
    size_t bytes;        /* of all elements */
    const uint8_t *data; /* first element, in file layout, unaligned */
};

enum { GGUF_MAX_DIMS = 4 };

struct gguf_tensor {
    struct gguf_string name; /* not empty, no NUL inside */
    const char *type_name;   /* "Q4_K"; lives as long as the program */
    int type;                /* enum dtype, or -1: not a type that tpd computes with */
    int n_dims;
    int64_t dims[GGUF_MAX_DIMS]; /* as in the file: innermost (contiguous) first; none is 0 */
    const uint8_t *data;         /* aligned as general.alignment says */
    size_t bytes;
};

struct gguf;

int gguf_open(struct gguf **out, const char *path, struct error *e);
void gguf_close(struct gguf *gguf);
const char *gguf_path(const struct gguf *gguf);
uint32_t gguf_version(const struct gguf *gguf);
const struct file_map *gguf_map(const struct gguf *gguf);
/* "u32", "string": for messages. */
const char *gguf_type_name(enum gguf_type type);

size_t gguf_tensor_count(const struct gguf *gguf);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *gguf, size_t i);
/* By the name in the file ("blk.0.attn_q.weight"); NULL when there is none. */
const struct gguf_tensor *gguf_tensor_find(const struct gguf *gguf, const char *name);

uint64_t gguf_key_count(const struct gguf *gguf);
/* Key i and its type. */
struct gguf_string gguf_key(const struct gguf *gguf, uint64_t i, enum gguf_type *type);
/* All of key i as it stands in the file: name, type and value. */
struct gguf_string gguf_key_bytes(const struct gguf *gguf, uint64_t i);
/* What offsets of tensors are multiples of. */
size_t gguf_alignment(const struct gguf *gguf);

/* 1 when the key is there, 0 when not, negative with an error that names key and type when it has
 * a type or value that does not fit. Integers take any integer type, floats f32 and f64. */
int gguf_get_int(const struct gguf *gguf, const char *key, int64_t *out, struct error *e);
int gguf_get_float(const struct gguf *gguf, const char *key, double *out, struct error *e);
int gguf_get_bool(const struct gguf *gguf, const char *key, bool *out, struct error *e);
int gguf_get_string(const struct gguf *gguf, const char *key, struct gguf_string *out,
                    struct error *e);
int gguf_get_array(const struct gguf *gguf, const char *key, struct gguf_array *out,
                   struct error *e);
/* Walks an array of strings: *cursor starts at 0; false at the end. O(1) a step. */
bool gguf_array_next_string(const struct gguf_array *array, size_t *cursor,
                            struct gguf_string *out);
/* Element i (< count) of an array of integers or bools (u64 over INT64_MAX comes out negative); of
 * any numbers. Check `element` first: a string array has no numbers. */
int64_t gguf_array_int(const struct gguf_array *array, uint64_t i);
double gguf_array_float(const struct gguf_array *array, uint64_t i);

#endif
