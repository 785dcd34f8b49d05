/* tpd_tensor_map: tensor.export, and the mapping of what it names. */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct mapping {
    void *at; /* NULL: not mapped (a GPU's memory) */
    size_t bytes, offset, size;
};

struct tpd_tensor {
    json_t *about;
    int n;
    struct mapping shards[];
};

static size_t size_of(const json_t *shard, const char *key) {
    json_int_t n = json_integer_value(json_object_get(shard, key));
    return n > 0 ? (size_t)n : 0;
}

/* Not one byte beyond the object's end is promised to the caller: reading there would kill it. */
static int map_shard(struct mapping *m, const json_t *shard, struct tpd_error *error) {
    const json_t *handle = json_object_get(shard, "handle");
    const char *name = json_string_value(json_object_get(handle, "name"));
    struct stat st;
    m->offset = size_of(shard, "offset");
    m->size = size_of(shard, "bytes");
    if (!name) return 0;
    int fd = shm_open(name, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) {
        enum fail_kind kind = errno == EACCES ? FAIL_NOT_PERMITTED : FAIL_IO;
        return client_fail(error, kind, "shared memory %s: %s", name, strerror(errno));
    }
    bool whole = fstat(fd, &st) == 0 && m->offset <= (size_t)st.st_size &&
                 m->size <= (size_t)st.st_size - m->offset && m->size > 0;
    m->bytes = m->offset + m->size;
    void *at = whole ? mmap(NULL, m->bytes, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    close(fd);
    if (!whole)
        return client_fail(error, FAIL_IO, "shared memory %s is smaller than the daemon says", name);
    if (at == MAP_FAILED)
        return client_fail(error, FAIL_MEMORY, "shared memory %s: %s", name, strerror(errno));
    m->at = at;
    return 0;
}

int tpd_tensor_map(struct tpd_client *client, const char *name, struct tpd_tensor **out,
                   struct tpd_error *error) {
    json_t *params = json_pack("{s:s}", "name", name), *about = NULL;
    *out = NULL;
    if (!params) return client_fail(error, FAIL_USAGE, "the tensor's name is not UTF-8");
    int rc = tpd_call(client, "tensor.export", params, &about, error);
    json_decref(params);
    if (rc) {
        json_decref(about);
        return rc;
    }
    const json_t *shards = json_object_get(about, "shards");
    size_t n = json_array_size(shards);
    struct tpd_tensor *t = calloc(1, sizeof *t + n * sizeof *t->shards);
    if (!t) {
        json_decref(about);
        return client_fail(error, FAIL_MEMORY, "no memory for a tensor");
    }
    t->about = about;
    for (t->n = 0; (size_t)t->n < n && !rc; t->n++)
        rc = map_shard(&t->shards[t->n], json_array_get(shards, (size_t)t->n), error);
    if (rc) tpd_tensor_unmap(t);
    else *out = t;
    return rc;
}

void tpd_tensor_unmap(struct tpd_tensor *t) {
    if (!t) return;
    for (int i = 0; i < t->n; i++)
        if (t->shards[i].at) munmap(t->shards[i].at, t->shards[i].bytes);
    json_decref(t->about);
    free(t);
}

const json_t *tpd_tensor_about(const struct tpd_tensor *t) { return t->about; }

int tpd_tensor_shards(const struct tpd_tensor *t) { return t->n; }

const void *tpd_tensor_memory(const struct tpd_tensor *t, int shard, size_t *bytes) {
    const struct mapping *m = shard >= 0 && shard < t->n ? &t->shards[shard] : NULL;
    if (bytes) *bytes = m && m->at ? m->bytes : 0;
    return m ? m->at : NULL;
}
