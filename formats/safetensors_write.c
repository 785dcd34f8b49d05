#include "formats/safetensors_write.h"

#include <assert.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const char *type_name(enum dtype type) {
    assert(type == DTYPE_F32 || type == DTYPE_F16 || type == DTYPE_BF16);
    return type == DTYPE_F32 ? "F32" : type == DTYPE_F16 ? "F16" : "BF16";
}

/* The JSON header, padded with blanks so that the data begins at a multiple of 8. */
static char *make_header(const struct safetensors_entry *entries, size_t n, size_t *size) {
    json_t *header = json_object();
    json_object_set_new(header, "__metadata__", json_pack("{s:s}", "format", "pt"));
    int64_t at = 0;
    for (size_t i = 0; i < n; i++) {
        json_t *dims = json_array();
        int64_t elements = 1;
        for (int k = 0; k < entries[i].n_dims; k++) {
            json_array_append_new(dims, json_integer(entries[i].dims[k]));
            elements *= entries[i].dims[k];
        }
        int64_t end = at + (int64_t)dtype_row_bytes(entries[i].type, elements);
        json_object_set_new(header, entries[i].name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype", type_name(entries[i].type),
                                      "shape", dims, "data_offsets", (json_int_t)at,
                                      (json_int_t)end));
        at = end;
    }
    char *text = json_dumps(header, JSON_COMPACT);
    json_decref(header);
    if (!text) return NULL;
    size_t length = strlen(text), whole = (length + 7) / 8 * 8;
    char *padded = malloc(whole + 1);
    if (padded) {
        memcpy(padded, text, length);
        memset(padded + length, ' ', whole - length);
        *size = whole;
    }
    free(text);
    return padded;
}

static void forget_entries(struct safetensors_writer *w) {
    free(w->types);
    free(w->elements);
}

int safetensors_writer_open(struct safetensors_writer *w, const char *path,
                            const struct safetensors_entry *entries, size_t n, struct error *e) {
    *w = (struct safetensors_writer){.file = {.fd = -1}, .n = n};
    size_t size = 0;
    char *header = make_header(entries, n, &size);
    w->types = malloc((n ? n : 1) * sizeof *w->types);
    w->elements = malloc((n ? n : 1) * sizeof *w->elements);
    if (!header || !w->types || !w->elements) {
        free(header);
        forget_entries(w);
        return error_set(e, ERR_MEMORY, "%s: no memory to write its header", path);
    }
    for (size_t i = 0; i < n; i++) {
        w->types[i] = entries[i].type;
        w->elements[i] = (size_t)entries[i].dims[0];
        if (entries[i].n_dims == 2) w->elements[i] *= (size_t)entries[i].dims[1];
    }
    int err = file_writer_open(&w->file, path, e);
    if (!err) {
        uint8_t length[8];
        for (int i = 0; i < 8; i++) length[i] = (uint8_t)((uint64_t)size >> 8 * i);
        file_writer_add(&w->file, length, sizeof length);
        file_writer_add(&w->file, header, size);
    } else forget_entries(w);
    free(header);
    return err;
}

void safetensors_writer_add(struct safetensors_writer *w, const float *values, size_t n) {
    assert(w->next < w->n && n <= w->elements[w->next] - w->at);
    enum dtype type = w->types[w->next];
    w->at += n;
    if (w->at == w->elements[w->next]) {
        w->next++;
        w->at = 0;
    }
    if (type == DTYPE_F32) {
        file_writer_add(&w->file, values, n * sizeof *values);
        return;
    }
    uint16_t halves[1024];
    for (size_t i = 0; i < n; i += 1024) {
        size_t run = n - i < 1024 ? n - i : 1024;
        for (size_t k = 0; k < run; k++)
            halves[k] = type == DTYPE_F16 ? f32_to_f16(values[i + k]) : f32_to_bf16(values[i + k]);
        file_writer_add(&w->file, halves, run * sizeof *halves);
    }
}

int safetensors_writer_commit(struct safetensors_writer *w, struct error *e) {
    assert(w->next == w->n);
    forget_entries(w);
    return file_writer_commit(&w->file, e);
}

void safetensors_writer_abandon(struct safetensors_writer *w) {
    forget_entries(w);
    file_writer_abandon(&w->file);
}
