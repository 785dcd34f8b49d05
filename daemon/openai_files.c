/* /v1/files: data for fine-tune jobs that a client sends. A file is data_dir/uploads/ID/NAME, which
 * appears whole or not at all, and tells all that there is to know of it. The worker pool touches the
 * disk. */
#include "base/file.h"
#include "daemon/http_multipart.h"
#include "daemon/openai.h"
#include "daemon/training.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_NAME = 200, MAX_LIST = 10000 };

struct file_call {
    int (*work)(struct call *call, struct file_call *c);
    char *body, *content_type; /* of an upload: owned */
    size_t body_size;
    json_t *result;
    struct json_out out; /* of a file's content */
    struct error error;
};

static int no_memory(struct error *e) {
    return error_set(e, ERR_MEMORY, "no memory for the request");
}

static const char *data_dir_of(const struct call *call) {
    return call->server->training->data_dir;
}

/* --- where files lie --- */

static bool is_file_id(const char *id) {
    size_t n = strlen(id);
    return strncmp(id, "file-", 5) == 0 && n > 5 && n < 64 &&
           strspn(id + 5, "0123456789abcdef") == n - 5;
}

/* The one entry of a directory; NULL when there is none. */
static char *only_entry(const char *dir) {
    DIR *d = opendir(dir);
    struct dirent *entry;
    char *path = NULL;
    if (!d) return NULL;
    while (!path && (entry = readdir(d)))
        if (entry->d_name[0] != '.') path = path_join(dir, entry->d_name);
    closedir(d);
    return path;
}

int openai_file_path(char **path, const char *data_dir, const char *id, struct error *e) {
    char name[96];
    *path = NULL;
    if (is_file_id(id)) {
        snprintf(name, sizeof name, "uploads/%s", id);
        char *dir = path_join(data_dir, name);
        if (!dir) return no_memory(e);
        *path = only_entry(dir);
        free(dir);
    }
    if (*path) return 0;
    return error_set(e, ERR_NOT_FOUND, "no file \"%.100s\": GET /v1/files lists those that are there",
                     id);
}

static json_t *file_json(const char *id, const char *path) {
    struct stat st;
    if (stat(path, &st) != 0) return NULL;
    return json_pack("{s:s, s:s, s:I, s:I, s:s, s:s, s:s}", "id", id, "object", "file", "bytes",
                     (json_int_t)st.st_size, "created_at", (json_int_t)st.st_mtime, "filename",
                     path_base(path), "purpose", "fine-tune", "status", "processed");
}

/* --- create --- */

/* A name that is one file's and shows as it is: what could be more becomes '_'. */
static void clean_name(const char *given, char out[MAX_NAME + 1]) {
    size_t n = 0;
    for (const char *c = path_base(given); *c && n < MAX_NAME; c++)
        out[n++] = isalnum((unsigned char)*c) || strchr("._-+ ", *c) ? *c : '_';
    if (n == 0) out[n++] = '_';
    if (out[0] == '.') out[0] = '_';
    out[n] = '\0';
}

static int read_form(const struct file_call *c, struct form_part *file, struct error *e) {
    struct form form;
    struct form_part part;
    char purpose[32] = "";
    bool have = false;
    int rc = form_open(&form, c->content_type, c->body, c->body_size, e);
    while (rc == 0 && (rc = form_next(&form, &part, e)) > 0) {
        rc = 0;
        if (strcmp(part.name, "file") == 0) *file = part, have = true;
        if (strcmp(part.name, "purpose") == 0)
            snprintf(purpose, sizeof purpose, "%.*s", (int)(part.size < 31 ? part.size : 31),
                     part.data);
    }
    if (rc < 0) return rc;
    const char *missing = !have ? "file" : strcmp(purpose, "fine-tune") != 0 ? "purpose" : NULL;
    if (!missing) return 0;
    error_set(e, ERR_PARAMS, !have ? "file is required: the part of the form with the data"
                                   : "purpose must be \"fine-tune\": files are for nothing else here");
    error_note(e, "field", missing);
    return -(int)ERR_PARAMS;
}

static int write_file(const char *dir, const char *name, const struct form_part *part,
                      struct error *e) {
    struct file_writer writer;
    char *path = path_join(dir, name);
    if (!path) return no_memory(e);
    int rc = dir_make(dir, e);
    if (rc == 0) rc = file_writer_open(&writer, path, e);
    if (rc == 0) {
        file_writer_add(&writer, part->data, part->size);
        rc = file_writer_commit(&writer, e);
    }
    free(path);
    return rc;
}

static void draw_id(char id[64]) {
    uint64_t number = 0;
    if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number)
        number = (uint64_t)clock_ns();
    snprintf(id, 64, "file-%016" PRIx64, number);
}

static int create(struct call *call, struct file_call *c) {
    struct error *e = &c->error, ignored;
    struct form_part part;
    char id[64], name[MAX_NAME + 1], place[128];
    int rc = read_form(c, &part, e);
    if (rc != 0) return rc;
    draw_id(id);
    clean_name(part.filename, name);
    snprintf(place, sizeof place, "uploads/.%s", id);
    char *hidden = path_join(data_dir_of(call), place);
    snprintf(place, sizeof place, "uploads/%s", id);
    char *dir = path_join(data_dir_of(call), place), *all = path_join(data_dir_of(call), "uploads");
    rc = hidden && dir && all ? write_file(hidden, name, &part, e) : no_memory(e);
    if (rc == 0 && rename(hidden, dir) != 0) rc = error_errno(e, errno, dir, "keep the file");
    if (rc == 0) rc = dir_sync(all, e);
    if (rc != 0 && hidden) dir_remove(hidden, &ignored);
    char *path = rc == 0 ? only_entry(dir) : NULL;
    if (path && !(c->result = file_json(id, path))) rc = no_memory(e);
    free(path);
    free(hidden);
    free(dir);
    free(all);
    return rc;
}

