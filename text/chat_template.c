#include "text/chat_template.h"

#include "base/file.h"
#include "base/hash.h"
#include "formats/gguf.h"
#include "text/chat_builtin.h"
#include "text/json_scan.h"
#include "text/unicode.h"

#include <stdio.h>

enum { MAX_TEMPLATE_FILE = 1 << 20, MAX_CONFIG_FILE = 64 << 20, MAX_SPECIAL = 1 << 20 };

struct chat_template {
    struct jinja *usual, *with_tools; /* with_tools NULL: the usual one */
    json_t *defaults;                 /* what the template may name without our being told */
    bool is_file;                     /* a .jinja by itself: it has what a request gives, no more */
    bool takes_parts, takes_tools, takes_tool_calls;
    uint64_t fingerprint;
    char missing[512]; /* "": there is one */
};

static int no_memory(struct error *e) {
    return error_set(e, ERR_MEMORY, "no memory for a chat template");
}

/* --- compiling ------------------------------------------------------------------------------ */

/* where: the file or key, for messages. */
static int take_source(struct chat_template *t, const char *name, const char *where,
                       const char *source, size_t size, struct error *e) {
    struct jinja *compiled;
    bool tools = strcmp(name, "tool_use") == 0;
    if (!tools && strcmp(name, "default") != 0) return 0; /* nobody asks for another */
    struct jinja **place = tools ? &t->with_tools : &t->usual;
    int err = jinja_compile(&compiled, source, size, e);
    if (err == -(int)ERR_BAD_FILE && e) {
        int64_t line = 0, column = 0;
        for (int i = 0; i < e->n_notes; i++) {
            if (!strcmp(e->notes[i].key, "line")) line = e->notes[i].number;
            if (!strcmp(e->notes[i].key, "column")) column = e->notes[i].number;
        }
        error_prefix(e, "%s: the chat template at line %lld, column %lld: ", where, (long long)line,
                     (long long)column);
        error_note(e, "path", where);
    }
    if (err) return err;
    t->fingerprint = hash_bytes(t->fingerprint, source, size);
    if (jinja_uses(compiled, "tools")) t->takes_tools = true;
    if (memmem(source, size, "tool_calls", 10)) t->takes_tool_calls = true;
    jinja_free(*place);
    *place = compiled;
    return 0;
}

static int take_file(struct chat_template *t, const char *name, const char *path, struct error *e) {
    char *text;
    size_t size;
    int err = file_read(path, MAX_TEMPLATE_FILE, &text, &size, e);
    if (err) return err;
    err = take_source(t, name, path, text, size, e);
    free(text);
    return err;
}

/* A string, or a list of {"name", "template"}. */
static int take_json(struct chat_template *t, const char *where, const json_t *value,
                     struct error *e) {
    size_t i;
    const json_t *item;
    int err = 0;
    if (json_is_string(value))
        return take_source(t, "default", where, json_string_value(value), json_string_length(value),
                           e);
    if (!json_is_array(value))
        return error_bad_file(e, where, NULL, NULL,
                              "chat_template must be a string or a list of {name, template}");
    json_array_foreach((json_t *)value, i, item) {
        const char *name = json_word(json_object_get(item, "name"));
        const json_t *text = json_object_get(item, "template");
        if (!name || !json_is_string(text))
            return error_bad_file(e, where, NULL, NULL, "chat_template[%zu] has no name or template",
                                  i);
        err = take_source(t, name, where, json_string_value(text), json_string_length(text), e);
        if (err) return err;
    }
    return 0;
}

/* --- a Hugging Face directory --------------------------------------------------------------- */

static bool is_special_key(struct json_text key) {
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (key.size == strlen(names[i]) && !memcmp(key.data, names[i], key.size)) return true;
    return false;
}

/* "</s>", or {"content": "</s>", …}; the first file that says so wins. */
static int take_special(struct chat_template *t, struct json_text key, struct json_text text) {
    struct error ignored;
    char name[16];
    snprintf(name, sizeof name, "%.*s", (int)key.size, key.data);
    if (text.size > MAX_SPECIAL || json_object_get(t->defaults, name)) return 0;
    json_t *json = json_read(text.data, text.size, &ignored);
    json_t *value = json_is_object(json) ? json_object_get(json, "content") : json;
    int err = json_is_string(value) && json_object_set(t->defaults, name, value) != 0;
    json_decref(json);
    return err;
}

