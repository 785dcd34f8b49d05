#include "text/chat.h"

#include <stdio.h>

enum { MAX_ENDS = 4, MAX_END_BYTES = 64 };

struct chat {
    struct chat_template *template;
    token_id ends[MAX_ENDS];
    char pieces[MAX_ENDS][MAX_END_BYTES]; /* their text; "": longer than that */
    size_t n_ends;
};

/* --- what ends a turn ----------------------------------------------------------------------- */

static void add_end(struct chat *c, const struct tokenizer *t, token_id id) {
    size_t size;
    const char *piece = tokenizer_piece(t, id, &size);
    for (size_t i = 0; i < c->n_ends; i++)
        if (c->ends[i] == id) return;
    if (!piece || c->n_ends == MAX_ENDS) return;
    if (size < MAX_END_BYTES) memcpy(c->pieces[c->n_ends], piece, size);
    c->ends[c->n_ends++] = id;
}

static bool is_space_token(const struct tokenizer *t, token_id id) {
    uint8_t bytes[8];
    size_t n = tokenizer_bytes(t, id, bytes, sizeof bytes);
    for (size_t i = 0; i < n && i < sizeof bytes; i++)
        if (bytes[i] != ' ' && bytes[i] != '\n' && bytes[i] != '\t') return false;
    return n <= sizeof bytes;
}

/* The first special token in what is written behind an answer, if nothing but space is in front. */
static token_id first_special(const struct tokenizer *t, const char *text, size_t size) {
    struct token_ids ids = {0};
    struct error ignored;
    token_id found = -1;
    if (tokenizer_encode(t, text, size, false, &ids, &ignored) == 0)
        for (size_t i = 0; i < ids.n && found < 0; i++) {
            if (tokenizer_is_special(t, ids.ids[i])) found = ids.ids[i];
            else if (!is_space_token(t, ids.ids[i])) break;
        }
    token_ids_free(&ids);
    return found;
}

/* Learnt from a short conversation. */
static void find_ends(struct chat *c, const struct tokenizer *t) {
    static const char probe[] = "tpd-probe";
    struct jinja_output out = {0};
    struct error ignored;
    json_t *variables = json_pack("{s:[{s:s, s:s}, {s:s, s:s}], s:b}", "messages", "role", "user",
                                  "content", "q", "role", "assistant", "content", probe,
                                  "add_generation_prompt", 0);
    if (variables && !chat_template_missing(c->template) &&
        chat_template_render(c->template, variables, NULL, &out, &ignored) == 0 && out.text.size) {
        const char *at = memmem(out.text.data, out.text.size, probe, strlen(probe));
        if (at) {
            at += strlen(probe);
            add_end(c, t, first_special(t, at, out.text.size - (size_t)(at - out.text.data)));
        }
    }
    json_decref(variables);
    jinja_output_free(&out);
    add_end(c, t, tokenizer_eos(t));
}

bool chat_ends_turn(const struct chat *c, const char *text, size_t size, size_t *space) {
    size_t end = size;
    while (end > 0 && strchr(" \n\t\r", text[end - 1]) && text[end - 1]) end--;
    *space = size - end;
    for (size_t i = 0; i < c->n_ends; i++) {
        size_t n = strlen(c->pieces[i]);
        if (n && n <= end && !memcmp(text + end - n, c->pieces[i], n)) return true;
    }
    return false;
}

size_t chat_last_end(const struct chat *c, const char *text, size_t size) {
    size_t space;
    for (size_t end = size; end > 0; end--)
        if (!strchr(" \n\t\r", text[end - 1]) && chat_ends_turn(c, text, end, &space)) return end;
    return 0;
}

/* --- opening -------------------------------------------------------------------------------- */

