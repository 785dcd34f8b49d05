#include "daemon/structured.h"

#include "base/json.h"
#include "daemon/schema.h"

#include <stdlib.h>
#include <string.h>

static void empty(struct structured_entry *entry) {
    free(entry->text);
    grammar_release(entry->grammar);
    *entry = (struct structured_entry){0};
}

void structured_clear(struct structured_cache *cache) {
    for (size_t i = 0; i < sizeof cache->entries / sizeof *cache->entries; i++)
        empty(&cache->entries[i]);
}

/* The entry of a text; else an empty one, for which another's place may be taken. */
static struct structured_entry *entry_for(struct structured_cache *cache, enum structured_kind kind,
                                          const char *text) {
    struct structured_entry *oldest = &cache->entries[0];
    for (size_t i = 0; i < sizeof cache->entries / sizeof *cache->entries; i++) {
        struct structured_entry *entry = &cache->entries[i];
        if (entry->text && entry->kind == kind && strcmp(entry->text, text) == 0) return entry;
        if (entry->used < oldest->used) oldest = entry;
    }
    empty(oldest);
    return oldest;
}

static int make(enum structured_kind kind, const char *text, const json_t *schema,
                struct grammar **out, struct error *e) {
    switch (kind) {
    case STRUCTURED_GRAMMAR: return grammar_from_gbnf(out, text, strlen(text), e);
    case STRUCTURED_SCHEMA: return grammar_from_schema(out, schema, e);
    case STRUCTURED_OBJECT: return grammar_any_object(out, e);
    }
    return error_set(e, ERR_INTERNAL, "no such kind of grammar");
}

/* text is taken over. */
static int find_or_make(struct structured_cache *cache, enum structured_kind kind, char *text,
                        const json_t *schema, struct grammar **out, struct error *e) {
    if (!text) return error_set(e, ERR_MEMORY, "no memory for the grammar");
    struct structured_entry *entry = entry_for(cache, kind, text);
    entry->used = ++cache->clock;
    if (!entry->text) {
        int rc = make(kind, text, schema, &entry->grammar, e);
        if (rc != 0) {
            free(text);
            entry->used = 0;
            return rc;
        }
        entry->text = text;
        entry->kind = kind;
    } else free(text);
    *out = grammar_share(entry->grammar);
    return 0;
}

static int find_schema(struct structured_cache *cache, const char *field, const json_t *schema,
                       struct grammar **out, struct error *e) {
    int rc = find_or_make(cache, STRUCTURED_SCHEMA,
                          json_dumps(schema, JSON_ENCODE_ANY | JSON_COMPACT), schema, out, e);
    if (rc == -(int)ERR_PARAMS) {
        error_prefix(e, "%s: ", field);
        error_note(e, "field", field);
    }
    return rc;
}

static bool is_given(const json_t *value) {
    return value && !json_is_null(value);
}

int structured_read(struct structured_cache *cache, const json_t *params, struct grammar **out,
                    struct error *e) {
    const json_t *schema = json_object_get(params, "json_schema");
    const json_t *grammar = json_object_get(params, "grammar");
    *out = NULL;
    if (is_given(schema) && is_given(grammar))
        return schema_refuse(e, "grammar", "left out beside json_schema", grammar);
    if (is_given(schema)) return find_schema(cache, "json_schema", schema, out, e);
    if (!is_given(grammar)) return 0;
    if (!json_word(grammar))
        return schema_refuse(e, "grammar", "a text in GBNF, without NUL", grammar);
    int rc = find_or_make(cache, STRUCTURED_GRAMMAR, strdup(json_string_value(grammar)), NULL, out, e);
    if (rc == -(int)ERR_PARAMS) {
        error_prefix(e, "grammar: ");
        error_note(e, "field", "grammar");
    }
    return rc;
}

int structured_read_format(struct structured_cache *cache, const json_t *format,
                           struct grammar **out, struct error *e) {
    const json_t *type = json_object_get(format, "type");
    const char *word = json_word(type);
    *out = NULL;
    if (!is_given(format) || (word && strcmp(word, "text") == 0)) return 0;
    if (word && strcmp(word, "json_object") == 0)
        return find_or_make(cache, STRUCTURED_OBJECT, strdup(""), NULL, out, e);
    if (!word || strcmp(word, "json_schema") != 0)
        return schema_refuse(e, "response_format.type", "\"text\", \"json_object\" or \"json_schema\"",
                             type);
    const json_t *schema = json_object_get(json_object_get(format, "json_schema"), "schema");
    if (!is_given(schema))
        return schema_refuse(e, "response_format.json_schema.schema", "a JSON schema", schema);
    return find_schema(cache, "response_format.json_schema.schema", schema, out, e);
}
