/* serve/grammar_schema.h: JSON schemas as grammars: what the parts of the reader share. Private to
 * serve/grammar*. */
#ifndef TPD_SERVE_GRAMMAR_SCHEMA_H
#define TPD_SERVE_GRAMMAR_SCHEMA_H

#include "serve/grammar_source.h"

/* A schema that is compiled as a rule of its own, later. */
struct schema_task {
    const json_t *schema;
    char *pointer; /* owned */
    int32_t rule;
};

struct schema_reader {
    struct grammar_source s;
    const json_t *root;
    struct error *e;
    char pointer[1024]; /* of what is being read, "#/properties/a" */
    size_t pointer_size;
    /* Tasks [0, done) are compiled. Each target of $ref has one. */
    struct schema_task *tasks;
    size_t n_tasks, room_tasks, done;
    json_t *made; /* array: schemas that were merged from others */
    int depth;         /* of schemas merged within schemas */
    size_t merge_work; /* what merging them has looked at */
    int compiling;       /* within each other */
    /* The grammar of JSON itself. -1: not made yet. */
    int32_t any_value, any_object, any_array, any_string, space, json_char;
};

/* grammar_json.c: the pieces that JSON is made of, as expressions. */
void json_grammar_init(struct schema_reader *r); /* nothing is made yet */
int32_t json_space(struct schema_reader *r);
int32_t json_char(struct schema_reader *r); /* one of a string */
int32_t json_any_string(struct schema_reader *r);
int32_t json_any_value(struct schema_reader *r);
int32_t json_any_object(struct schema_reader *r);
int32_t json_any_array(struct schema_reader *r);
int32_t json_any_number(struct schema_reader *r);
int32_t json_any_integer(struct schema_reader *r);
int32_t json_quoted(struct schema_reader *r, int32_t inside);
/* "key" ":" and a space. */
int32_t json_key(struct schema_reader *r, const char *key, size_t size);
/* That very value. */
int32_t json_constant(struct schema_reader *r, const json_t *value);
/* A comma and space. */
int32_t json_comma(struct schema_reader *r);
/* open space inside space close. */
int32_t json_enclosed(struct schema_reader *r, const char *open, int32_t inside, const char *close);

/* grammar_schema_number.c: integers (or numbers, fractions included) of a range; INT64_MIN and INT64_MAX:
 * no bound. over, under: the bound itself is left out. -1: there is none. */
struct number_range {
    int64_t min, max;
    bool over, under;
};
int32_t json_integers(struct schema_reader *r, int64_t min, int64_t max);
int32_t json_numbers(struct schema_reader *r, struct number_range range);

/* grammar_schema.c. The pointer grows while what is below is read. All return 0 or an error that
 * names the pointer. */
size_t pointer_push(struct schema_reader *r, const char *step); /* what pointer_pop takes */
size_t pointer_push_index(struct schema_reader *r, size_t index);
void pointer_pop(struct schema_reader *r, size_t before);
int schema_error(struct schema_reader *r, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
int schema_compile(struct schema_reader *r, const json_t *schema, int32_t *out);
/* A count that is a keyword's value; absent: standard. */
int schema_count(struct schema_reader *r, const json_t *schema, const char *keyword,
                 uint32_t standard, uint32_t *out);

/* grammar_schema_string.c, grammar_schema_object.c */
int schema_string(struct schema_reader *r, const json_t *schema, int32_t *out);
int schema_number(struct schema_reader *r, const json_t *schema, bool integer, int32_t *out);
int schema_object(struct schema_reader *r, const json_t *schema, int32_t *out);
int schema_array(struct schema_reader *r, const json_t *schema, int32_t *out);

/* grammar_schema_merge.c: what satisfies both. *out belongs to the reader. */
int schema_merge(struct schema_reader *r, const json_t *a, const json_t *b, const json_t **out);
/* What a $ref of this document points to. */
int schema_target(struct schema_reader *r, const char *ref, const json_t **out);

#endif
