#include "formats/gguf.h"

#include "formats/gguf_types.h"
#include "formats/gguf_value.h"
#include "formats/name_index.h"
#include "formats/store.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Far beyond what any model needs; they bound the work that a file can ask of us. */
enum {
    MAX_KEYS = 1 << 16,
    MAX_TENSORS = 1 << 18,
    MAX_STRINGS = 1 << 24, /* in one array */
    MAX_KEY_SIZE = 65535,  /* the specification's */
    MAX_NAME_SIZE = 1024,
    MAX_ALIGNMENT = 1 << 20,
    DEFAULT_ALIGNMENT = 32
};

struct gguf_value {
    struct gguf_string key;
    enum gguf_type type;
    /* An array's elements; of any other type: data is the value. */
    struct gguf_array at;
};

struct gguf {
    char *path;
    struct file_map map;
    uint32_t version;
    size_t alignment;
    const char *keys_end;
    size_t n_keys, n_tensors;
    struct gguf_value *values;
    struct gguf_tensor *tensors;
    struct name_index key_index, tensor_index;
};

static const struct {
    const char *name;
    int bytes; /* 0: not a fixed size */
} types[GGUF_TYPE_COUNT] = {
    [GGUF_U8] = {"u8", 1},       [GGUF_I8] = {"i8", 1},     [GGUF_U16] = {"u16", 2},
    [GGUF_I16] = {"i16", 2},     [GGUF_U32] = {"u32", 4},   [GGUF_I32] = {"i32", 4},
    [GGUF_F32] = {"f32", 4},     [GGUF_BOOL] = {"bool", 1}, [GGUF_STRING] = {"string", 0},
    [GGUF_ARRAY] = {"array", 0}, [GGUF_U64] = {"u64", 8},   [GGUF_I64] = {"i64", 8},
    [GGUF_F64] = {"f64", 8},
};

const char *gguf_type_name(enum gguf_type type) {
    return (unsigned)type < GGUF_TYPE_COUNT ? types[type].name : "unknown";
}

/* Reads forward through the map; never past its end. */
struct reader {
    const char *path;
    const uint8_t *data;
    size_t size, at;
    char item[160]; /* what is being read, for messages: key "general.name" */
    struct error *e;
};

