/* text/unicode.h: UTF-8, the character properties that tokenizers ask for (from utf8proc), and the
 * byte-level alphabet of GPT-2, in which each byte is written as one printable character. */
#ifndef TPD_TEXT_UNICODE_H
#define TPD_TEXT_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;

enum utf8_kind { UTF8_BROKEN, UTF8_CUT, UTF8_WHOLE };

/* Looks at the character that starts at s[0]; n > 0. *used is its size when whole, the bytes that
 * stand for one U+FFFD when broken, and n when the end cuts it. */
enum utf8_kind utf8_scan(const char *s, size_t n, size_t *used);
/* The offset of the first byte that is not valid UTF-8, or size. */
size_t utf8_check(const char *text, size_t size);
/* Bytes of the character at s, which is valid UTF-8 and not empty. */
size_t utf8_next(const char *s, uint32_t *character);
/* The offset of the character that ends before at > 0 in valid text. */
size_t utf8_before(const char *text, size_t at);
size_t utf8_put(char out[4], uint32_t character);

bool char_is_space(uint32_t c);       /* White_Space */
bool char_is_numeric(uint32_t c);     /* Nd, Nl, No */
bool char_is_punctuation(uint32_t c); /* P*, and the symbols of ASCII */
bool char_is_mark(uint32_t c);        /* Mn, Mc, Me */

uint32_t byte_to_char(uint8_t byte);
/* The byte that a character of the alphabet stands for, or -1. */
int char_to_byte(uint32_t character);
/* Appends text with each byte written as its character. */
void bytes_to_chars(struct buf *out, const char *text, size_t size);

#endif
