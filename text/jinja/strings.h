/* text/jinja/strings.h: what methods and filters do with text. For text/jinja/ alone. */
#ifndef TPD_TEXT_JINJA_STRINGS_H
#define TPD_TEXT_JINJA_STRINGS_H

#include "text/jinja/render.h"

enum sides { SIDE_LEFT = 1, SIDE_RIGHT = 2, SIDE_BOTH = 3 };
/* chars NULL: white space. */
struct string *text_strip(struct render *r, struct string *s, struct string *chars,
                          enum sides sides);
struct string *text_replace(struct render *r, struct string *s, struct string *from,
                            struct string *to, int64_t at_most); /* < 0: all */
enum letter_case { CASE_UPPER, CASE_LOWER, CASE_CAPITAL, CASE_TITLE, CASE_SWAP };
struct string *text_case(struct render *r, struct string *s, enum letter_case to);
struct string *text_title_filter(struct render *r, struct string *s);
/* fill around s up to width characters; sides: where fill goes. */
struct string *text_pad(struct render *r, struct string *s, int64_t width, const char *fill,
                        size_t fill_size, enum sides sides);
struct string *text_join(struct render *r, struct string *separator, struct value list);
/* str.format */
struct string *text_format(struct render *r, struct string *format, const struct args *args);
/* One value as a format spec says (">8.2f"). */
void text_spec(struct render *r, struct buf *to, struct value v, struct view spec);

#endif
