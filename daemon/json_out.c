#include "daemon/json_out.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

void json_out_free(struct json_out *out) {
    free(out->data);
    *out = (struct json_out){0};
}

void json_out_raw(struct json_out *out, const char *data, size_t size) {
    if (out->failed) return;
    if (out->size + size > out->capacity) {
        size_t capacity = out->capacity ? out->capacity : 256;
        while (capacity < out->size + size) capacity *= 2;
        char *grown = realloc(out->data, capacity);
        if (!grown) {
            out->failed = true;
            return;
        }
        out->data = grown;
        out->capacity = capacity;
    }
    memcpy(out->data + out->size, data, size);
    out->size += size;
}

/* What stands before every value. */
static void begin_value(struct json_out *out) {
    if (out->comma) json_out_raw(out, ",", 1);
    out->comma = true;
}

void json_out_open(struct json_out *out, char bracket) {
    begin_value(out);
    json_out_raw(out, &bracket, 1);
    out->comma = false;
}

void json_out_close(struct json_out *out, char bracket) {
    json_out_raw(out, &bracket, 1);
    out->comma = true;
}

void json_out_key(struct json_out *out, const char *key) {
    json_out_string(out, key);
    json_out_raw(out, ":", 1);
    out->comma = false;
}

void json_out_int(struct json_out *out, int64_t number) {
    char text[32];
    begin_value(out);
    json_out_raw(out, text, (size_t)snprintf(text, sizeof text, "%lld", (long long)number));
}

void json_out_number(struct json_out *out, double number) {
    char text[40];
    begin_value(out);
    if (!isfinite(number)) number = 0;
    json_out_raw(out, text, (size_t)snprintf(text, sizeof text, "%.9g", number));
}

void json_out_null(struct json_out *out) {
    begin_value(out);
    json_out_raw(out, "null", 4);
}

void json_out_member_int(struct json_out *out, const char *key, int64_t number) {
    json_out_key(out, key);
    json_out_int(out, number);
}

void json_out_member_number(struct json_out *out, const char *key, double number) {
    json_out_key(out, key);
    json_out_number(out, number);
}

/* A character that may not stand in a string as it is; 0 when it may. Writes its escape. */
static size_t escape(unsigned char c, char text[8]) {
    switch (c) {
    case '"': memcpy(text, "\\\"", 2); return 2;
    case '\\': memcpy(text, "\\\\", 2); return 2;
    case '\n': memcpy(text, "\\n", 2); return 2;
    case '\r': memcpy(text, "\\r", 2); return 2;
    case '\t': memcpy(text, "\\t", 2); return 2;
    }
    return c < 0x20 ? (size_t)snprintf(text, 8, "\\u%04x", c) : 0;
}

/* How many bytes at text may be copied as they are. */
static size_t plain_run(const char *text, size_t size) {
    size_t n = 0;
    while (n < size && (unsigned char)text[n] >= 0x20 && (unsigned char)text[n] < 0x80 &&
           text[n] != '"' && text[n] != '\\')
        n++;
    return n;
}

void json_out_text(struct json_out *out, const char *text, size_t size) {
    begin_value(out);
    json_out_raw(out, "\"", 1);
    for (size_t i = 0; i < size;) {
        size_t n = plain_run(text + i, size - i);
        json_out_raw(out, text + i, n);
        i += n;
        if (i == size) break;
        char escaped[8];
        utf8proc_int32_t c;
        size_t m = escape((unsigned char)text[i], escaped);
        utf8proc_ssize_t len = m ? 1
                                 : utf8proc_iterate((const utf8proc_uint8_t *)text + i,
                                                    (utf8proc_ssize_t)(size - i), &c);
        if (m) json_out_raw(out, escaped, m);
        else if (len > 0) json_out_raw(out, text + i, (size_t)len);
        else json_out_raw(out, "\xEF\xBF\xBD", 3);
        i += len > 0 ? (size_t)len : 1;
    }
    json_out_raw(out, "\"", 1);
}

void json_out_string(struct json_out *out, const char *text) {
    json_out_text(out, text, strlen(text));
}

static int append(const char *data, size_t size, void *out) {
    json_out_raw(out, data, size);
    return 0;
}

void json_out_json(struct json_out *out, const json_t *value) {
    begin_value(out);
    if (json_dump_callback(value, append, out, JSON_COMPACT | JSON_ENCODE_ANY) != 0)
        out->failed = true;
}

json_t *json_text(const char *text, size_t size) {
    json_t *value = json_stringn(text, size); /* as it is, where it is valid */
    if (value) return value;
    struct json_out out = {0};
    json_out_text(&out, text, size);
    if (!out.failed)
        value = json_loadb(out.data, out.size, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    json_out_free(&out);
    return value;
}