int chat_open(struct chat **out, const char *path, const char *choice,
              const struct tokenizer *tokenizer, struct error *e) {
    struct chat *c = calloc(1, sizeof *c);
    if (!c) return error_set(e, ERR_MEMORY, "no memory for a chat template");
    int err = chat_template_open(&c->template, path, choice, e);
    if (err) {
        free(c);
        return err;
    }
    find_ends(c, tokenizer);
    *out = c;
    return 0;
}

void chat_free(struct chat *c) {
    if (!c) return;
    chat_template_free(c->template);
    free(c);
}

const char *chat_missing(const struct chat *c) {
    return chat_template_missing(c->template);
}

const token_id *chat_ends(const struct chat *c, size_t *n) {
    *n = c->n_ends;
    return c->ends;
}

bool chat_has_generation(const struct chat *c, bool with_tools) {
    return chat_template_has_generation(c->template, with_tools);
}

bool chat_takes_tools(const struct chat *c) {
    return chat_template_takes_tools(c->template);
}

bool chat_takes_tool_calls(const struct chat *c) {
    return chat_template_takes_tool_calls(c->template);
}

uint64_t chat_fingerprint(const struct chat *c) {
    return chat_template_fingerprint(c->template);
}

/* --- messages ------------------------------------------------------------------------------- */

static int refuse(struct error *e, size_t i, const char *member, const char *what) {
    char field[64];
    snprintf(field, sizeof field, "messages[%zu]%s%s", i, *member ? "." : "", member);
    error_set(e, ERR_PARAMS, "%s %s", field, what);
    error_note(e, "field", field);
    return -(int)ERR_PARAMS;
}

/* The texts of a list of parts, lines between; anything but text is refused. */
static json_t *join_parts(const json_t *parts, size_t i, struct error *e) {
    struct buf text = {0};
    size_t k;
    const json_t *part;
    json_array_foreach((json_t *)parts, k, part) {
        const json_t *piece = json_is_string(part) ? part : json_object_get(part, "text");
        if (!json_is_string(piece)) {
            buf_free(&text);
            refuse(e, i, "content", "has a part that is no text: this model reads text alone");
            return NULL;
        }
        if (k) buf_add_char(&text, '\n');
        buf_add(&text, json_string_value(piece), json_string_length(piece));
    }
    json_t *whole = text.failed ? NULL : json_stringn(text.data ? text.data : "", text.size);
    buf_free(&text);
    if (!whole) error_set(e, ERR_MEMORY, "no memory for the messages");
    return whole;
}

static int set(json_t *object, const char *key, json_t *value, struct error *e) {
    return value && json_object_set_new(object, key, value) == 0
               ? 0
               : error_set(e, ERR_MEMORY, "no memory for the messages");
}

static int put_content(const struct chat *c, json_t *to, const json_t *content, size_t i,
                       struct error *e) {
    if (json_is_string(content) || chat_template_takes_parts(c->template))
        return set(to, "content", json_incref((json_t *)content), e);
    json_t *joined = join_parts(content, i, e);
    return joined ? set(to, "content", joined, e) : -(int)e->kind;
}

/* One call, with its arguments as an object. Those that are no JSON stay as they are: the template
 * will write them so. */
static json_t *tool_call(const json_t *call) {
    const json_t *function = json_object_get(call, "function");
    const json_t *holder = json_is_object(function) ? function : call;
    const json_t *text = json_object_get(holder, "arguments");
    struct error ignored;
    json_t *parsed = json_is_string(text)
                         ? json_read(json_string_value(text), json_string_length(text), &ignored)
                         : NULL;
    if (!json_is_object(parsed)) {
        json_decref(parsed);
        return json_incref((json_t *)call);
    }
    json_t *copy = json_copy((json_t *)call), *inner = copy;
    if (copy && holder == function) {
        inner = json_copy((json_t *)function);
        if (!inner || json_object_set_new(copy, "function", inner) != 0) inner = NULL;
    }
    if (!inner || json_object_set(inner, "arguments", parsed) != 0) {
        json_decref(copy);
        copy = NULL;
    }
    json_decref(parsed);
    return copy;
}

