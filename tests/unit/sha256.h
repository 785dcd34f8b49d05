/* tests/unit/sha256.h: SHA-256 (FIPS 180-4), for expected values that are too long to write out. */
#ifndef TPD_TESTS_SHA256_H
#define TPD_TESTS_SHA256_H

#include <stddef.h>

/* hex gets 64 digits and a NUL. */
void sha256_hex(const void *data, size_t size, char hex[65]);

#endif
