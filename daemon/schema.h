/* daemon/schema.h: what parameters a method takes, as data, and the check against it.
 *
 * Handlers may rely on what the check has let through: only known names, right types, numbers in
 * range, required ones present. docs/schema/ says the same for people; a test holds both equal. */
#ifndef TPD_DAEMON_SCHEMA_H
#define TPD_DAEMON_SCHEMA_H

#include "base/error.h"

#include <jansson.h>

enum param_type {
    PARAM_BOOL,
    PARAM_INT,    /* within min … max; 3.0 is taken */
    PARAM_NUMBER, /* within min … max */
    PARAM_STRING,
    PARAM_IDS,     /* array of integers */
    PARAM_PROMPT,  /* string, or array of integers */
    PARAM_STRINGS, /* string, or array of strings */
    PARAM_OBJECT,
    PARAM_ANY, /* the handler checks it */
    PARAM_ID,    /* string or integer: the id of a request */
    PARAM_CHOICE, /* one of the words in `choices` */
    PARAM_SWITCH  /* true, false, or one of the words */
};

struct param {
    const char *name;
    enum param_type type;
    bool required;
    double min, max;
    const char *choices; /* "off|auto" */
};

/* NULL-name terminated lists. params may be NULL (none given). A null member counts as absent. */
int schema_check(const struct param *list, const json_t *params, struct error *e);
/* ERR_PARAMS with the notes field, expected, got. */
int schema_refuse(struct error *e, const char *field, const char *expected, const json_t *got);

#endif
