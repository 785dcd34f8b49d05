#include "daemon/http_multipart.h"

#include <string.h>
#include <strings.h>

static int broken(struct error *e, const char *what) {
    return error_set(e, ERR_INVALID_REQUEST, "the multipart body is broken: %s", what);
}

/* The value of `key=` in a header; false when it is not there or does not fit. Quoted or bare. */
static bool header_value(const char *header, size_t n, const char *key, char *out, size_t size) {
    size_t length = strlen(key);
    for (size_t i = 0; i + length < n; i++) {
        bool starts = i == 0 || strchr("; \t", header[i - 1]);
        if (!starts || strncasecmp(header + i, key, length) != 0) continue;
        const char *from = header + i + length;
        size_t left = n - i - length, k = 0;
        bool quoted = left > 0 && *from == '"';
        from += quoted;
        left -= quoted;
        for (; left > 0 && k + 1 < size; from++, left--) {
            if (quoted ? *from == '"' : strchr("; \t\r", *from) != NULL) break;
            if (quoted && *from == '\\' && left > 1) from++, left--;
            out[k++] = *from;
        }
        out[k] = '\0';
        return quoted ? left > 0 && *from == '"' : k + 1 < size;
    }
    return false;
}

int form_open(struct form *form, const char *content_type, const char *body, size_t size,
              struct error *e) {
    char boundary[72]; /* RFC 2046: at most 70 characters */
    if (!header_value(content_type, strlen(content_type), "boundary=", boundary, sizeof boundary) ||
        boundary[0] == '\0')
        return broken(e, "Content-Type names no boundary of at most 70 characters");
    strcpy(form->boundary, "\r\n--");
    strcat(form->boundary, boundary);
    size_t n = strlen(form->boundary) - 2; /* the first stands at the very beginning */
    if (size < n || memcmp(body, form->boundary + 2, n) != 0)
        return broken(e, "it does not begin with its boundary");
    form->at = body + n;
    form->end = body + size;
    return 0;
}

/* Reads the headers of a part up to the blank line. */
static int read_headers(struct form *form, struct form_part *part, struct error *e) {
    static const char disposition[] = "content-disposition:";
    bool named = false;
    for (;;) {
        const char *line = form->at, *end = memmem(line, (size_t)(form->end - line), "\r\n", 2);
        if (!end) return broken(e, "a part's headers have no end");
        size_t n = (size_t)(end - line);
        form->at = end + 2;
        if (n == 0) return named ? 0 : broken(e, "a part has no name");
        if (n < sizeof disposition || strncasecmp(line, disposition, sizeof disposition - 1) != 0)
            continue;
        named = header_value(line, n, "name=", part->name, sizeof part->name);
        if (!header_value(line, n, "filename=", part->filename, sizeof part->filename))
            part->filename[0] = '\0';
    }
}

int form_next(struct form *form, struct form_part *part, struct error *e) {
    *part = (struct form_part){0};
    size_t left = (size_t)(form->end - form->at);
    if (left >= 2 && memcmp(form->at, "--", 2) == 0) return 0;
    if (left < 2 || memcmp(form->at, "\r\n", 2) != 0) return broken(e, "it has no end");
    form->at += 2;
    int rc = read_headers(form, part, e);
    if (rc != 0) return rc;
    const char *end = memmem(form->at, (size_t)(form->end - form->at), form->boundary,
                             strlen(form->boundary));
    if (!end) return broken(e, "a part has no end");
    part->data = form->at;
    part->size = (size_t)(end - form->at);
    form->at = end + strlen(form->boundary);
    return 1;
}
