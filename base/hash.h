/* base/hash.h: 64-bit hashes of bytes, the same on every machine of one byte order. */
#ifndef TPD_BASE_HASH_H
#define TPD_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/* A hash of bytes or of a number that nobody can steer without the seed. The hash of what came before may be the
 * seed of what follows. */
uint64_t hash_bytes(uint64_t seed, const void *data, size_t size);
static inline uint64_t hash_mix(uint64_t seed, uint64_t value) {
    unsigned __int128 product = (unsigned __int128)(value ^ seed) * 0x9E3779B97F4A7C15u;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

#endif
