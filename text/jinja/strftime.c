/* text/jinja/strftime.c: Python's strftime of the rendering's clock, in the C locale. */
#include "text/jinja/render.h"

#include <locale.h>

enum { MAX_FORMAT = 1024 };

/* One directive, with a flag such as glibc has it. Python's datetime has no zone, and no more than
 * whole seconds here. */
static void add_directive(struct render *r, struct buf *to, const char *directive, size_t size) {
    char format[8] = "", text[128];
    char letter = directive[size - 1];
    memcpy(format, directive, size);
    if (letter == 'f') buf_add(to, "000000", 6);
    else if (letter == 'z' || letter == 'Z') return;
    else {
        locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
        if (!c) return;
        buf_add(to, text, strftime_l(text, sizeof text, format, &r->now, c));
        freelocale(c);
    }
}

struct string *text_time(struct render *r, const char *format, size_t size) {
    struct buf text = {0};
    if (size > MAX_FORMAT) render_fail(r, "ValueError", "a format over %d bytes", MAX_FORMAT);
    for (size_t at = 0; at < size && !r->failed;) {
        size_t n = 1;
        if (format[at] == '%' && at + 1 < size) {
            n = 2;
            if (strchr("-_0^#", format[at + 1]) && at + 2 < size) n = 3;
        }
        if (n == 1) buf_add_char(&text, format[at]);
        else add_directive(r, &text, format + at, n);
        at += n;
    }
    return string_take(r, &text);
}