/* A configuration is walked, not parsed whole: it may have numbers that jansson does not take. */
static int scan_config(struct chat_template *t, const char *path, const char *text, size_t size,
                       bool want_template, struct error *e) {
    struct json_scan scan = {text, size, 0};
    struct buf spare = {0};
    struct json_text key, value, template = {NULL, 0};
    bool first = true;
    int more = 0;
    int err = json_scan_open(&scan, '{', e);
    while (!err && (more = json_scan_next(&scan, '}', &first, e)) == 1) {
        err = json_scan_key(&scan, &spare, &key, e);
        if (!err) err = json_scan_skip(&scan, &value, e);
        if (err) break;
        if (key.size == 13 && !memcmp(key.data, "chat_template", 13)) template = value;
        else if (is_special_key(key) && take_special(t, key, value)) err = no_memory(e);
    }
    buf_free(&spare);
    if (!err) err = more;
    json_t *json = NULL;
    if (!err && want_template && template.data) {
        json = json_read(template.data, template.size, e);
        err = json ? 0 : -(int)ERR_BAD_FILE;
    }
    if (err) {
        char why[400];
        snprintf(why, sizeof why, "%s", e ? e->message : "");
        return error_bad_file(e, path, NULL, NULL, "%s", why);
    }
    if (json && !json_is_null(json)) err = take_json(t, path, json, e);
    json_decref(json);
    return err;
}

static int take_config(struct chat_template *t, const char *dir, const char *name,
                       bool want_template, struct error *e) {
    char *path = path_join(dir, name), *text = NULL;
    size_t size = 0;
    if (!path) return no_memory(e);
    int err = 0;
    if (path_exists(path)) {
        err = file_read(path, MAX_CONFIG_FILE, &text, &size, e);
        if (!err && utf8_check(text, size) < size)
            err = error_bad_file(e, path, NULL, NULL, "not UTF-8 at byte %zu", utf8_check(text, size));
        if (!err) err = scan_config(t, path, text, size, want_template && !t->usual, e);
    }
    free(text);
    free(path);
    return err;
}

static int take_file_of(struct chat_template *t, const char *dir, const char *name,
                        const char *file, struct error *e) {
    char *path = path_join(dir, file);
    if (!path) return no_memory(e);
    int err = path_exists(path) ? take_file(t, name, path, e) : 0;
    free(path);
    return err;
}

static int open_directory(struct chat_template *t, const char *dir, bool want_template,
                          struct error *e) {
    int err = 0;
    if (want_template) err = take_file_of(t, dir, "default", "chat_template.jinja", e);
    if (!err && want_template)
        err = take_file_of(t, dir, "tool_use", "additional_chat_templates/tool_use.jinja", e);
    if (!err) err = take_config(t, dir, "tokenizer_config.json", want_template, e);
    if (!err) err = take_config(t, dir, "special_tokens_map.json", false, e);
    if (!err) err = take_config(t, dir, "chat_template.json", want_template, e);
    return err;
}

/* --- GGUF ----------------------------------------------------------------------------------- */

static int take_gguf_template(struct chat_template *t, const struct gguf *file, const char *key,
                              const char *name, struct error *e) {
    struct gguf_string text;
    int found = gguf_get_string(file, key, &text, e);
    if (found <= 0) return found;
    return take_source(t, name, gguf_path(file), text.data, text.size, e);
}

static int take_gguf_token(struct chat_template *t, const struct gguf *file, const char *key,
                           const char *name, struct error *e) {
    int64_t id;
    struct gguf_array tokens;
    struct gguf_string piece;
    size_t cursor = 0;
    int found = gguf_get_int(file, key, &id, e);
    if (found <= 0) return found;
    found = gguf_get_array(file, "tokenizer.ggml.tokens", &tokens, e);
    if (found <= 0 || tokens.element != GGUF_STRING) return found < 0 ? found : 0;
    for (int64_t i = 0; gguf_array_next_string(&tokens, &cursor, &piece); i++) {
        if (i != id || utf8_check(piece.data, piece.size) < piece.size) continue;
        if (json_object_set_new(t->defaults, name, json_stringn(piece.data, piece.size)) != 0)
            return no_memory(e);
    }
    return 0;
}

static int open_gguf(struct chat_template *t, const char *path, bool want_template,
                     struct error *e) {
    static const char *const tokens[][2] = {
        {"tokenizer.ggml.bos_token_id", "bos_token"},
        {"tokenizer.ggml.eos_token_id", "eos_token"},
        {"tokenizer.ggml.unknown_token_id", "unk_token"},
        {"tokenizer.ggml.padding_token_id", "pad_token"},
    };
    struct gguf *file;
    int err = gguf_open(&file, path, e);
    if (err) return err;
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens && !err; i++)
        err = take_gguf_token(t, file, tokens[i][0], tokens[i][1], e);
    if (!err && want_template)
        err = take_gguf_template(t, file, "tokenizer.chat_template", "default", e);
    if (!err && want_template)
        err = take_gguf_template(t, file, "tokenizer.chat_template.tool_use", "tool_use", e);
    gguf_close(file);
    return err;
}

/* --- opening -------------------------------------------------------------------------------- */

static int take_choice(struct chat_template *t, const char *choice, struct error *e) {
    const char *builtin = chat_builtin_find(choice);
    if (builtin) return take_source(t, "default", choice, builtin, strlen(builtin), e);
    if (strchr(choice, '/') || path_exists(choice)) return take_file(t, "default", choice, e);
    return error_set(e, ERR_NOT_FOUND,
                     "chat_template: there is no file \"%s\", and tpd's own templates are: %s", choice,
                     chat_builtin_names);
}

