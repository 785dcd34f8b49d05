#include "train/chat.h"

#include <string.h>

void rendered_free(struct rendered *r) {
    buf_free(&r->text);
    spans_free(&r->learnt);
}

/* A record on its way to text: all renderings see the same clock. */
struct record_chat {
    const struct chat *chat;
    const json_t *messages, *tools;
    struct tm now;
};

/* The first n messages; one more than there are: and a user's behind them. */
static int render(const struct record_chat *c, size_t n, bool prompt, struct jinja_output *out,
                  struct error *e) {
    json_t *some = json_array();
    bool made = some != NULL;
    for (size_t i = 0; i < n && made; i++)
        made = (i < json_array_size(c->messages)
                    ? json_array_append(some, json_array_get(c->messages, i))
                    : json_array_append_new(some, json_pack("{s:s, s:s}", "role", "user", "content",
                                                            "?"))) == 0;
    struct chat_request request = {.messages = some,
                                   .tools = c->tools,
                                   .add_generation_prompt = prompt,
                                   .now = &c->now};
    int err = made ? chat_render(c->chat, &request, out, e)
                   : error_set(e, ERR_MEMORY, "no memory for a record");
    json_decref(some);
    return err;
}

static bool is_prefix(const struct buf *head, const struct buf *whole) {
    return head->size <= whole->size &&
           (head->size == 0 || memcmp(head->data, whole->data, head->size) == 0);
}

static size_t common(const struct buf *a, const struct buf *b) {
    size_t n = 0;
    while (n < a->size && n < b->size && a->data[n] == b->data[n]) n++;
    return n;
}

/* Where turn i ends, which begins at `from`: at the end of a rendering that ends with it. Some templates
 * put something behind the last message, whatever it is; then at the last end of a turn that the
 * rendering and the whole share. 0: there is none. */
static size_t turn_end(const struct record_chat *c, const struct buf *with, const struct buf *whole,
                       size_t from) {
    size_t shared = common(with, whole);
    if (shared == with->size) return with->size;
    size_t end = shared > from ? chat_last_end(c->chat, whole->data + from, shared - from) : 0;
    return end ? from + end : 0;
}

static int inconsistent(struct error *e, size_t i) {
    return error_set(e, ERR_PARAMS,
                     "the model's chat template writes the conversation up to messages[%zu] in another "
                     "way once more follows, so what the assistant says there can not be told from the "
                     "rest: end the record with that turn, or set chat_template to a template with "
                     "{%% generation %%} blocks",
                     i);
}

/* Where the last turn ends: as if a user spoke once more. A template that does not let him, or writes
 * the turn in another way then, ends it with the text. */
static size_t last_turn_end(const struct record_chat *c, const struct buf *whole, size_t from) {
    struct jinja_output more = {0};
    struct error ignored;
    size_t end = 0;
    if (render(c, json_array_size(c->messages) + 1, false, &more, &ignored) == 0)
        end = turn_end(c, whole, &more.text, from);
    jinja_output_free(&more);
    return end ? end : whole->size;
}

/* The bytes that message i adds behind the prompt for those before it. White space behind the token
 * that ends the turn is the template's, not the assistant's. */
static int find_turn(const struct record_chat *c, size_t i, const struct buf *whole,
                     struct spans *learnt, struct error *e) {
    struct jinja_output prompt = {0}, with = {0};
    size_t space;
    bool last = i + 1 == json_array_size(c->messages);
    int err = render(c, i, true, &prompt, e);
    if (!err && !last) err = render(c, i + 1, false, &with, e);
    size_t from = prompt.text.size, to = 0;
    if (!err) to = last ? last_turn_end(c, whole, from) : turn_end(c, &with.text, whole, from);
    if (!err && (!is_prefix(&prompt.text, whole) || to == 0)) err = inconsistent(e, i);
    if (!err && from < to && chat_ends_turn(c->chat, whole->data + from, to - from, &space))
        to -= space;
    if (!err && from >= to)
        err = error_set(e, ERR_PARAMS,
                        "messages[%zu] is empty: an assistant's turn needs text to learn", i);
    if (!err) spans_add(learnt, from, to);
    jinja_output_free(&prompt);
    jinja_output_free(&with);
    return err;
}

