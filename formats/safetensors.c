#include "formats/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_HEADER = 100000000, /* the limit of the format's own reference implementation */
    MAX_COMMAS = 1 << 22    /* half a million tensors; bounds the memory of the parsed header */
};

static const struct {
    const char *name;
    int bits;
    int type; /* enum dtype, or -1 */
} dtypes[] = {
    {"BF16", 16, DTYPE_BF16}, {"F16", 16, DTYPE_F16}, {"F32", 32, DTYPE_F32}, {"F64", 64, -1},
    {"BOOL", 8, -1},          {"U8", 8, -1},          {"I8", 8, -1},          {"U16", 16, -1},
    {"I16", 16, -1},          {"U32", 32, -1},        {"I32", 32, -1},        {"U64", 64, -1},
    {"I64", 64, -1},          {"C64", 64, -1},        {"F8_E4M3", 8, -1},     {"F8_E5M2", 8, -1},
    {"F8_E8M0", 8, -1},       {"F8_E4M3FNUZ", 8, -1}, {"F8_E5M2FNUZ", 8, -1}, {"F6_E2M3", 6, -1},
    {"F6_E3M2", 6, -1},       {"F4", 4, -1},
};

/* A refusal that concerns one tensor: "PATH: tensor "NAME": message". */
#define TENSOR_FAULT(file, name, e, format, ...)                                                   \
    error_bad_file(e, (file)->path, "tensor", name, "tensor \"%.120s\": " format, name,            \
                   ##__VA_ARGS__)

/* Returns the bits of an element, or a negative error. */
static int read_dtype(const struct safetensors *file, struct store_tensor *tensor,
                      const json_t *info, struct error *e) {
    const char *name = json_string_value(json_object_get(info, "dtype"));
    if (!name) return TENSOR_FAULT(file, tensor->name, e, "dtype is not a string");
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (strcmp(dtypes[i].name, name) == 0) {
            tensor->type_name = dtypes[i].name;
            tensor->type = dtypes[i].type;
            return dtypes[i].bits;
        }
    return TENSOR_FAULT(file, tensor->name, e, "unknown dtype \"%.60s\"", name);
}

/* Shape, and the bytes that shape and dtype ask for. */
static int read_shape(const struct safetensors *file, struct store_tensor *tensor,
                      const json_t *info, int bits, struct error *e) {
    const json_t *shape = json_object_get(info, "shape");
    if (!json_is_array(shape)) return TENSOR_FAULT(file, tensor->name, e, "shape is not an array");
    size_t n = json_array_size(shape);
    if (n > STORE_MAX_DIMS)
        return TENSOR_FAULT(file, tensor->name, e, "has %zu dimensions; at most %d are read", n,
                            STORE_MAX_DIMS);
    tensor->n_dims = (int)n;
    int64_t total = bits;
    bool over = false;
    for (size_t i = 0; i < n; i++) {
        const json_t *dim = json_array_get(shape, i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return TENSOR_FAULT(file, tensor->name, e, "dimension %zu is not a whole number", i);
        tensor->dims[i] = json_integer_value(dim);
        over |= __builtin_mul_overflow(total, tensor->dims[i], &total);
    }
    if (over) return TENSOR_FAULT(file, tensor->name, e, "the product of its shape overflows");
    if (total % 8)
        return TENSOR_FAULT(file, tensor->name, e, "%s elements do not fill whole bytes",
                            tensor->type_name);
    tensor->bytes = (size_t)total / 8;
    return 0;
}

static int read_offsets(const struct safetensors *file, struct store_tensor *tensor,
                        const json_t *info, size_t data_at, struct error *e) {
    const json_t *offsets = json_object_get(info, "data_offsets");
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end))
        return TENSOR_FAULT(file, tensor->name, e, "data_offsets is not an array of two integers");
    int64_t from = json_integer_value(begin), to = json_integer_value(end);
    size_t data_size = file->map.size - data_at;
    if (from < 0 || to < from)
        return TENSOR_FAULT(file, tensor->name, e, "data_offsets [%lld, %lld] are no range",
                            (long long)from, (long long)to);
    if ((uint64_t)to > data_size)
        return TENSOR_FAULT(file, tensor->name, e,
                            "data_offsets [%lld, %lld] go beyond the %zu bytes of data",
                            (long long)from, (long long)to, data_size);
    if ((size_t)(to - from) != tensor->bytes)
        return TENSOR_FAULT(
            file, tensor->name, e,
            "data_offsets [%lld, %lld] hold %lld bytes; shape and dtype %s need %zu",
            (long long)from, (long long)to, (long long)(to - from), tensor->type_name,
            tensor->bytes);
    tensor->data = file->map.data + data_at + from;
    return 0;
}

static int read_tensor(const struct safetensors *file, struct store_tensor *tensor,
                       const json_t *info, size_t data_at, struct error *e) {
    if (!json_is_object(info))
        return TENSOR_FAULT(file, tensor->name, e, "its entry in the header is not an object");
    int bits = read_dtype(file, tensor, info, e);
    if (bits < 0) return bits;
    int err = read_shape(file, tensor, info, bits, e);
    if (!err) err = read_offsets(file, tensor, info, data_at, e);
    return err;
}

