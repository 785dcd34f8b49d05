/* formats/gguf_write.h: writes a GGUF v3 file tensor by tensor, so that no copy of the whole is needed. The
 * file appears under its name whole or not at all. One thread. */
#ifndef TPD_FORMATS_GGUF_WRITE_H
#define TPD_FORMATS_GGUF_WRITE_H

#include "formats/gguf.h"

/* The file's keys, put together before it is opened. Begins as zeros; running out of memory is told by
 * gguf_writer_open. Names must not come twice. */
struct gguf_keys {
    uint8_t *data;
    size_t size, capacity;
    uint64_t count;
    bool no_memory;
};

void gguf_keys_text(struct gguf_keys *keys, const char *name, const char *value);
void gguf_keys_u32(struct gguf_keys *keys, const char *name, uint32_t value);
/* Key i of another file as it stands there. */
void gguf_keys_copy(struct gguf_keys *keys, const struct gguf *from, uint64_t i);
void gguf_keys_free(struct gguf_keys *keys);

struct gguf_entry {
    struct gguf_string name; /* borrowed until gguf_writer_open returns */
    enum dtype type;
    int n_dims;       /* 1 or 2 */
    int64_t dims[2];  /* outermost first: [rows, cols] */
};

struct gguf_writer {
    struct file_writer file;
    size_t *bytes; /* of each entry */
    size_t n, next, at; /* the entry that is being written, and bytes of it so far */
    size_t alignment;
};

/* Bytes that a file with these will have: what must be free on its disk. */
size_t gguf_writer_size(const struct gguf_keys *keys, const struct gguf_entry *entries, size_t n,
                        size_t alignment);
/* alignment: what the keys say in general.alignment, 32 where they do not. */
int gguf_writer_open(struct gguf_writer *w, const char *path, const struct gguf_keys *keys,
                     const struct gguf_entry *entries, size_t n, size_t alignment, struct error *e);
/* The next bytes, in the order of the entries; no piece has parts of two tensors. Errors stick: false once
 * there was one. */
bool gguf_writer_add(struct gguf_writer *w, const void *data, size_t bytes);
int gguf_writer_commit(struct gguf_writer *w, struct error *e);
void gguf_writer_abandon(struct gguf_writer *w);

#endif
