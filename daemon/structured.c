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

/* A tool's call as a schema. */
static json_t *call_schema(const json_t *tool) {
    const json_t *function = json_object_get(tool, "function");
    const json_t *parameters = json_object_get(function, "parameters");
    json_t *arguments = json_is_object(parameters) && json_object_size(parameters) > 0
                            ? json_incref((json_t *)parameters)
                            : json_pack("{s:s}", "type", "object");
    return json_pack("{s:s, s:{s:{s:O}, s:o}, s:[s, s], s:b}", "type", "object", "properties", "name",
                     "const", json_object_get(function, "name"), "arguments", arguments, "required",
                     "name", "arguments", "additionalProperties", 0);
}

int structured_read_call(struct structured_cache *cache, const json_t *tools, const char *name,
                         struct grammar **out, struct error *e) {
    size_t i;
    json_t *tool, *any = json_array();
    *out = NULL;
    json_array_foreach((json_t *)tools, i, tool) {
        const char *its = json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
        if (!name || strcmp(its, name) == 0) json_array_append_new(any, call_schema(tool));
    }
    json_t *schema = json_pack("{s:o}", "anyOf", any);
    int rc = schema ? find_schema(cache, "tools", schema, out, e)
                    : error_set(e, ERR_MEMORY, "no memory for the request");
    json_decref(schema);
    return rc;
}
