#include "daemon/schema.h"

#include "base/json.h"
#include "base/words.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

int schema_refuse(struct error *e, const char *field, const char *expected, const json_t *got) {
    char text[160];
    json_describe(got, text, sizeof text);
    error_set(e, ERR_PARAMS, "%s must be %s, not %s", field, expected, text);
    error_note(e, "field", field);
    error_note(e, "expected", expected);
    error_note(e, "got", text);
    return -(int)ERR_PARAMS;
}

static bool is_whole(const json_t *value) {
    if (json_is_integer(value)) return true;
    double number = json_is_real(value) ? json_real_value(value) : NAN;
    return fabs(number) < 9e15 && floor(number) == number;
}

/* The first element that is not of the type wanted, or NULL. */
static const json_t *wrong_element(const json_t *array, json_type type) {
    size_t i;
    const json_t *element;
    json_array_foreach((json_t *)array, i, element) {
        if (json_typeof(element) != type) return element;
    }
    return NULL;
}

static void range_text(const struct param *p, const char *what, char *out, size_t size) {
    bool low = p->min > -9e15, high = p->max < 9e15;
    if (low && high) snprintf(out, size, "%s from %.15g to %.15g", what, p->min, p->max);
    else if (low) snprintf(out, size, "%s of at least %.15g", what, p->min);
    else snprintf(out, size, "%s", what);
}

static int check_range(const struct param *p, const json_t *value, struct error *e) {
    char expected[96];
    range_text(p, p->type == PARAM_INT ? "an integer" : "a number", expected, sizeof expected);
    bool fits = p->type == PARAM_INT ? is_whole(value) : json_is_number(value);
    double number = json_number_value(value);
    if (!fits || number < p->min || number > p->max)
        return schema_refuse(e, p->name, expected, value);
    return 0;
}

static int check_list(const struct param *p, const json_t *value, json_type type,
                      const char *element, const char *expected, struct error *e) {
    if (!json_is_array(value)) return schema_refuse(e, p->name, expected, value);
    const json_t *wrong = wrong_element(value, type);
    if (!wrong) return 0;
    char field[80];
    size_t i = 0;
    while (json_array_get(value, i) != wrong) i++;
    snprintf(field, sizeof field, "%s[%zu]", p->name, i);
    return schema_refuse(e, field, element, wrong);
}

static int check_value(const struct param *p, const json_t *value, struct error *e) {
    char expected[120];
    switch (p->type) {
    case PARAM_BOOL:
        return json_is_boolean(value) ? 0 : schema_refuse(e, p->name, "true or false", value);
    case PARAM_INT:
    case PARAM_NUMBER: return check_range(p, value, e);
    case PARAM_STRING:
        return json_is_string(value) ? 0 : schema_refuse(e, p->name, "a string", value);
    case PARAM_IDS:
        return check_list(p, value, JSON_INTEGER, "a token id", "an array of token ids", e);
    case PARAM_PROMPT:
        if (json_is_string(value)) return 0;
        return check_list(p, value, JSON_INTEGER, "a token id", "a string or an array of token ids",
                          e);
    case PARAM_STRINGS:
        if (json_is_string(value)) return 0;
        return check_list(p, value, JSON_STRING, "a string", "a string or an array of strings", e);
    case PARAM_OBJECT:
        return json_is_object(value) ? 0 : schema_refuse(e, p->name, "an object", value);
    case PARAM_ANY: return 0;
    case PARAM_ID:
        return json_is_string(value) || json_is_integer(value)
                   ? 0
                   : schema_refuse(e, p->name, "a string or an integer", value);
    case PARAM_SWITCH:
        if (json_is_boolean(value)) return 0;
        if (json_word(value) && word_among(p->choices, json_word(value))) return 0;
        snprintf(expected, sizeof expected, "true, false or %s", p->choices);
        return schema_refuse(e, p->name, expected, value);
    case PARAM_CHOICE:
        if (json_word(value) && word_among(p->choices, json_word(value))) return 0;
        snprintf(expected, sizeof expected, "one of %s", p->choices);
        return schema_refuse(e, p->name, expected, value);
    }
    return 0;
}

static const struct param *find(const struct param *list, const char *name) {
    for (; list->name; list++)
        if (strcmp(list->name, name) == 0) return list;
    return NULL;
}

static int unknown(const struct param *list, const char *name, const json_t *value,
                   struct error *e) {
    struct suggestion near;
    char hint[96], got[160];
    suggest_start(&near, name);
    for (const struct param *p = list; p->name; p++) suggest_offer(&near, p->name);
    error_set(e, ERR_PARAMS, "unknown parameter \"%.80s\"%s", name,
              suggest_text(&near, hint, sizeof hint));
    error_note(e, "field", name);
    error_note(e, "expected", near.best ? near.best : "no such parameter");
    error_note(e, "got", json_describe(value, got, sizeof got));
    return -(int)ERR_PARAMS;
}

int schema_check(const struct param *list, const json_t *params, struct error *e) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)params, name, value) {
        const struct param *p = find(list, name);
        int rc = !p                    ? unknown(list, name, value, e)
                 : json_is_null(value) ? 0
                                       : check_value(p, value, e);
        if (rc != 0) return rc;
    }
    for (const struct param *p = list; p->name; p++) {
        value = json_object_get(params, p->name);
        if (p->required && (!value || json_is_null(value))) {
            error_set(e, ERR_PARAMS, "%s is required", p->name);
            error_note(e, "field", p->name);
            error_note(e, "expected", "a value");
            error_note(e, "got", value ? "null" : "nothing");
            return -(int)ERR_PARAMS;
        }
    }
    return 0;
}
