/* text/unicode.c: see unicode.h. */
#include "text/unicode.h"

#include "text/buffer.h"

#include <utf8proc.h>

enum utf8_kind utf8_scan(const char *text, size_t n, size_t *used) {
    const uint8_t *s = (const uint8_t *)text;
    uint8_t low = 0x80, high = 0xBF; /* what the second byte may be */
    size_t need;
    *used = 1;
    if (s[0] < 0x80) return UTF8_WHOLE;
    if (s[0] >= 0xC2 && s[0] <= 0xDF) need = 2;
    else if (s[0] >= 0xE0 && s[0] <= 0xEF) {
        need = 3;
        if (s[0] == 0xE0) low = 0xA0;
        if (s[0] == 0xED) high = 0x9F;
    } else if (s[0] >= 0xF0 && s[0] <= 0xF4) {
        need = 4;
        if (s[0] == 0xF0) low = 0x90;
        if (s[0] == 0xF4) high = 0x8F;
    } else return UTF8_BROKEN;
    for (size_t i = 1; i < need; i++) {
        *used = i;
        if (i == n) return UTF8_CUT;
        if (s[i] < low || s[i] > high) return UTF8_BROKEN;
        low = 0x80;
        high = 0xBF;
    }
    *used = need;
    return UTF8_WHOLE;
}

size_t utf8_check(const char *text, size_t size) {
    size_t at = 0, used;
    while (at < size) {
        uint64_t eight;
        if (size - at >= 8) {
            memcpy(&eight, text + at, 8);
            if (!(eight & 0x8080808080808080u)) {
                at += 8;
                continue;
            }
        }
        if (utf8_scan(text + at, size - at, &used) != UTF8_WHOLE) return at;
        at += used;
    }
    return size;
}

size_t utf8_next(const char *text, uint32_t *character) {
    const uint8_t *s = (const uint8_t *)text;
    if (s[0] < 0x80) {
        *character = s[0];
        return 1;
    }
    if (s[0] < 0xE0) {
        *character = (uint32_t)(s[0] & 0x1F) << 6 | (s[1] & 0x3F);
        return 2;
    }
    if (s[0] < 0xF0) {
        *character = (uint32_t)(s[0] & 0x0F) << 12 | (uint32_t)(s[1] & 0x3F) << 6 | (s[2] & 0x3F);
        return 3;
    }
    *character = (uint32_t)(s[0] & 0x07) << 18 | (uint32_t)(s[1] & 0x3F) << 12 |
                 (uint32_t)(s[2] & 0x3F) << 6 | (s[3] & 0x3F);
    return 4;
}

size_t utf8_before(const char *text, size_t at) {
    do at--;
    while (at > 0 && (text[at] & 0xC0) == 0x80);
    return at;
}

size_t utf8_put(char out[4], uint32_t character) {
    return (size_t)utf8proc_encode_char((utf8proc_int32_t)character, (utf8proc_uint8_t *)out);
}

bool char_is_space(uint32_t c) {
    if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
    if (c == 0x85) return true;
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL ||
           category == UTF8PROC_CATEGORY_ZP;
}

bool char_is_numeric(uint32_t c) {
    if (c < 0x80) return c >= '0' && c <= '9';
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

bool char_is_punctuation(uint32_t c) {
    if (c < 0x80)
        return (c > ' ' && c < '0') || (c > '9' && c < 'A') || (c > 'Z' && c < 'a') ||
               (c > 'z' && c < 0x7F);
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

bool char_is_mark(uint32_t c) {
    if (c < 0x300) return false;
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME;
}

/* Printable Latin-1 stands for itself; the other 68 bytes take U+0100 and on, in order. */
uint32_t byte_to_char(uint8_t byte) {
    if (byte <= 32) return 256u + byte;
    if (byte >= 127 && byte <= 160) return 289u + byte - 127;
    return byte == 173 ? 323 : byte;
}

int char_to_byte(uint32_t c) {
    if (c >= 256) {
        if (c <= 288) return (int)(c - 256);
        if (c <= 322) return (int)(c - 289 + 127);
        return c == 323 ? 173 : -1;
    }
    return byte_to_char((uint8_t)c) == c ? (int)c : -1;
}

void bytes_to_chars(struct buf *out, const char *text, size_t size) {
    if (size > (size_t)-1 / 2 || !buf_reserve(out, size * 2)) {
        out->failed = true;
        return;
    }
    char *to = out->data + out->size;
    for (size_t i = 0; i < size; i++) {
        uint32_t c = byte_to_char((uint8_t)text[i]);
        if (c < 0x80) *to++ = (char)c;
        else {
            *to++ = (char)(0xC0 | c >> 6);
            *to++ = (char)(0x80 | (c & 0x3F));
        }
    }
    out->size = (size_t)(to - out->data);
}
