/* text/pretokenise_parse.c: the pre_tokenizer section of a tokenizer file into steps. */
#include "text/pretokenise.h"

#include "base/json.h"
#include "text/unicode.h"

/* The splits that published components do without saying so in the file. */
#define GPT2_REGEX                                                                                 \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define WHITESPACE_REGEX "[" REGEX_WORD "]+|[^\\s" REGEX_WORD "]+"

static struct pre_step *add_step(struct pretokeniser *p, enum pre_kind kind, struct error *e) {
    if (p->n == PRE_MAX_STEPS) {
        error_set(e, ERR_BAD_FILE, "more than %d pre-tokenizers", PRE_MAX_STEPS);
        return NULL;
    }
    struct pre_step *steps = realloc(p->steps, (p->n + 1) * sizeof *steps);
    if (!steps) {
        error_set(e, ERR_MEMORY, "no memory for a pre-tokenizer");
        return NULL;
    }
    p->steps = steps;
    steps[p->n] = (struct pre_step){.kind = kind, .behavior = SPLIT_ISOLATED};
    return &steps[p->n++];
}

void pretokeniser_free(struct pretokeniser *p) {
    for (size_t i = 0; i < p->n; i++) pattern_free(&p->steps[i].pattern);
    free(p->steps);
    *p = (struct pretokeniser){0};
}

static int add_split(struct pretokeniser *p, enum pattern_kind kind, enum split_behavior behavior,
                     struct error *e) {
    struct pre_step *step = add_step(p, PRE_SPLIT, e);
    if (!step) return -(int)ERR_BAD_FILE;
    step->pattern.kind = kind;
    step->behavior = behavior;
    return 0;
}

int pretokeniser_add_regex(struct pretokeniser *p, const char *regex, struct error *e) {
    struct pre_step *step = add_step(p, PRE_SPLIT, e);
    return step ? pattern_of_regex(&step->pattern, regex, e) : -(int)ERR_BAD_FILE;
}

int pretokeniser_add_byte_level(struct pretokeniser *p, struct error *e) {
    return add_step(p, PRE_BYTE_LEVEL, e) ? 0 : -(int)ERR_BAD_FILE;
}

static int bad_member(const json_t *json, const char *key, const char *expected, struct error *e) {
    char got[96];
    return error_set(e, ERR_BAD_FILE, "%s must be %s, not %s", key, expected,
                     json_describe(json_object_get(json, key), got, sizeof got));
}

/* true or false; when_absent for a member that is not there. */
static int take_bool(const json_t *json, const char *key, bool when_absent, bool *out,
                     struct error *e) {
    const json_t *value = json_object_get(json, key);
    *out = value ? json_is_true(value) : when_absent;
    return value && !json_is_boolean(value) ? bad_member(json, key, "true or false", e) : 0;
}

static int take_behavior(const json_t *json, enum split_behavior *out, struct error *e) {
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    const json_t *value = json_object_get(json, "behavior");
    for (int i = 0; i < 5 && json_is_string(value); i++)
        if (strcmp(json_string_value(value), names[i]) == 0) {
            *out = (enum split_behavior)i;
            return 0;
        }
    return bad_member(json, "behavior",
                      "Removed, Isolated, MergedWithPrevious, MergedWithNext or "
                      "Contiguous",
                      e);
}

/* A string of exactly one character. */
static int take_char(const json_t *json, const char *key, char out[5], struct error *e) {
    const json_t *value = json_object_get(json, key);
    uint32_t c;
    size_t n = json_string_length(value);
    if (!json_is_string(value) || n == 0 || utf8_next(json_string_value(value), &c) != n)
        return bad_member(json, key, "one character", e);
    memcpy(out, json_string_value(value), n);
    out[n] = '\0';
    return 0;
}

int metaspace_parse(const json_t *json, char mark[5], enum prepend_scheme *scheme, bool *split,
                    struct error *e) {
    static const char *const names[] = {"always", "first", "never"};
    bool prefix;
    int err = take_char(json, "replacement", mark, e);
    if (!err) err = take_bool(json, "split", true, split, e);
    if (!err) err = take_bool(json, "add_prefix_space", true, &prefix, e);
    if (err) return err;
    *scheme = prefix ? PREPEND_ALWAYS : PREPEND_NEVER; /* files before prepend_scheme */
    const json_t *value = json_object_get(json, "prepend_scheme");
    if (!value) return 0;
    for (int i = 0; i < 3 && json_is_string(value); i++)
        if (strcmp(json_string_value(value), names[i]) == 0) {
            *scheme = (enum prepend_scheme)i;
            return 0;
        }
    return bad_member(json, "prepend_scheme", "always, first or never", e);
}

static int parse_metaspace(struct pretokeniser *p, const json_t *json, struct error *e) {
    struct pre_step *step = add_step(p, PRE_METASPACE, e);
    bool split;
    if (!step) return -(int)ERR_BAD_FILE;
    int err = metaspace_parse(json, step->mark, &step->scheme, &split, e);
    if (err || !split) return err;
    char mark[5];
    memcpy(mark, step->mark, sizeof mark);
    if ((err = add_split(p, PATTERN_STRING, SPLIT_MERGED_WITH_NEXT, e)) != 0) return err;
    return pattern_of_string(&p->steps[p->n - 1].pattern, mark, strlen(mark), e);
}

