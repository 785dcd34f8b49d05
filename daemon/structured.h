/* daemon/structured.h: what requests say about the form of their answers, as grammars.
 *
 * The grammars that were asked for last are kept, with what they have learnt about the vocabulary:
 * clients send the same schema with each request. Loop's thread. */
#ifndef TPD_DAEMON_STRUCTURED_H
#define TPD_DAEMON_STRUCTURED_H

#include "serve/grammar.h"

struct structured_cache {
    struct structured_entry {
        char *text; /* NULL: free. What it was made of, and of which kind */
        enum structured_kind { STRUCTURED_GRAMMAR, STRUCTURED_SCHEMA, STRUCTURED_OBJECT } kind;
        struct grammar *grammar;
        uint64_t used;
    } entries[8];
    uint64_t clock;
};

void structured_clear(struct structured_cache *cache);

/* The parameters json_schema (an object, true or false) and grammar (a text in GBNF). *out is a share
 * of the caller's, or NULL when there is neither. ERR_PARAMS with the notes field, and pointer or line
 * and column. */
int structured_read(struct structured_cache *cache, const json_t *params, struct grammar **out,
                    struct error *e);
/* OpenAI's response_format: text (NULL), json_object, json_schema. format may be NULL. */
int structured_read_format(struct structured_cache *cache, const json_t *format,
                           struct grammar **out, struct error *e);
/* A call of one of the tools (an array as OpenAI has it, checked), or of that named: {"name": …,
 * "arguments": what its parameters ask for}. ERR_PARAMS with the note field "tools". */
int structured_read_call(struct structured_cache *cache, const json_t *tools, const char *name,
                         struct grammar **out, struct error *e);

#endif
