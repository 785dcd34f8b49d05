#include "formats/gguf_write.h"

#include "formats/gguf_types.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* --- keys ------------------------------------------------------------------------------------------ */

static void keys_add(struct gguf_keys *keys, const void *data, size_t size) {
    if (keys->no_memory) return;
    if (size > keys->capacity - keys->size) {
        size_t capacity = 2 * keys->capacity + size + 1024;
        uint8_t *larger = realloc(keys->data, capacity);
        if (!larger) {
            keys->no_memory = true;
            return;
        }
        keys->data = larger;
        keys->capacity = capacity;
    }
    if (size) memcpy(keys->data + keys->size, data, size);
    keys->size += size;
}

static void keys_add_u32(struct gguf_keys *keys, uint32_t value) {
    keys_add(keys, &value, sizeof value);
}

static void keys_add_u64(struct gguf_keys *keys, uint64_t value) {
    keys_add(keys, &value, sizeof value);
}

static void keys_add_string(struct gguf_keys *keys, const char *text, size_t size) {
    keys_add_u64(keys, size);
    keys_add(keys, text, size);
}

static void keys_begin(struct gguf_keys *keys, const char *name, enum gguf_type type) {
    keys_add_string(keys, name, strlen(name));
    keys_add_u32(keys, (uint32_t)type);
    keys->count++;
}

void gguf_keys_text(struct gguf_keys *keys, const char *name, const char *value) {
    keys_begin(keys, name, GGUF_STRING);
    keys_add_string(keys, value, strlen(value));
}

void gguf_keys_u32(struct gguf_keys *keys, const char *name, uint32_t value) {
    keys_begin(keys, name, GGUF_U32);
    keys_add_u32(keys, value);
}

void gguf_keys_copy(struct gguf_keys *keys, const struct gguf *from, uint64_t i) {
    struct gguf_string bytes = gguf_key_bytes(from, i);
    keys_add(keys, bytes.data, bytes.size);
    keys->count++;
}

void gguf_keys_free(struct gguf_keys *keys) {
    free(keys->data);
    *keys = (struct gguf_keys){0};
}

/* --- the file -------------------------------------------------------------------------------------- */

static size_t aligned(size_t n, size_t alignment) {
    return (n + alignment - 1) / alignment * alignment;
}

static size_t entry_bytes(const struct gguf_entry *entry) {
    size_t rows = entry->n_dims == 2 ? (size_t)entry->dims[0] : 1;
    return rows * dtype_row_bytes(entry->type, entry->dims[entry->n_dims - 1]);
}

/* The type's number in the file. */
static uint32_t type_number(enum dtype type) {
    uint32_t number = 0;
    while (gguf_tensor_type(number)->dtype != (int)type) number++;
    return number;
}

/* Magic, counts, keys and the list of tensors, to the byte before the padding. */
static void put_header(struct gguf_keys *out, const struct gguf_keys *keys,
                       const struct gguf_entry *entries, size_t n, size_t alignment) {
    enum { VERSION = 3 };
    uint64_t at = 0;
    keys_add(out, "GGUF", 4);
    keys_add_u32(out, VERSION);
    keys_add_u64(out, n);
    keys_add_u64(out, keys->count);
    keys_add(out, keys->data, keys->size);
    for (size_t i = 0; i < n; i++) {
        const struct gguf_entry *t = &entries[i];
        keys_add_string(out, t->name.data, t->name.size);
        keys_add_u32(out, (uint32_t)t->n_dims);
        for (int d = t->n_dims; d-- > 0;) keys_add_u64(out, (uint64_t)t->dims[d]);
        keys_add_u32(out, type_number(t->type));
        keys_add_u64(out, at);
        at += aligned(entry_bytes(t), alignment);
    }
    out->no_memory |= keys->no_memory;
}

size_t gguf_writer_size(const struct gguf_keys *keys, const struct gguf_entry *entries, size_t n,
                        size_t alignment) {
    size_t size = 24 + keys->size;
    for (size_t i = 0; i < n; i++)
        size += 24 + entries[i].name.size + 8 * (size_t)entries[i].n_dims;
    size = aligned(size, alignment);
    for (size_t i = 0; i < n; i++) size += aligned(entry_bytes(&entries[i]), alignment);
    return size;
}

static void pad(struct gguf_writer *w, size_t written) {
    static const uint8_t zeros[256];
    size_t left = aligned(written, w->alignment) - written;
    for (size_t n; left > 0; left -= n) {
        n = left < sizeof zeros ? left : sizeof zeros;
        file_writer_add(&w->file, zeros, n);
    }
}

int gguf_writer_open(struct gguf_writer *w, const char *path, const struct gguf_keys *keys,
                     const struct gguf_entry *entries, size_t n, size_t alignment, struct error *e) {
    struct gguf_keys header = {0};
    *w = (struct gguf_writer){.file = {.fd = -1}, .n = n, .alignment = alignment};
    put_header(&header, keys, entries, n, alignment);
    w->bytes = malloc((n ? n : 1) * sizeof *w->bytes);
    int err = 0;
    if (header.no_memory || !w->bytes)
        err = error_set(e, ERR_MEMORY, "%s: no memory to write its header", path);
    if (!err) err = file_writer_open(&w->file, path, e);
    if (!err) {
        for (size_t i = 0; i < n; i++) w->bytes[i] = entry_bytes(&entries[i]);
        file_writer_add(&w->file, header.data, header.size);
        pad(w, header.size);
    } else {
        free(w->bytes);
        w->bytes = NULL;
    }
    gguf_keys_free(&header);
    return err;
}

bool gguf_writer_add(struct gguf_writer *w, const void *data, size_t bytes) {
    assert(w->next < w->n && bytes <= w->bytes[w->next] - w->at);
    file_writer_add(&w->file, data, bytes);
    w->at += bytes;
    if (w->at == w->bytes[w->next]) {
        pad(w, w->at);
        w->next++;
        w->at = 0;
    }
    return !w->file.errnum;
}

int gguf_writer_commit(struct gguf_writer *w, struct error *e) {
    assert(w->file.errnum || w->next == w->n);
    free(w->bytes);
    w->bytes = NULL;
    return file_writer_commit(&w->file, e);
}

void gguf_writer_abandon(struct gguf_writer *w) {
    free(w->bytes);
    w->bytes = NULL;
    file_writer_abandon(&w->file);
}