static bool is_assistant(const json_t *message) {
    return !strcmp(json_string_value(json_object_get(message, "role")), "assistant");
}

static int find_turns(const struct record_chat *c, const struct buf *whole, struct spans *learnt,
                      struct error *e) {
    int err = 0;
    for (size_t i = 0; i < json_array_size(c->messages) && !err; i++)
        if (is_assistant(json_array_get(c->messages, i)))
            err = find_turn(c, i, whole, learnt, e);
    return err;
}

/* As other tools' files call the assistant: nothing would be learnt from them, and nobody told. */
static bool is_foreign_role(const char *role) {
    static const char *const names[] = {"gpt", "bot", "model", "ai", "human", "chatgpt"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(role, names[i])) return true;
    return false;
}

/* What the assistant is taught to say is something, and nothing of it is lost. */
static int check_turns(const struct record_chat *c, struct error *e) {
    size_t i;
    const json_t *message;
    if (json_array_size(c->tools) > 0 && !chat_takes_tools(c->chat))
        return error_set(e, ERR_PARAMS, "\"tools\": the model's chat template has no form for them");
    json_array_foreach((json_t *)c->messages, i, message) {
        const json_t *content = json_object_get(message, "content");
        bool calls = json_array_size(json_object_get(message, "tool_calls")) > 0;
        bool empty = json_string_length(content) + json_array_size(content) == 0;
        const char *role = json_string_value(json_object_get(message, "role"));
        if (is_foreign_role(role))
            return error_set(e, ERR_PARAMS,
                             "messages[%zu].role is \"%s\"; what is learnt is said by \"assistant\", "
                             "to \"user\"",
                             i, role);
        if (calls && !chat_takes_tool_calls(c->chat))
            return error_set(e, ERR_PARAMS,
                             "messages[%zu].tool_calls: the model's chat template has no form for them",
                             i);
        if (is_assistant(message) && empty && !calls)
            return error_set(e, ERR_PARAMS,
                             "messages[%zu].content is empty: an assistant's turn needs text to learn",
                             i);
    }
    return 0;
}

static int render_messages(struct record_chat *c, struct rendered *r, struct error *e) {
    struct jinja_output whole = {0};
    int err = check_turns(c, e);
    if (!err) err = render(c, json_array_size(c->messages), false, &whole, e);
    if (!err && chat_has_generation(c->chat, json_array_size(c->tools) > 0)) {
        spans_free(&r->learnt);
        r->learnt = whole.generated;
        whole.generated = (struct spans){0};
    } else if (!err) err = find_turns(c, &whole.text, &r->learnt, e);
    buf_swap(&r->text, &whole.text);
    jinja_output_free(&whole);
    if (!err && (r->text.failed || r->learnt.failed))
        err = error_set(e, ERR_MEMORY, "no memory for a record");
    return err;
}

int chat_render_record(const struct chat *chat, const json_t *record, struct rendered *r,
                       struct error *e) {
    struct record_chat c = {.chat = chat};
    time_t seconds = time(NULL);
    localtime_r(&seconds, &c.now);
    if (!chat)
        return error_set(e, ERR_PARAMS, "messages need a model with a chat template");
    if (chat_missing(chat)) return error_set(e, ERR_PARAMS, "%s", chat_missing(chat));
    c.tools = json_object_get(record, "tools");
    if (c.tools && !json_is_null(c.tools) && !json_is_array(c.tools))
        return error_set(e, ERR_PARAMS, "\"tools\" must be an array");
    json_t *messages = chat_messages(chat, json_object_get(record, "messages"), e);
    if (!messages) return -(int)e->kind;
    c.messages = messages;
    int err = render_messages(&c, r, e);
    json_decref(messages);
    return err;
}