static int put_tool_calls(json_t *to, const json_t *calls, size_t i, struct error *e) {
    size_t k;
    const json_t *call;
    json_t *list = json_array();
    if (!json_is_array(calls)) {
        json_decref(list);
        return refuse(e, i, "tool_calls", "must be an array");
    }
    json_array_foreach((json_t *)calls, k, call) {
        if (!json_is_object(call)) {
            json_decref(list);
            return refuse(e, i, "tool_calls", "must be an array of objects");
        }
        if (json_array_append_new(list, tool_call(call)) != 0) {
            json_decref(list);
            return error_set(e, ERR_MEMORY, "no memory for the messages");
        }
    }
    return set(to, "tool_calls", list, e);
}

static int put_message(const struct chat *c, json_t *to, const json_t *message, size_t i,
                       struct error *e) {
    const char *key;
    json_t *value;
    if (!json_is_object(message)) return refuse(e, i, "", "is not an object");
    const json_t *role = json_object_get(message, "role"),
                 *content = json_object_get(message, "content");
    if (!json_is_string(role) || json_string_length(role) == 0) return refuse(e, i, "", "has no role");
    bool calls = json_array_size(json_object_get(message, "tool_calls")) > 0;
    bool absent = !content || json_is_null(content);
    if (absent ? !calls : !json_is_string(content) && !json_is_array(content))
        return refuse(e, i, "content", "must be a string or a list of parts");
    int err = 0;
    json_object_foreach((json_t *)message, key, value) {
        if (err || json_is_null(value)) continue;
        if (!strcmp(key, "content")) err = put_content(c, to, value, i, e);
        else if (!strcmp(key, "tool_calls")) err = put_tool_calls(to, value, i, e);
        else err = set(to, key, json_incref(value), e);
    }
    /* Templates add it to other text without asking whether it is there. */
    return !err && absent ? set(to, "content", json_string(""), e) : err;
}

json_t *chat_messages(const struct chat *c, const json_t *messages, struct error *e) {
    size_t i;
    const json_t *message;
    if (!json_is_array(messages) || json_array_size(messages) == 0) {
        error_set(e, ERR_PARAMS, "messages must be an array of at least one message");
        error_note(e, "field", "messages");
        return NULL;
    }
    json_t *list = json_array();
    json_array_foreach((json_t *)messages, i, message) {
        json_t *to = json_object();
        int err = to && list ? put_message(c, to, message, i, e)
                             : error_set(e, ERR_MEMORY, "no memory for the messages");
        if (err || json_array_append_new(list, to) != 0) {
            if (err) json_decref(to);
            else error_set(e, ERR_MEMORY, "no memory for the messages");
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

/* --- rendering ------------------------------------------------------------------------------ */

int chat_render(const struct chat *c, const struct chat_request *request, struct jinja_output *out,
                struct error *e) {
    struct error why = {0};
    json_t *all = request->variables ? json_copy((json_t *)request->variables) : json_object();
    bool made = all && json_object_set(all, "messages", (json_t *)request->messages) == 0 &&
                json_object_set_new(all, "add_generation_prompt",
                                    json_boolean(request->add_generation_prompt)) == 0;
    if (made && json_array_size(request->tools) > 0)
        made = json_object_set(all, "tools", (json_t *)request->tools) == 0;
    int err = made ? chat_template_render(c->template, all, request->now, out, &why)
                   : error_set(&why, ERR_MEMORY, "no memory for the messages");
    json_decref(all);
    if (!err) return 0;
    if (e) *e = why;
    if (why.kind == ERR_PARAMS) {
        int64_t line = 0;
        for (int i = 0; i < why.n_notes; i++)
            if (!strcmp(why.notes[i].key, "line")) line = why.notes[i].number;
        error_prefix(e, "the chat template refuses these messages in its line %lld: ",
                     (long long)line);
        error_note(e, "field", "messages");
    }
    return err;
}
