/* The method model.merge and the command `tpd merge`. */
#include "daemon/merge.h"

#include "base/file.h"
#include "daemon/adapters.h"
#include "daemon/job_paths.h"
#include "daemon/methods.h"
#include "daemon/offline.h"
#include "daemon/server.h"
#include "model/merge.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *report_json(const struct merge_report *r, const char *out, const char *adapter) {
    const char *notes[MERGE_NOTES];
    int n;
    json_t *list = json_array();
    merge_notes(r, notes, &n);
    for (int i = 0; i < n; i++) json_array_append_new(list, json_string(notes[i]));
    return json_pack("{s:o, s:o, s:s, s:I, s:I, s:I, s:I, s:o}", "path",
                     json_text(out, strlen(out)), "adapter", json_text(adapter, strlen(adapter)),
                     "dtype", dtype_info(r->type)->name, "tensors", (json_int_t)r->tensors, "merged",
                     (json_int_t)r->merged, "files", (json_int_t)r->files, "bytes",
                     (json_int_t)r->bytes, "notes", list);
}

/* --- model.merge ----------------------------------------------------------------------------------- */

struct merging {
    char *adapter; /* its directory */
    char *out;
    atomic_bool cancelled;
    struct merge_report report;
    struct error error; /* kind ERR_NONE: done */
};

static void merging_free(struct merging *m) {
    free(m->adapter);
    free(m->out);
    free(m);
}

static void cancel(struct call *call) {
    struct merging *m = call->state;
    atomic_store(&m->cancelled, true);
}

static const struct call_work merge_work = {.cancel = cancel};

static bool stopped(void *user) {
    struct merging *m = user;
    return atomic_load(&m->cancelled);
}

/* On the worker pool. */
static void merge(struct call *call) {
    struct merging *m = call->state;
    const struct server *server = call->server;
    const char *out = json_string_value(json_object_get(call->params, "out"));
    const struct merge_options options = {.stopped = stopped, .user = m};
    struct adapter *adapter = NULL;
    int err = job_out_path(&m->out, server->config->state_dir, out, &m->error);
    if (!err) err = adapter_open(&adapter, server->model, m->adapter, &m->error);
    if (!err) model_merge(&m->report, server->model, adapter, m->out, &options, &m->error);
    adapter_close(adapter);
}

static void answer(struct call *call) {
    struct merging *m = call->state;
    call->work = NULL;
    call->state = NULL;
    if (m->error.kind != ERR_NONE) call_fail(call, &m->error);
    else call_result(call, report_json(&m->report, m->out, m->adapter));
    merging_free(m);
}

void handle_model_merge(struct call *call) {
    const char *adapter = json_string_value(json_object_get(call->params, "adapter"));
    struct merging *m = calloc(1, sizeof *m);
    struct error e;
    if (call->cancelled || !call->server->model) {
        free(m);
        error_set(&e, ERR_CANCELLED, "the request was cancelled");
        call_fail(call, &e);
        return;
    }
    if (m) m->adapter = adapters_path(call->server, adapter);
    if (!m || !m->adapter) {
        error_set(&e, ERR_MEMORY, "no memory to merge");
        free(m);
        call_fail(call, &e);
        return;
    }
    call->state = m;
    call->work = &merge_work;
    call_in_thread(call, merge, answer);
}

/* --- tpd merge ------------------------------------------------------------------------------------- */

static const char usage[] = "usage: tpd merge MODEL ADAPTER OUT [--json]\n";

static void print_report(const struct merge_report *r, const char *out, const char *adapter,
                         bool as_json) {
    const char *notes[MERGE_NOTES];
    int n;
    if (as_json) {
        json_t *json = report_json(r, out, adapter);
        json_dumpf(json, stdout, JSON_COMPACT);
        putchar('\n');
        json_decref(json);
        return;
    }
    printf("%s: %zu tensors (%zu merged), %s, %zu bytes in %zu file%s\n", out, r->tensors, r->merged,
           dtype_info(r->type)->name, r->bytes, r->files, r->files == 1 ? "" : "s");
    merge_notes(r, notes, &n);
    for (int i = 0; i < n; i++) printf("note: %s\n", notes[i]);
}

int offline_merge(int argc, char **argv) {
    const char *words[3];
    int n = 0;
    bool as_json = false;
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) as_json = true;
        else if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(usage, stdout);
            return 0;
        } else if (argv[i][0] == '-' || !argv[i][0] || n == 3) n = 4;
        else if (n < 3) words[n++] = argv[i];
    }
    if (n != 3) {
        fputs(usage, stderr);
        return EXIT_USAGE;
    }
    struct model *model = NULL;
    struct adapter *adapter = NULL;
    struct merge_report report;
    const struct merge_options options = {0};
    struct error e = {0};
    int err = model_open(&model, words[0], &e);
    if (!err) err = adapter_open(&adapter, model, words[1], &e);
    if (!err) err = model_merge(&report, model, adapter, words[2], &options, &e);
    if (!err) print_report(&report, words[2], words[1], as_json);
    adapter_close(adapter);
    model_free(model);
    if (err) return offline_fail(&e);
    return offline_end(0);
}