static int parse_byte_level(struct pretokeniser *p, const json_t *json, struct error *e) {
    bool prefix, regex;
    int err = take_bool(json, "add_prefix_space", true, &prefix, e);
    if (!err) err = take_bool(json, "use_regex", true, &regex, e);
    if (!err && prefix && !add_step(p, PRE_PREFIX_SPACE, e)) err = -(int)ERR_BAD_FILE;
    if (!err && regex) err = pretokeniser_add_regex(p, GPT2_REGEX, e);
    return err ? err : pretokeniser_add_byte_level(p, e);
}

static int parse_split(struct pretokeniser *p, const json_t *json, struct error *e) {
    struct pre_step *step = add_step(p, PRE_SPLIT, e);
    if (!step) return -(int)ERR_BAD_FILE;
    int err = pattern_parse(&step->pattern, json_object_get(json, "pattern"), e);
    if (!err) err = take_behavior(json, &step->behavior, e);
    return err ? err : take_bool(json, "invert", false, &step->invert, e);
}

static int parse_digits(struct pretokeniser *p, const json_t *json, struct error *e) {
    bool individual;
    int err = take_bool(json, "individual_digits", false, &individual, e);
    return err ? err
               : add_split(p, PATTERN_NUMERIC, individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS, e);
}

static int parse_punctuation(struct pretokeniser *p, const json_t *json, struct error *e) {
    enum split_behavior behavior = SPLIT_ISOLATED;
    int err = json_object_get(json, "behavior") ? take_behavior(json, &behavior, e) : 0;
    return err ? err : add_split(p, PATTERN_PUNCTUATION, behavior, e);
}

static int parse_whitespace(struct pretokeniser *p, const json_t *json, struct error *e) {
    (void)json;
    int err = pretokeniser_add_regex(p, WHITESPACE_REGEX, e);
    if (err) return err;
    p->steps[p->n - 1].behavior = SPLIT_REMOVED;
    p->steps[p->n - 1].invert = true;
    return 0;
}

static int parse_whitespace_split(struct pretokeniser *p, const json_t *json, struct error *e) {
    (void)json;
    return add_split(p, PATTERN_SPACE, SPLIT_REMOVED, e);
}

static int parse_bert(struct pretokeniser *p, const json_t *json, struct error *e) {
    int err = parse_whitespace_split(p, json, e);
    return err ? err : add_split(p, PATTERN_PUNCTUATION, SPLIT_ISOLATED, e);
}

static int parse_delimiter(struct pretokeniser *p, const json_t *json, struct error *e) {
    char delimiter[5];
    int err = take_char(json, "delimiter", delimiter, e);
    if (!err) err = add_split(p, PATTERN_STRING, SPLIT_REMOVED, e);
    return err ? err
               : pattern_of_string(&p->steps[p->n - 1].pattern, delimiter, strlen(delimiter), e);
}

static int parse_fixed_length(struct pretokeniser *p, const json_t *json, struct error *e) {
    struct pre_step *step = add_step(p, PRE_FIXED_LENGTH, e);
    if (!step) return -(int)ERR_BAD_FILE;
    const json_t *length = json_object_get(json, "length");
    step->length = length ? json_integer_value(length) : 5;
    return step->length > 0 ? 0 : bad_member(json, "length", "a number over 0", e);
}

static int parse_sequence(struct pretokeniser *p, const json_t *json, struct error *e) {
    const json_t *list = json_object_get(json, "pretokenizers"), *item;
    size_t i;
    if (!json_is_array(list)) return bad_member(json, "pretokenizers", "an array", e);
    json_array_foreach(list, i, item) {
        int err = json_is_null(item) ? error_set(e, ERR_BAD_FILE, "must be an object, not null")
                                     : pretokeniser_parse(p, item, e);
        if (err) return error_prefix(e, "pretokenizers[%zu].", i);
    }
    return 0;
}

int pretokeniser_parse(struct pretokeniser *p, const json_t *json, struct error *e) {
    static const struct {
        const char *name;
        int (*parse)(struct pretokeniser *p, const json_t *json, struct error *e);
    } kinds[] = {{"Sequence", parse_sequence},
                 {"Split", parse_split},
                 {"Digits", parse_digits},
                 {"Metaspace", parse_metaspace},
                 {"ByteLevel", parse_byte_level},
                 {"Whitespace", parse_whitespace},
                 {"WhitespaceSplit", parse_whitespace_split},
                 {"Punctuation", parse_punctuation},
                 {"BertPreTokenizer", parse_bert},
                 {"CharDelimiterSplit", parse_delimiter},
                 {"FixedLength", parse_fixed_length}};
    if (json_is_null(json)) return 0;
    const char *type = json_string_value(json_object_get(json, "type"));
    if (!type) return error_set(e, ERR_BAD_FILE, "type must name a pre-tokenizer");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(type, kinds[i].name) == 0) return kinds[i].parse(p, json, e);
    return error_set(e, ERR_BAD_FILE,
                     "type \"%.60s\" is a pre-tokenizer that tpd does not have (it has Sequence, "
                     "Split, Digits, Metaspace, ByteLevel, Whitespace, WhitespaceSplit, "
                     "Punctuation, BertPreTokenizer, CharDelimiterSplit, FixedLength)",
                     type);
}
