/* Typed reading of GGUF values. gguf_open has checked that all of them lie within the file. */
#include "formats/gguf_value.h"

#include <string.h>

static int wrong_type(const struct gguf *gguf, const char *key, enum gguf_type type,
                      const char *expected, struct error *e) {
    return error_bad_file(e, gguf_path(gguf), "key", key, "key \"%s\": has type %s; expected %s",
                          key, gguf_type_name(type), expected);
}

#define LOAD(type, p)                                                                              \
    ({                                                                                             \
        type load_;                                                                                \
        memcpy(&load_, (p), sizeof load_);                                                         \
        load_;                                                                                     \
    })

/* false: not an integer type, or over int64. */
static bool load_int(enum gguf_type type, const uint8_t *p, int64_t *out) {
    switch (type) {
    case GGUF_U8:
    case GGUF_BOOL: *out = *p; return true;
    case GGUF_I8: *out = (int8_t)*p; return true;
    case GGUF_U16: *out = LOAD(uint16_t, p); return true;
    case GGUF_I16: *out = LOAD(int16_t, p); return true;
    case GGUF_U32: *out = LOAD(uint32_t, p); return true;
    case GGUF_I32: *out = LOAD(int32_t, p); return true;
    case GGUF_U64: *out = (int64_t)LOAD(uint64_t, p); return *out >= 0;
    case GGUF_I64: *out = LOAD(int64_t, p); return true;
    case GGUF_F32:
    case GGUF_F64:
    case GGUF_STRING:
    case GGUF_ARRAY:
    case GGUF_TYPE_COUNT: break;
    }
    return false;
}

int gguf_get_int(const struct gguf *gguf, const char *key, int64_t *out, struct error *e) {
    enum gguf_type type;
    const struct gguf_array *value = gguf_value_at(gguf, key, &type);
    if (!value) return 0;
    if (type == GGUF_BOOL) return wrong_type(gguf, key, type, "an integer", e);
    if (load_int(type, value->data, out)) return 1;
    if (type != GGUF_U64) return wrong_type(gguf, key, type, "an integer", e);
    return error_bad_file(e, gguf_path(gguf), "key", key, "key \"%s\": %llu is out of range", key,
                          (unsigned long long)LOAD(uint64_t, value->data));
}

int gguf_get_float(const struct gguf *gguf, const char *key, double *out, struct error *e) {
    enum gguf_type type;
    const struct gguf_array *value = gguf_value_at(gguf, key, &type);
    if (!value) return 0;
    if (type == GGUF_F32) *out = (double)LOAD(float, value->data);
    else if (type == GGUF_F64) *out = LOAD(double, value->data);
    else return wrong_type(gguf, key, type, "f32 or f64", e);
    return 1;
}

int gguf_get_bool(const struct gguf *gguf, const char *key, bool *out, struct error *e) {
    enum gguf_type type;
    const struct gguf_array *value = gguf_value_at(gguf, key, &type);
    if (!value) return 0;
    if (type != GGUF_BOOL) return wrong_type(gguf, key, type, "bool", e);
    if (*value->data > 1)
        return error_bad_file(e, gguf_path(gguf), "key", key,
                              "key \"%s\": a bool is 0 or 1, this is %u", key, *value->data);
    *out = *value->data;
    return 1;
}

int gguf_get_string(const struct gguf *gguf, const char *key, struct gguf_string *out,
                    struct error *e) {
    enum gguf_type type;
    const struct gguf_array *value = gguf_value_at(gguf, key, &type);
    if (!value) return 0;
    if (type != GGUF_STRING) return wrong_type(gguf, key, type, "a string", e);
    *out = (struct gguf_string){(const char *)value->data + 8, (size_t)LOAD(uint64_t, value->data)};
    return 1;
}

int gguf_get_array(const struct gguf *gguf, const char *key, struct gguf_array *out,
                   struct error *e) {
    enum gguf_type type;
    const struct gguf_array *value = gguf_value_at(gguf, key, &type);
    if (!value) return 0;
    if (type != GGUF_ARRAY) return wrong_type(gguf, key, type, "an array", e);
    *out = *value;
    return 1;
}

bool gguf_array_next_string(const struct gguf_array *array, size_t *cursor,
                            struct gguf_string *out) {
    if (array->element != GGUF_STRING || *cursor >= array->bytes) return false;
    const uint8_t *p = array->data + *cursor;
    *out = (struct gguf_string){(const char *)p + 8, (size_t)LOAD(uint64_t, p)};
    *cursor += 8 + out->size;
    return true;
}

/* Bytes of one element of an array of numbers. */
static size_t element_bytes(const struct gguf_array *array) {
    return array->count ? array->bytes / array->count : 0;
}

int64_t gguf_array_int(const struct gguf_array *array, uint64_t i) {
    int64_t out = 0;
    load_int(array->element, array->data + i * element_bytes(array), &out);
    return out;
}

double gguf_array_float(const struct gguf_array *array, uint64_t i) {
    const uint8_t *p = array->data + i * element_bytes(array);
    if (array->element == GGUF_F32) return (double)LOAD(float, p);
    if (array->element == GGUF_F64) return LOAD(double, p);
    return (double)gguf_array_int(array, i);
}
