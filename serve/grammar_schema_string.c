/* Strings of a schema: length, pattern, format. */
#include "serve/grammar_schema.h"

#include "base/json.h"

#include <stdio.h>
#include <string.h>

#define DAY_31 "(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])"
#define DAY_30 "(0[469]|11)-(0[1-9]|[12][0-9]|30)"
#define DAY_28 "02-(0[1-9]|1[0-9]|2[0-8])"
#define LEAP   "(1[2-9]|2[0-9])(0[48]|[2468][048]|[13579][26])-02-29"
#define DATE   "([12][0-9]{3}-(" DAY_31 "|" DAY_30 "|" DAY_28 ")|" LEAP ")"
#define CLOCK  "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?"
#define ZONE   "(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define HEX    "[0-9a-fA-F]"
#define LABEL  "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define H16    HEX "{1,4}"
#define TWO    "[0-9]{1,2}"
#define SPAN   "T(" TWO "H(" TWO "M(" TWO "S)?)?|" TWO "M(" TWO "S)?|" TWO "S)"
#define BYTE   "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"

/* Each gives texts that are valid for the format, though not all of them. */
static const struct {
    const char *name, *pattern;
} formats[] = {
    {"date", "^" DATE "$"},
    {"time", "^" CLOCK ZONE "$"},
    {"date-time", "^" DATE "T" CLOCK ZONE "$"},
    {"uuid", "^" HEX "{8}-" HEX "{4}-" HEX "{4}-" HEX "{4}-" HEX "{12}$"},
    {"email", "^[A-Za-z0-9_%+-]{1,20}(\\.[A-Za-z0-9_%+-]{1,20}){0,2}@" LABEL "(\\." LABEL "){1,3}$"},
    {"hostname", "^" LABEL "(\\." LABEL "){0,3}$"},
    {"ipv4", "^" BYTE "\\." BYTE "\\." BYTE "\\." BYTE "$"},
    {"ipv6", "^((" H16 ":){7}" H16 "|(" H16 ":){1,6}:" H16 "|(" H16 ":){1,5}(:" H16 "){2}|(" H16
             ":){1,4}(:" H16 "){3}|(" H16 ":){1,3}(:" H16 "){4}|(" H16 ":){1,2}(:" H16 "){5}|" H16
             ":(:" H16 "){6}|::(" H16 ":){0,5}" H16 "|(" H16 ":){1,7}:|::)$"},
    {"duration", "^P([0-9]{1,4}D(" SPAN ")?|" SPAN "|[0-9]{1,3}W)$"},
    {"uri", "^(https?|ftp)://" LABEL "(\\." LABEL "){0,3}(:[1-9][0-9]{0,3})?(/[A-Za-z0-9._~%+@-]{0,60}){0,8}"
            "(\\?[A-Za-z0-9._~=&+-]{0,200})?(#[A-Za-z0-9._~=&+-]{0,100})?$"},
};

static int read_pattern(struct schema_reader *r, const json_t *value, int32_t *out) {
    struct error why;
    const char *pattern = json_word(value);
    if (!pattern) return schema_error(r, "must be a regular expression");
    if (pattern_read(&r->s, pattern, json_char(r), out, &why) == 0) return 0;
    return schema_error(r, "%s", why.message);
}

static int read_format(struct schema_reader *r, const json_t *value, int32_t *out) {
    const char *name = json_word(value);
    for (size_t i = 0; name && i < sizeof formats / sizeof *formats; i++) {
        if (strcmp(formats[i].name, name) != 0) continue;
        return pattern_read(&r->s, formats[i].pattern, json_char(r), out, r->e);
    }
    return schema_error(r, "this format is not supported: there are date, time, date-time, uuid, "
                           "email, hostname, ipv4, ipv6, duration and uri");
}

int schema_string(struct schema_reader *r, const json_t *schema, int32_t *out) {
    const json_t *pattern = json_object_get(schema, "pattern");
    const json_t *format = json_object_get(schema, "format");
    uint32_t min, max;
    int32_t inside = SOURCE_EMPTY;
    int err = schema_count(r, schema, "minLength", 0, &min);
    if (!err) err = schema_count(r, schema, "maxLength", SOURCE_NO_END, &max);
    if (err) return err;
    if (max < min) return schema_error(r, "maxLength is less than minLength");
    if (pattern && format) return schema_error(r, "pattern and format together are not supported");
    bool sized = min > 0 || max != SOURCE_NO_END;
    if ((pattern || format) && sized)
        return schema_error(r, "%s together with minLength or maxLength is not supported: say the "
                               "length in the pattern",
                            pattern ? "pattern" : "format");
    if (!pattern && !format && !sized) {
        *out = json_any_string(r);
        return 0;
    }
    size_t before = pointer_push(r, pattern ? "pattern" : "format");
    if (pattern) err = read_pattern(r, pattern, &inside);
    else if (format) err = read_format(r, format, &inside);
    else inside = source_repeat(&r->s, json_char(r), min, max);
    pointer_pop(r, before);
    *out = json_quoted(r, inside);
    return err;
}
