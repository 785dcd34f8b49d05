/* text/jinja/render.c: a rendering from its variables to its text; failures and bounds. */
#include "text/jinja/render.h"

#include <stdarg.h>
#include <stdio.h>

const struct undefined no_undefined = {.hint = ""};

/* Cut to what an error's message holds; the text of the template's own exception may be long. */
struct value render_fail(struct render *r, const char *type, const char *format, ...) {
    char message[480];
    if (!r->failed) {
        va_list args;
        va_start(args, format);
        vsnprintf(message, sizeof message, format, args);
        va_end(args);
        r->failed = true;
        error_set(r->error, ERR_PARAMS, "%s: %s", type, message);
    }
    return value_nothing();
}

void *render_take(struct render *r, size_t size) {
    void *memory = r->failed ? NULL : arena_take(&r->arena, size);
    if (!memory && !r->failed)
        render_fail(r, "MemoryError", "the template needs more than %d MiB", MAX_MEMORY >> 20);
    return memory;
}

bool render_step(struct render *r, size_t steps) {
    if (!r->failed && steps > MAX_STEPS - r->steps)
        render_fail(r, "TimeoutError", "the template takes more than %d steps", MAX_STEPS);
    else r->steps += steps;
    return !r->failed;
}

bool render_check(struct render *r, const struct buf *b) {
    if (b->failed) render_fail(r, "MemoryError", "no memory for the text");
    else if (b->size > MAX_OUTPUT)
        render_fail(r, "MemoryError", "a text over %d MiB", MAX_OUTPUT >> 20);
    return !r->failed;
}

bool render_enter(struct render *r) {
    if (r->depth >= MAX_DEPTH)
        render_fail(r, "RecursionError", "more than %d things inside each other", MAX_DEPTH);
    r->depth++;
    return !r->failed;
}

void render_leave(struct render *r) {
    r->depth--;
}

/* --- what is not there ---------------------------------------------------------------------- */

static struct value undefined_make(struct render *r, struct undefined u) {
    struct undefined *copy = render_take(r, sizeof *copy);
    if (copy) *copy = u;
    return (struct value){.kind = KIND_UNDEFINED, .undefined = copy ? copy : &no_undefined};
}

struct value undefined_new(struct render *r, const char *hint) {
    return undefined_make(r, (struct undefined){.hint = hint});
}

struct value undefined_name(struct render *r, struct string *name) {
    return undefined_make(r, (struct undefined){.name = value_string(name)});
}

struct value undefined_member(struct render *r, struct value object, struct value name,
                              bool unsafe) {
    return undefined_make(r, (struct undefined){
                                 .has_object = true, .object = object, .name = name, .unsafe = unsafe});
}

/* "str object", "jinja2.utils.Namespace object", "None". */
static void describe_object(struct value v, char *buf, size_t size) {
    const char *module = v.kind == KIND_LOOP || v.kind == KIND_MACRO ? "jinja2.runtime."
                         : v.kind == KIND_NAMESPACE                  ? "jinja2.utils."
                                                                     : "";
    if (v.kind == KIND_NONE) snprintf(buf, size, "None");
    else snprintf(buf, size, "%s%s object", module, value_type(v));
}

struct value render_undefined(struct render *r, struct value v) {
    const struct undefined *u = v.undefined;
    char object[80];
    if (u->hint) return render_fail(r, "UndefinedError", "%s", u->hint);
    struct buf name = {0};
    value_add_repr(r, &name, u->name);
    int n = name.size < 300 ? (int)name.size : 300;
    const char *text = name.data ? name.data : "";
    if (!u->has_object) render_fail(r, "UndefinedError", "%.*s is undefined", n, text);
    else if (u->unsafe)
        render_fail(r, "SecurityError", "access to attribute %.*s of '%s' object is unsafe.", n,
                    text, value_type(u->object));
    else {
        describe_object(u->object, object, sizeof object);
        if (u->name.kind != KIND_STRING)
            render_fail(r, "UndefinedError", "%s has no element %.*s", object, n, text);
        else render_fail(r, "UndefinedError", "'%s' has no attribute %.*s", object, n, text);
    }
    buf_free(&name);
    return value_nothing();
}

/* --- the whole ------------------------------------------------------------------------------ */

void jinja_output_free(struct jinja_output *out) {
    buf_free(&out->text);
    spans_free(&out->generated);
}

static void set_clock(struct render *r, const struct tm *now) {
    time_t seconds = time(NULL);
    if (now) r->now = *now;
    else localtime_r(&seconds, &r->now);
}

int jinja_render(const struct jinja *template, const json_t *variables, const struct tm *now,
                 struct jinja_output *out, struct error *e) {
    struct error ignored;
    struct render r = {.arena = {.limit = MAX_MEMORY},
                       .template = template,
                       .out = &out->text,
                       .output = out,
                       .error = e ? e : &ignored,
                       .no_string = {.data = ""}};
    set_clock(&r, now);
    struct value all = value_from_json(&r, variables);
    r.variables = all.kind == KIND_DICT ? all.dict : dict_new(&r);
    r.scope = scope_push(&r, NULL);
    render_block(&r, template->body);
    render_check(&r, &out->text);
    if (!r.failed && out->generated.failed)
        render_fail(&r, "MemoryError", "no memory for the text");
    if (r.failed && r.line) {
        error_note_number(r.error, "line", r.line);
        error_note_number(r.error, "column", r.column);
    }
    arena_free(&r.arena);
    return r.failed ? -(int)ERR_PARAMS : 0;
}
