#include "base/hash.h"

#include <string.h>

uint64_t hash_bytes(uint64_t seed, const void *data, size_t size) {
    const unsigned char *at = data;
    uint64_t hash = seed ^ size, word;
    for (; size >= 8; at += 8, size -= 8) {
        memcpy(&word, at, 8);
        hash = hash_mix(seed, hash ^ word);
    }
    word = 0;
    memcpy(&word, at, size);
    return hash_mix(seed, hash ^ word);
}