/* --- list, get, content, delete --- */

static int newest_first(const void *a, const void *b) {
    json_int_t x = json_integer_value(json_object_get(*(json_t *const *)a, "created_at"));
    json_int_t y = json_integer_value(json_object_get(*(json_t *const *)b, "created_at"));
    return (x < y) - (x > y);
}

static size_t read_all(const char *data_dir, json_t **files) {
    char *dir = path_join(data_dir, "uploads"), *path;
    DIR *d = dir ? opendir(dir) : NULL;
    struct dirent *entry;
    struct error ignored;
    size_t n = 0;
    while (d && n < MAX_LIST && (entry = readdir(d)))
        if (openai_file_path(&path, data_dir, entry->d_name, &ignored) == 0) {
            if ((files[n] = file_json(entry->d_name, path))) n++;
            free(path);
        }
    if (d) closedir(d);
    free(dir);
    return n;
}

static int list(struct call *call, struct file_call *c) {
    json_t **files = calloc(MAX_LIST, sizeof *files), *data = json_array();
    size_t limit = MAX_LIST, n = files ? read_all(data_dir_of(call), files) : 0, from = 0;
    const json_t *given = json_object_get(call->params, "limit");
    const char *after = json_string_value(json_object_get(call->params, "after"));
    if (json_is_number(given)) limit = (size_t)json_number_value(given);
    if (files) qsort(files, n, sizeof *files, newest_first);
    for (size_t i = 0; after && i < n; i++)
        if (strcmp(json_string_value(json_object_get(files[i], "id")), after) == 0) from = i + 1;
    for (size_t i = from; i < n && i - from < limit; i++) json_array_append(data, files[i]);
    c->result = json_pack("{s:s, s:o, s:b}", "object", "list", "data", data, "has_more",
                          from + limit < n);
    for (size_t i = 0; i < n; i++) json_decref(files[i]);
    free(files);
    return c->result ? 0 : no_memory(&c->error);
}

static const char *id_of(const struct call *call) {
    return json_string_value(json_object_get(call->params, "file"));
}

static int get(struct call *call, struct file_call *c) {
    char *path;
    int rc = openai_file_path(&path, data_dir_of(call), id_of(call), &c->error);
    if (rc == 0 && !(c->result = file_json(id_of(call), path))) rc = no_memory(&c->error);
    free(path);
    return rc;
}

static int content(struct call *call, struct file_call *c) {
    char *path, *text = NULL;
    size_t size;
    int rc = openai_file_path(&path, data_dir_of(call), id_of(call), &c->error);
    if (rc == 0)
        rc = file_read(path, (size_t)call->server->config->max_upload, &text, &size, &c->error);
    if (rc == 0) {
        call_begin_result(call, &c->out);
        json_out_raw(&c->out, text, size);
    }
    free(text);
    free(path);
    return rc;
}

static int delete(struct call *call, struct file_call *c) {
    char *path;
    int rc = openai_file_path(&path, data_dir_of(call), id_of(call), &c->error);
    if (rc != 0) return rc;
    *strrchr(path, '/') = '\0'; /* its directory */
    rc = dir_remove(path, &c->error);
    free(path);
    if (rc == 0 && !(c->result = json_pack("{s:s, s:s, s:b}", "id", id_of(call), "object", "file",
                                           "deleted", 1)))
        rc = no_memory(&c->error);
    return rc;
}

/* --- as calls --- */

static void in_thread(struct call *call) {
    struct file_call *c = call->state;
    if (c->work(call, c) != 0 && c->error.kind == ERR_NONE) no_memory(&c->error);
}

static void afterwards(struct call *call) {
    struct file_call *c = call->state;
    struct http *http = http_of(call);
    if (c->error.kind != ERR_NONE) call_fail(call, &c->error);
    else if (c->result) call_result(call, c->result);
    else {
        if (http) http->content_type_out = "application/octet-stream";
        call_end_result(call, &c->out);
    }
    free(c->body);
    free(c->content_type);
    free(c);
}

static struct file_call *start(struct call *call, int (*work)(struct call *, struct file_call *)) {
    struct file_call *c = calloc(1, sizeof *c);
    if (!c) {
        struct error e;
        no_memory(&e);
        call_fail(call, &e);
        return NULL;
    }
    c->work = work;
    call->state = c;
    return c;
}

/* The body may go with its connection: the upload takes it along. */
void handle_openai_file_create(struct call *call) {
    struct http *http = http_of(call);
    struct file_call *c = start(call, create);
    if (!c) return;
    c->body = http->body;
    c->body_size = http->body_size;
    http->body = NULL;
    http->body_size = http->body_capacity = 0;
    c->content_type = strdup(http->content_type.text);
    if (c->content_type) call_in_thread(call, in_thread, afterwards);
    else {
        no_memory(&c->error);
        afterwards(call);
    }
}

static void run(struct call *call, int (*work)(struct call *, struct file_call *)) {
    if (start(call, work)) call_in_thread(call, in_thread, afterwards);
}

void handle_openai_file_list(struct call *call) { run(call, list); }
void handle_openai_file_get(struct call *call) { run(call, get); }
void handle_openai_file_content(struct call *call) { run(call, content); }
void handle_openai_file_delete(struct call *call) { run(call, delete); }
