#include "text/tool_calls.h"

#include <stdlib.h>
#include <string.h>

static const char tag[] = "<tool_call>", end_tag[] = "</tool_call>";

/* The texts of tokens that stand before calls which are the whole answer. */
static const char *const marks[] = {"<|tool_call|>", "[TOOL_CALLS]", "<|python_tag|>"};
enum { N_MARKS = sizeof marks / sizeof *marks };

struct reader {
    const char *at, *end;
    const json_t *tools;
    json_t *calls;
};

static size_t left(const struct reader *r) {
    return (size_t)(r->end - r->at);
}

static void skip_space(struct reader *r) {
    while (r->at < r->end && strchr(" \t\r\n", *r->at) && *r->at) r->at++;
}

static bool take(struct reader *r, const char *word) {
    size_t n = strlen(word);
    if (left(r) < n || memcmp(r->at, word, n) != 0) return false;
    r->at += n;
    return true;
}

/* --- the tools that were offered --- */

static const json_t *name_of(const json_t *tool) {
    const json_t *function = json_object_get(tool, "function");
    return json_object_get(json_is_object(function) ? function : tool, "name");
}

bool tool_is_offered(const json_t *tools, const char *name, size_t size) {
    size_t i;
    json_t *tool;
    json_array_foreach((json_t *)tools, i, tool) {
        const json_t *its = name_of(tool);
        if (json_string_length(its) == size && memcmp(json_string_value(its), name, size) == 0)
            return true;
    }
    return false;
}

/* The offered name that the text begins with and '{' follows; 0: none. With `part`, also one of which
 * the text is the beginning. */
static size_t name_before_brace(const struct reader *r, bool part) {
    size_t i;
    json_t *tool;
    json_array_foreach((json_t *)r->tools, i, tool) {
        const json_t *its = name_of(tool);
        size_t n = json_string_length(its), have = left(r) < n ? left(r) : n;
        if (n == 0 || memcmp(json_string_value(its), r->at, have) != 0) continue;
        if (part && left(r) <= n) return n;
        if (left(r) > n && r->at[n] == '{') return n;
    }
    return 0;
}

/* --- calls --- */

/* The next JSON value of the text, taken; NULL when there is none that is whole. */
static json_t *take_json(struct reader *r) {
    json_error_t error;
    json_t *value = json_loadb(r->at, left(r), JSON_DISABLE_EOF_CHECK | JSON_REJECT_DUPLICATES,
                               &error);
    if (value) r->at += error.position;
    return value;
}

static bool add_call(struct reader *r, const char *name, const json_t *arguments) {
    char *text = json_is_string(arguments)
                     ? strdup(json_string_value(arguments))
                     : json_dumps(arguments, JSON_COMPACT | JSON_ENCODE_ANY);
    json_t *call = text ? json_pack("{s:s, s:s}", "name", name, "arguments", text) : NULL;
    free(text);
    return call && json_array_append_new(r->calls, call) == 0;
}

/* {"name": …, "arguments" or "parameters": {…}}. must_offer: only a tool that was. */
static bool add_object(struct reader *r, const json_t *object, bool must_offer) {
    const json_t *name = json_object_get(object, "name");
    const json_t *arguments = json_object_get(object, "arguments");
    if (!arguments) arguments = json_object_get(object, "parameters");
    if (!json_is_string(name) || json_string_length(name) == 0) return false;
    if (arguments && !json_is_object(arguments) && !json_is_string(arguments)) return false;
    if (must_offer && (!tool_is_offered(r->tools, json_string_value(name), json_string_length(name)) ||
                       !arguments))
        return false;
    if (arguments) return add_call(r, json_string_value(name), arguments);
    json_t *empty = json_string("{}");
    bool added = empty && add_call(r, json_string_value(name), empty);
    json_decref(empty);
    return added;
}

static bool add_value(struct reader *r, const json_t *value, bool must_offer) {
    size_t i;
    json_t *item;
    if (json_is_object(value)) return add_object(r, value, must_offer);
    if (!json_is_array(value) || json_array_size(value) == 0) return false;
    json_array_foreach((json_t *)value, i, item) {
        if (!add_object(r, item, must_offer)) return false;
    }
    return true;
}

/* <tool_call>…</tool_call>, again and again. What cannot be read ends the reading. */
static void read_tagged(struct reader *r) {
    while (take(r, tag)) {
        skip_space(r);
        json_t *value = take_json(r);
        bool good = value && add_value(r, value, false);
        json_decref(value);
        if (!good) return;
        skip_space(r);
        take(r, end_tag);
        skip_space(r);
    }
}

/* Values that are the whole answer: one after another, perhaps with ';' or ',' between. */
static bool read_values(struct reader *r) {
    do {
        skip_space(r);
        json_t *value = left(r) > 0 && strchr("[{", *r->at) ? take_json(r) : NULL;
        bool good = value && add_value(r, value, true);
        json_decref(value);
        if (!good) return false;
        skip_space(r);
    } while (take(r, ";") || take(r, ",") || left(r) > 0);
    return true;
}

/* name{…}name{…} */
static bool read_named(struct reader *r) {
    size_t n;
    while ((n = name_before_brace(r, false)) > 0) {
        char *name = strndup(r->at, n);
        r->at += n;
        json_t *value = take_json(r);
        bool good = name && json_is_object(value) && add_call(r, name, value);
        json_decref(value);
        free(name);
        if (!good) return false;
        skip_space(r);
    }
    return left(r) == 0;
}

json_t *tool_calls_read(const char *text, size_t size, const json_t *tools, size_t *content) {
    struct reader r = {text, text + size, tools, json_array()};
    *content = size;
    if (!r.calls) return NULL;
    const char *tagged = memmem(text, size, tag, sizeof tag - 1);
    if (tagged) {
        r.at = tagged;
        read_tagged(&r);
        if (json_array_size(r.calls) > 0) *content = (size_t)(tagged - text);
        while (*content > 0 && *content < size && strchr(" \t\r\n", text[*content - 1])) --*content;
        return r.calls;
    }
    skip_space(&r);
    for (int i = 0; i < N_MARKS; i++)
        if (take(&r, marks[i])) break;
    skip_space(&r);
    bool named = name_before_brace(&r, false) > 0;
    if (left(&r) > 0 && (named ? read_named(&r) : read_values(&r))) *content = 0;
    else json_array_clear(r.calls);
    return r.calls;
}

/* --- while it is being written --- */

static bool is_part(const struct reader *r, const char *word) {
    size_t n = strlen(word);
    return memcmp(r->at, word, left(r) < n ? left(r) : n) == 0;
}

size_t tool_calls_content(const char *text, size_t size, const json_t *tools) {
    struct reader r = {text, text + size, tools, NULL};
    skip_space(&r);
    if (left(&r) == 0 || strchr("[{", *r.at) || name_before_brace(&r, true) > 0) return 0;
    for (int i = 0; i < N_MARKS; i++)
        if (is_part(&r, marks[i])) return 0;
    const char *tagged = memmem(text, size, tag, sizeof tag - 1);
    size_t safe = tagged ? (size_t)(tagged - text) : size;
    size_t most = size < sizeof tag - 2 ? size : sizeof tag - 2;
    for (size_t n = most; n > 0 && !tagged; n--) /* its beginning, at the end */
        if (memcmp(text + size - n, tag, n) == 0) {
            safe = size - n;
            break;
        }
    /* White space before a call is no content. */
    while (safe > 0 && strchr(" \t\r\n", text[safe - 1])) safe--;
    return safe;
}
