/* tests/unit/sha256.c: see sha256.h. The constants are the fractional parts of roots of primes and
 * are worked out here rather than listed. */
#include "sha256.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static uint32_t rotate(uint32_t x, int n) {
    return x >> n | x << (32 - n);
}

static uint32_t fraction(long double root) {
    return (uint32_t)((root - floorl(root)) * 4294967296.0L);
}

static void constants(uint32_t k[64], uint32_t h[8]) {
    for (int n = 2, found = 0; found < 64; n++) {
        bool prime = true;
        for (int d = 2; d * d <= n && prime; d++) prime = n % d != 0;
        if (!prime) continue;
        if (found < 8) h[found] = fraction(sqrtl(n));
        k[found++] = fraction(cbrtl(n));
    }
}

static void block(const uint32_t k[64], uint32_t h[8], const uint8_t data[64]) {
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)data[4 * i] << 24 | (uint32_t)data[4 * i + 1] << 16 |
               (uint32_t)data[4 * i + 2] << 8 | data[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t b = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + a + w[i - 7] + b;
    }
    memcpy(s, h, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t sum1 = rotate(s[4], 6) ^ rotate(s[4], 11) ^ rotate(s[4], 25);
        uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
        uint32_t sum0 = rotate(s[0], 2) ^ rotate(s[0], 13) ^ rotate(s[0], 22);
        uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
        uint32_t one = s[7] + sum1 + choice + k[i] + w[i];
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += one;
        s[0] = one + sum0 + majority;
    }
    for (int i = 0; i < 8; i++) h[i] += s[i];
}

void sha256_hex(const void *data, size_t size, char hex[65]) {
    uint32_t k[64], h[8];
    uint8_t last[128] = {0};
    const uint8_t *bytes = data;
    size_t done = size / 64 * 64, rest = size - done, padded = rest < 56 ? 64 : 128;
    constants(k, h);
    for (size_t i = 0; i < done; i += 64) block(k, h, bytes + i);
    memcpy(last, bytes + done, rest);
    last[rest] = 0x80;
    for (int i = 0; i < 8; i++)
        last[padded - 1 - (size_t)i] = (uint8_t)((uint64_t)size * 8 >> (8 * i));
    for (size_t i = 0; i < padded; i += 64) block(k, h, last + i);
    for (int i = 0; i < 8; i++) snprintf(hex + 8 * i, 9, "%08x", h[i]);
}