static int open_sources(struct chat_template *t, const char *path, const char *choice,
                        struct error *e) {
    bool want = !choice || !*choice;
    int err = want ? 0 : take_choice(t, choice, e);
    if (err) return err;
    if (path_is_dir(path)) err = open_directory(t, path, want, e);
    else if (path_has_suffix(path, ".gguf") || file_begins_with(path, "GGUF"))
        err = open_gguf(t, path, want, e);
    else {
        t->is_file = true;
        if (want) err = take_file(t, "default", path, e);
    }
    return err;
}

/* Two conversations of one message, its content a string and a list of parts: a template that knows
 * parts writes the text of both and nothing else of the list. */
static bool writes(const struct chat_template *t, json_t *content, const char *wanted,
                   const char *unwanted) {
    struct jinja_output out = {0};
    struct error ignored;
    json_t *variables = json_pack("{s:[{s:s, s:o}], s:b}", "messages", "role", "user", "content",
                                  content, "add_generation_prompt", 0);
    bool yes = variables && chat_template_render(t, variables, NULL, &out, &ignored) == 0 &&
               out.text.size && memmem(out.text.data, out.text.size, wanted, strlen(wanted)) &&
               !memmem(out.text.data, out.text.size, unwanted, strlen(unwanted));
    json_decref(variables);
    jinja_output_free(&out);
    return yes;
}

static bool find_takes_parts(const struct chat_template *t) {
    json_t *parts = json_pack("[{s:s, s:s}]", "type", "text", "text", "tpd-probe");
    return parts && writes(t, parts, "tpd-probe", "type");
}

int chat_template_open(struct chat_template **out, const char *path, const char *choice,
                       struct error *e) {
    struct chat_template *t = calloc(1, sizeof *t);
    if (!t || !(t->defaults = json_object())) {
        free(t);
        return no_memory(e);
    }
    struct error why = {0};
    int err = open_sources(t, path, choice, &why);
    if (why.kind == ERR_BAD_FILE && (!choice || !*choice)) { /* the model can do all but chat */
        snprintf(t->missing, sizeof t->missing, "%s", why.message);
        jinja_free(t->usual);
        t->usual = NULL;
        err = 0;
    }
    if (err && e) *e = why;
    if (!err && !t->is_file)
        err = json_object_set_new(t->defaults, "tools", json_null()) ||
                      json_object_set_new(t->defaults, "documents", json_null())
                  ? no_memory(e)
                  : 0;
    if (err) {
        chat_template_free(t);
        return err;
    }
    if (!t->usual && !*t->missing)
        snprintf(t->missing, sizeof t->missing,
                 "%.160s has no chat template: set chat_template to a .jinja file or to one of %s",
                 path, chat_builtin_names);
    char *defaults = json_dumps(t->defaults, JSON_COMPACT | JSON_SORT_KEYS);
    if (defaults) t->fingerprint = hash_bytes(t->fingerprint, defaults, strlen(defaults));
    free(defaults);
    if (t->usual) t->takes_parts = find_takes_parts(t);
    *out = t;
    return 0;
}

void chat_template_free(struct chat_template *t) {
    if (!t) return;
    jinja_free(t->usual);
    jinja_free(t->with_tools);
    json_decref(t->defaults);
    free(t);
}

const char *chat_template_missing(const struct chat_template *t) {
    return *t->missing ? t->missing : NULL;
}

bool chat_template_has_generation(const struct chat_template *t, bool with_tools) {
    const struct jinja *jinja = with_tools && t->with_tools ? t->with_tools : t->usual;
    return jinja && jinja_has_generation(jinja);
}

bool chat_template_takes_parts(const struct chat_template *t) {
    return t->takes_parts;
}

bool chat_template_takes_tools(const struct chat_template *t) {
    return t->takes_tools;
}

bool chat_template_takes_tool_calls(const struct chat_template *t) {
    return t->takes_tool_calls;
}

uint64_t chat_template_fingerprint(const struct chat_template *t) {
    return t->fingerprint;
}

const char *chat_template_names(void) {
    return chat_builtin_names;
}

int chat_template_render(const struct chat_template *t, const json_t *variables,
                         const struct tm *now, struct jinja_output *out, struct error *e) {
    const json_t *tools = json_object_get(variables, "tools");
    if (!t->usual) return error_set(e, ERR_NOT_FOUND, "%s", t->missing);
    json_t *all = json_copy(t->defaults);
    if (!all || json_object_update(all, (json_t *)variables) != 0) {
        json_decref(all);
        return no_memory(e);
    }
    bool with_tools = t->with_tools && tools && !json_is_null(tools);
    int err = jinja_render(with_tools ? t->with_tools : t->usual, all, now, out, e);
    json_decref(all);
    return err;
}