static int by_place(const void *a, const void *b) {
    const struct store_tensor *x = a, *y = b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* The tensors must tile the data from its first byte to its last. */
static int check_tiling(struct safetensors *file, size_t data_at, struct error *e) {
    qsort(file->tensors, file->n_tensors, sizeof *file->tensors, by_place);
    const uint8_t *data = file->map.data + data_at, *at = data;
    for (size_t i = 0; i < file->n_tensors; i++) {
        const struct store_tensor *tensor = &file->tensors[i];
        if (tensor->data < at)
            return TENSOR_FAULT(file, tensor->name, e, "overlaps tensor \"%.120s\"",
                                file->tensors[i - 1].name);
        if (tensor->data > at)
            return TENSOR_FAULT(file, tensor->name, e,
                                "a gap: bytes %td to %td of the data belong to no tensor",
                                at - data, tensor->data - data);
        at += tensor->bytes;
    }
    size_t left = file->map.size - data_at - (size_t)(at - data);
    if (left)
        return error_bad_file(e, file->path, NULL, NULL,
                              "the last %zu bytes of the data belong to no tensor", left);
    return 0;
}

static int read_metadata(struct safetensors *file, json_t *metadata, struct error *e) {
    const char *key;
    json_t *value;
    bool good = json_is_object(metadata);
    json_object_foreach(metadata, key, value) {
        if (!json_is_string(value)) good = false;
    }
    if (!good)
        return error_bad_file(e, file->path, NULL, NULL,
                              "__metadata__ is not an object of strings");
    file->metadata = json_incref(metadata);
    return 0;
}

static int read_tensors(struct safetensors *file, json_t *header, size_t data_at, struct error *e) {
    file->tensors = calloc(json_object_size(header) + 1, sizeof *file->tensors);
    if (!file->tensors)
        return error_set(e, ERR_MEMORY, "%s: no memory for %zu tensors", file->path,
                         json_object_size(header));
    const char *name;
    json_t *info;
    int err = 0;
    json_object_foreach(header, name, info) {
        if (strcmp(name, "__metadata__") == 0) {
            err = read_metadata(file, info, e);
        } else {
            struct store_tensor *tensor = &file->tensors[file->n_tensors];
            tensor->file = file->path;
            tensor->name = strdup(name);
            if (!tensor->name) return error_set(e, ERR_MEMORY, "%s: no memory", file->path);
            file->n_tensors++;
            err = read_tensor(file, tensor, info, data_at, e);
        }
        if (err) return err;
    }
    return check_tiling(file, data_at, e);
}

/* The header as JSON, or NULL with e filled. */
static json_t *read_header(const struct safetensors *file, size_t *data_at, struct error *e) {
    size_t size = file->map.size;
    uint64_t length;
    if (size < 8) {
        error_bad_file(e, file->path, "offset", "0",
                       "has %zu bytes, too few for the length of a header", size);
        return NULL;
    }
    memcpy(&length, file->map.data, 8);
    if (length > MAX_HEADER) {
        error_bad_file(e, file->path, "offset", "0", "header too large (limit %d): %llu bytes",
                       MAX_HEADER, (unsigned long long)length);
        return NULL;
    }
    if (length > size - 8) {
        error_bad_file(
            e, file->path, "offset", "0",
            "the header should have %llu bytes, but the file has only %zu after its length",
            (unsigned long long)length, size - 8);
        return NULL;
    }
    *data_at = 8 + (size_t)length;
    size_t commas = 0;
    for (size_t i = 8; i < *data_at; i++) commas += file->map.data[i] == ',';
    if (commas > MAX_COMMAS) {
        error_bad_file(e, file->path, "offset", "8", "header: too many values (%zu, limit %d)",
                       commas, MAX_COMMAS);
        return NULL;
    }
    struct error why = {0};
    json_t *header = json_read((const char *)file->map.data + 8, (size_t)length, &why);
    if (header && json_is_object(header)) return header;
    error_bad_file(e, file->path, "offset", "8", "header: %s",
                   header ? "is not a JSON object" : why.message);
    json_decref(header);
    return NULL;
}

int safetensors_open(struct safetensors *out, const char *path, struct error *e) {
    *out = (struct safetensors){.path = strdup(path)};
    if (!out->path) return error_set(e, ERR_MEMORY, "%s: no memory", path);
    int err = file_map_open(&out->map, path, e);
    if (!err) {
        size_t data_at;
        file_map_guard(&out->map);
        json_t *header = read_header(out, &data_at, e);
        err = header ? read_tensors(out, header, data_at, e) : -(int)ERR_BAD_FILE;
        json_decref(header);
        if (file_map_torn(out->map.data)) err = store_file_torn(path, NULL, e);
    }
    if (err) safetensors_close(out);
    return err;
}

void safetensors_close(struct safetensors *file) {
    for (size_t i = 0; i < file->n_tensors; i++) free((char *)file->tensors[i].name);
    free(file->tensors);
    json_decref(file->metadata);
    file_map_close(&file->map);
    free(file->path);
    *file = (struct safetensors){0};
}