/* The end of every refusal: "PATH: ITEM: message", with the offset as a note. */
static int fault(struct reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int fault(struct reader *r, const char *format, ...) {
    char message[400], offset[32];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    snprintf(offset, sizeof offset, "%zu", r->at);
    return error_bad_file(r->e, r->path, "offset", offset, "%s%s%s", r->item,
                          r->item[0] ? ": " : "", message);
}

static void set_item(struct reader *r, const char *kind, struct gguf_string name) {
    snprintf(r->item, sizeof r->item, "%s \"%.*s\"", kind, (int)(name.size < 120 ? name.size : 120),
             name.data);
}

static const uint8_t *take(struct reader *r, uint64_t bytes, const char *what) {
    size_t left = r->size - r->at;
    if (bytes > left) {
        fault(r, "the file ends within %s: %llu bytes are to come at byte %zu, %zu are left", what,
              (unsigned long long)bytes, r->at, left);
        return NULL;
    }
    const uint8_t *p = r->data + r->at;
    r->at += (size_t)bytes;
    return p;
}

static int take_u32(struct reader *r, uint32_t *out, const char *what) {
    const uint8_t *p = take(r, 4, what);
    if (!p) return -(int)ERR_BAD_FILE;
    memcpy(out, p, 4);
    return 0;
}

static int take_u64(struct reader *r, uint64_t *out, const char *what) {
    const uint8_t *p = take(r, 8, what);
    if (!p) return -(int)ERR_BAD_FILE;
    memcpy(out, p, 8);
    return 0;
}

static int take_string(struct reader *r, struct gguf_string *out, const char *what) {
    uint64_t size;
    int err = take_u64(r, &size, what);
    if (err) return err;
    const uint8_t *p = take(r, size, what);
    if (!p) return -(int)ERR_BAD_FILE;
    *out = (struct gguf_string){(const char *)p, (size_t)size};
    return 0;
}

static int take_array(struct reader *r, struct gguf_array *out) {
    uint32_t element;
    uint64_t count;
    int err = take_u32(r, &element, "the array's element type");
    if (!err) err = take_u64(r, &count, "the array's length");
    if (err) return err;
    if (element == GGUF_ARRAY) return fault(r, "an array of arrays, which tpd does not read");
    if (element >= GGUF_TYPE_COUNT)
        return fault(r, "array element type %u does not exist", element);

    const uint8_t *from = r->data + r->at;
    if (element == GGUF_STRING) {
        if (count > (r->size - r->at) / 8 || count > MAX_STRINGS)
            return fault(r, "an array of %llu strings does not fit in the %zu bytes that are left",
                         (unsigned long long)count, r->size - r->at);
        struct gguf_string string;
        for (uint64_t i = 0; i < count && !err; i++)
            err = take_string(r, &string, "a string of the array");
        if (err) return err;
    } else {
        uint64_t bytes = (uint64_t)types[element].bytes;
        if (count > (r->size - r->at) / bytes)
            return fault(r,
                         "an array of %llu %s values does not fit in the %zu bytes that are left",
                         (unsigned long long)count, types[element].name, r->size - r->at);
        take(r, count * bytes, "the array");
    }
    *out =
        (struct gguf_array){(enum gguf_type)element, count, (size_t)(r->data + r->at - from), from};
    return 0;
}

static int take_value(struct reader *r, struct gguf_value *value) {
    uint32_t type;
    int err = take_u32(r, &type, "the value's type");
    if (err) return err;
    if (type >= GGUF_TYPE_COUNT) return fault(r, "value type %u does not exist", type);
    value->type = (enum gguf_type)type;
    if (type == GGUF_ARRAY) return take_array(r, &value->at);
    value->at = (struct gguf_array){.data = r->data + r->at};
    if (type == GGUF_STRING) {
        struct gguf_string string;
        return take_string(r, &string, "the string");
    }
    return take(r, (uint64_t)types[type].bytes, "the value") ? 0 : -(int)ERR_BAD_FILE;
}

static int read_keys(struct gguf *gguf, struct reader *r) {
    gguf->values = calloc(gguf->n_keys + 1, sizeof *gguf->values);
    if (!gguf->values || !name_index_init(&gguf->key_index, gguf->n_keys))
        return error_set(r->e, ERR_MEMORY, "%s: no memory for %zu keys", r->path, gguf->n_keys);
    for (size_t i = 0; i < gguf->n_keys; i++) {
        struct gguf_value *value = &gguf->values[i];
        snprintf(r->item, sizeof r->item, "key %zu of %zu", i + 1, gguf->n_keys);
        int err = take_string(r, &value->key, "its name");
        if (err) return err;
        if (value->key.size == 0 || value->key.size > MAX_KEY_SIZE)
            return fault(r, "a name of %zu bytes; 1 to %d are allowed", value->key.size,
                         MAX_KEY_SIZE);
        set_item(r, "key", value->key);
        err = take_value(r, value);
        if (err) return err;
        if (!name_index_add(&gguf->key_index, value->key.data, value->key.size, i))
            return fault(r, "is there twice");
    }
    gguf->keys_end = (const char *)r->data + r->at;
    r->item[0] = '\0';
    return 0;
}

static int read_alignment(struct gguf *gguf, struct reader *r) {
    gguf->alignment = DEFAULT_ALIGNMENT;
    int64_t i = name_index_find(&gguf->key_index, "general.alignment", 17);
    if (i < 0) return 0;
    const struct gguf_value *value = &gguf->values[i];
    set_item(r, "key", value->key);
    if (value->type != GGUF_U32)
        return fault(r, "has type %s; it must be u32", types[value->type].name);
    uint32_t alignment;
    memcpy(&alignment, value->at.data, 4);
    if (alignment == 0 || (alignment & (alignment - 1)) != 0 || alignment > MAX_ALIGNMENT)
        return fault(r, "is %u; it must be a power of two up to %d", alignment, MAX_ALIGNMENT);
    gguf->alignment = alignment;
    r->item[0] = '\0';
    return 0;
}

static int read_dims(struct reader *r, struct gguf_tensor *tensor) {
    uint32_t n_dims;
    int err = take_u32(r, &n_dims, "the number of dimensions");
    if (err) return err;
    if (n_dims > GGUF_MAX_DIMS)
        return fault(r, "has %u dimensions; at most %d are allowed", n_dims, GGUF_MAX_DIMS);
    tensor->n_dims = (int)n_dims;
    for (uint32_t d = 0; d < n_dims; d++) {
        uint64_t dim;
        err = take_u64(r, &dim, "the dimensions");
        if (err) return err;
        if (dim == 0) return fault(r, "dimension %u is 0", d);
        if (dim > INT64_MAX)
            return fault(r, "dimension %u is %llu: the number of elements overflows", d,
                         (unsigned long long)dim);
        tensor->dims[d] = (int64_t)dim;
    }
    return 0;
}

/* Bytes from type and dims. */
static int size_tensor(struct reader *r, struct gguf_tensor *tensor, uint32_t type_number) {
    const struct gguf_tensor_type *type = gguf_tensor_type(type_number);
    if (!type) return fault(r, "tensor type %u does not exist", type_number);
    if (type->block_bytes == 0)
        return fault(r, "type %s was taken out of the format: convert the model again", type->name);
    tensor->type = type->dtype;
    tensor->type_name = type->name;

    int64_t cols = tensor->n_dims > 0 ? tensor->dims[0] : 1;
    if (cols % type->block != 0)
        return fault(r, "rows of %lld elements are not whole blocks of %d (%s)", (long long)cols,
                     type->block, type->name);
    uint64_t bytes = (uint64_t)(cols / type->block);
    bool over = __builtin_mul_overflow(bytes, (uint64_t)type->block_bytes, &bytes);
    for (int d = 1; d < tensor->n_dims; d++)
        over |= __builtin_mul_overflow(bytes, (uint64_t)tensor->dims[d], &bytes);
    if (over) return fault(r, "the product of its dimensions overflows");
    tensor->bytes = bytes;
    return 0;
}

/* offset: from the start of the data, where `tensor->data` is pointed to once that is known. */
static int read_tensor(struct reader *r, struct gguf_tensor *tensor, uint64_t *offset) {
    int err = take_string(r, &tensor->name, "its name");
    if (err) return err;
    if (tensor->name.size == 0 || tensor->name.size > MAX_NAME_SIZE)
        return fault(r, "a name of %zu bytes; 1 to %d are allowed", tensor->name.size,
                     MAX_NAME_SIZE);
    set_item(r, "tensor", tensor->name);
    if (memchr(tensor->name.data, '\0', tensor->name.size))
        return fault(r, "a NUL byte in its name");
    err = read_dims(r, tensor);
    if (err) return err;
    uint32_t type;
    err = take_u32(r, &type, "the type");
    if (!err) err = size_tensor(r, tensor, type);
    if (!err) err = take_u64(r, offset, "the offset");
    return err;
}

static int place_tensor(struct gguf *gguf, struct reader *r, struct gguf_tensor *tensor,
                        size_t start, uint64_t offset) {
    set_item(r, "tensor", tensor->name);
    if (offset % gguf->alignment != 0)
        return fault(r, "offset %llu is not a multiple of the alignment %zu",
                     (unsigned long long)offset, gguf->alignment);
    if (start > r->size || offset > r->size - start || tensor->bytes > r->size - start - offset)
        return fault(r, "its %zu bytes at offset %llu of the data go beyond the file's %zu bytes",
                     tensor->bytes, (unsigned long long)offset, r->size);
    tensor->data = r->data + start + offset;
    r->item[0] = '\0';
    return 0;
}

static int by_data(const void *a, const void *b) {
    const struct gguf_tensor *x = *(const struct gguf_tensor *const *)a;
    const struct gguf_tensor *y = *(const struct gguf_tensor *const *)b;
    return (x->data > y->data) - (x->data < y->data);
}

static int check_overlap(const struct gguf *gguf, struct reader *r) {
    const struct gguf_tensor **sorted = calloc(gguf->n_tensors + 1, sizeof(void *));
    if (!sorted) return error_set(r->e, ERR_MEMORY, "%s: no memory", r->path);
    for (size_t i = 0; i < gguf->n_tensors; i++) sorted[i] = &gguf->tensors[i];
    qsort(sorted, gguf->n_tensors, sizeof(void *), by_data);
    int err = 0;
    for (size_t i = 1; i < gguf->n_tensors && !err; i++) {
        const struct gguf_tensor *a = sorted[i - 1], *b = sorted[i];
        if (a->data + a->bytes <= b->data) continue;
        set_item(r, "tensor", b->name);
        err = fault(r, "overlaps tensor \"%.*s\"", (int)(a->name.size < 120 ? a->name.size : 120),
                    a->name.data);
    }
    free(sorted);
    return err;
}

static int read_tensors(struct gguf *gguf, struct reader *r) {
    uint64_t *offsets = calloc(gguf->n_tensors + 1, sizeof *offsets);
    gguf->tensors = calloc(gguf->n_tensors + 1, sizeof *gguf->tensors);
    int err = 0;
    if (!offsets || !gguf->tensors || !name_index_init(&gguf->tensor_index, gguf->n_tensors))
        err =
            error_set(r->e, ERR_MEMORY, "%s: no memory for %zu tensors", r->path, gguf->n_tensors);
    for (size_t i = 0; i < gguf->n_tensors && !err; i++) {
        struct gguf_tensor *tensor = &gguf->tensors[i];
        snprintf(r->item, sizeof r->item, "tensor %zu of %zu", i + 1, gguf->n_tensors);
        err = read_tensor(r, tensor, &offsets[i]);
        if (!err && !name_index_add(&gguf->tensor_index, tensor->name.data, tensor->name.size, i))
            err = fault(r, "is there twice");
    }
    size_t start = (r->at + gguf->alignment - 1) & ~(gguf->alignment - 1);
    for (size_t i = 0; i < gguf->n_tensors && !err; i++)
        err = place_tensor(gguf, r, &gguf->tensors[i], start, offsets[i]);
    if (!err) err = check_overlap(gguf, r);
    free(offsets);
    return err;
}

static int read_header(struct gguf *gguf, struct reader *r) {
    uint64_t n_tensors, n_keys;
    if (r->size < 4 || memcmp(r->data, "GGUF", 4) != 0)
        return fault(r, "is not a GGUF file: it does not begin with \"GGUF\"");
    r->at = 4;
    int err = take_u32(r, &gguf->version, "the header");
    if (err) return err;
    uint32_t swapped = __builtin_bswap32(gguf->version);
    if (swapped == 2 || swapped == 3)
        return fault(r,
                     "is big-endian (version %u, bytes swapped): convert the model again for "
                     "little-endian machines",
                     swapped);
    if (gguf->version != 2 && gguf->version != 3)
        return fault(r, "GGUF version %u; tpd reads 2 and 3", gguf->version);
    err = take_u64(r, &n_tensors, "the header");
    if (!err) err = take_u64(r, &n_keys, "the header");
    if (err) return err;
    /* A key takes at least 13 bytes (length, type, value), a tensor 24. */
    size_t left = r->size - r->at;
    if (n_keys > left / 13 || n_keys > MAX_KEYS)
        return fault(r, "the header counts %llu keys, more than can be",
                     (unsigned long long)n_keys);
    if (n_tensors > left / 24 || n_tensors > MAX_TENSORS)
        return fault(r, "the header counts %llu tensors, more than can be",
                     (unsigned long long)n_tensors);
    gguf->n_keys = n_keys;
    gguf->n_tensors = n_tensors;
    return 0;
}

int gguf_open(struct gguf **out, const char *path, struct error *e) {
    struct gguf *gguf = calloc(1, sizeof *gguf);
    if (gguf) gguf->path = strdup(path);
    if (!gguf || !gguf->path) {
        free(gguf);
        return error_set(e, ERR_MEMORY, "%s: no memory", path);
    }
    int err = file_map_open(&gguf->map, path, e);
    if (!err) {
        file_map_guard(&gguf->map);
        struct reader r = {gguf->path, gguf->map.data, gguf->map.size, 0, "", e};
        err = read_header(gguf, &r);
        if (!err) err = read_keys(gguf, &r);
        if (!err) err = read_alignment(gguf, &r);
        if (!err) err = read_tensors(gguf, &r);
        if (file_map_torn(gguf->map.data)) err = store_file_torn(path, NULL, e);
    }
    if (err) {
        gguf_close(gguf);
        return err;
    }
    *out = gguf;
    return 0;
}

void gguf_close(struct gguf *gguf) {
    if (!gguf) return;
    file_map_close(&gguf->map);
    name_index_free(&gguf->key_index);
    name_index_free(&gguf->tensor_index);
    free(gguf->values);
    free(gguf->tensors);
    free(gguf->path);
    free(gguf);
}

const char *gguf_path(const struct gguf *gguf) {
    return gguf->path;
}
uint32_t gguf_version(const struct gguf *gguf) {
    return gguf->version;
}
const struct file_map *gguf_map(const struct gguf *gguf) {
    return &gguf->map;
}
size_t gguf_tensor_count(const struct gguf *gguf) {
    return gguf->n_tensors;
}
const struct gguf_tensor *gguf_tensor_at(const struct gguf *gguf, size_t i) {
    return &gguf->tensors[i];
}

const struct gguf_tensor *gguf_tensor_find(const struct gguf *gguf, const char *name) {
    int64_t i = name_index_find(&gguf->tensor_index, name, strlen(name));
    return i < 0 ? NULL : &gguf->tensors[i];
}

uint64_t gguf_key_count(const struct gguf *gguf) {
    return gguf->n_keys;
}

struct gguf_string gguf_key(const struct gguf *gguf, uint64_t i, enum gguf_type *type) {
    *type = gguf->values[i].type;
    return gguf->values[i].key;
}

struct gguf_string gguf_key_bytes(const struct gguf *gguf, uint64_t i) {
    enum { LENGTH = 8 }; /* before a name */
    const char *from = gguf->values[i].key.data - LENGTH;
    const char *to = i + 1 < gguf->n_keys ? gguf->values[i + 1].key.data - LENGTH : gguf->keys_end;
    return (struct gguf_string){from, (size_t)(to - from)};
}

size_t gguf_alignment(const struct gguf *gguf) {
    return gguf->alignment;
}

const struct gguf_array *gguf_value_at(const struct gguf *gguf, const char *key,
                                       enum gguf_type *type) {
    int64_t i = name_index_find(&gguf->key_index, key, strlen(key));
    if (i < 0) return NULL;
    *type = gguf->values[i].type;
    return &gguf->values[i].at;
}
