/* The sum of a kept file: whether it still has the bytes that were written. */
#include "base/file.h"
#include "base/hash.h"
#include "base/thread.h"
#include "model/quant_private.h"

#include <stdatomic.h>
#include <string.h>

enum { CHUNK = 1 << 20, LANES = 4, MAX_THREADS = 64 };

struct summing {
    const uint8_t *data;
    size_t size;
    _Atomic size_t next;  /* chunk */
    _Atomic uint64_t sum; /* of those that are done, in whatever order */
};

/* Several lanes, for one would wait for its products. */
static uint64_t sum_chunk(uint64_t number, const uint8_t *data, size_t size) {
    uint64_t lanes[LANES] = {number, 1, 2, 3}, words[LANES];
    size_t at = 0;
    for (; at + sizeof words <= size; at += sizeof words) {
        memcpy(words, data + at, sizeof words);
        for (int k = 0; k < LANES; k++) lanes[k] = hash_mix(number, lanes[k] ^ words[k]);
    }
    uint64_t sum = hash_bytes(number, data + at, size - at);
    for (int k = 0; k < LANES; k++) sum = hash_mix(sum, lanes[k]);
    return sum;
}

static void *work(void *arg) {
    struct summing *s = arg;
    for (size_t i; (i = atomic_fetch_add(&s->next, 1)) * CHUNK < s->size;) {
        size_t at = i * CHUNK, size = s->size - at < CHUNK ? s->size - at : CHUNK;
        atomic_fetch_add(&s->sum, sum_chunk(i + 1, s->data + at, size));
    }
    return NULL;
}

int quant_file_sum(uint64_t *out, const char *path, int threads, struct error *e) {
    pthread_t others[MAX_THREADS];
    struct file_map map;
    int n = 0, err = file_map_open(&map, path, e);
    if (err) return err;
    struct summing s = {.data = map.data, .size = map.size};
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    while (n < threads - 1 && thread_start(&others[n], work, &s, NULL) == 0) n++;
    work(&s);
    for (int i = 0; i < n; i++) pthread_join(others[i], NULL);
    *out = s.sum;
    file_map_close(&map);
    return 0;
}
