#include "daemon/tensors.h"

#include "base/log.h"
#include "daemon/call.h"
#include "daemon/methods.h"
#include "daemon/server.h"
#include "model/export.h"
#include "ranks/ranks.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- names, and who may open them --------------------------------------------------------------- */

static void sweep(const char *prefix) {
    DIR *dir = opendir("/dev/shm");
    char name[NAME_MAX + 2];
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        if (strncmp(entry->d_name, prefix + 1, strlen(prefix) - 1) != 0) continue;
        snprintf(name, sizeof name, "/%s", entry->d_name);
        if (shm_unlink(name) == 0) log_info("removed %s, which a killed daemon had left", name);
    }
    if (dir) closedir(dir);
}

/* Connecting takes the right to write to the socket, and to pass every directory above it. */
static void look_at_socket(struct tensor_sharing *s, const char *path) {
    struct stat st, dir;
    char *at = realpath(path, NULL);
    bool group = false, other = false;
    s->uid = geteuid();
    s->gid = getegid();
    if (at && stat(at, &st) == 0) {
        s->gid = st.st_gid;
        group = st.st_mode & S_IWGRP;
        other = st.st_mode & S_IWOTH;
    }
    for (char *slash; at && (slash = strrchr(at, '/'));) {
        slash[slash == at] = '\0';
        bool known = stat(at, &dir) == 0;
        bool by_group = known && dir.st_gid == s->gid;
        other &= known && (dir.st_mode & S_IXOTH);
        group &= known && (dir.st_mode & (by_group ? S_IXGRP : S_IXOTH));
        if (slash == at) break;
    }
    free(at);
    s->mode = S_IRUSR | (group ? S_IRGRP : 0) | (other ? S_IROTH : 0);
}

int tensors_open(struct server *server, const char *state_dir, struct error *e) {
    struct tensor_sharing *s = &server->sharing;
    const struct daemon_config *config = server->config;
    struct stat st;
    if (stat(state_dir, &st) != 0) return error_errno(e, errno, state_dir, "look at the directory");
    snprintf(s->prefix, sizeof s->prefix, "/tpd-%llx-%llx-", (unsigned long long)st.st_dev,
             (unsigned long long)st.st_ino);
    look_at_socket(s, server->listener.path);
    /* Permissions cannot say what these lists say. */
    if (config->allow_uid.n || config->allow_gid.n) s->mode = S_IRUSR;
    sweep(s->prefix);
    return 0;
}

static bool has_group(const struct peer *peer, uint32_t gid) {
    for (int i = 0; i < peer->n_groups; i++)
        if (peer->groups[i] == gid) return true;
    return peer->gid == gid;
}

static bool may_open(const struct tensor_sharing *s, const struct peer *peer) {
    if (peer->uid == 0 || peer->uid == s->uid || (s->mode & S_IROTH)) return true;
    return (s->mode & S_IRGRP) && has_group(peer, s->gid);
}

/* --- answers ------------------------------------------------------------------------------------ */

static json_t *range_json(int32_t from, int32_t to) { return json_pack("[i, i]", from, to); }

static json_t *part_json(int rank, const struct model_tensor *t, const struct tensor_part *part) {
    json_t *json = json_pack("{s:i, s:o}", "rank", rank, "rows", range_json(part->row0, part->row1));
    if (t->tensor->n_dims == 2) json_object_set_new(json, "cols", range_json(part->col0, part->col1));
    return json;
}

static json_t *text_json(const char *text) { return json_text(text, strlen(text)); }

/* All but its shards. */
static json_t *tensor_json(const struct model_tensor *t) {
    json_t *shape = json_array();
    for (int i = 0; i < t->tensor->n_dims; i++)
        json_array_append_new(shape, json_integer(t->tensor->dims[i]));
    return json_pack("{s:o, s:o, s:o, s:s, s:s, s:i}", "name", text_json(t->file_name), "hf_name",
                     text_json(t->tensor->name), "shape", shape, "dtype", dtype_info(t->type)->name,
                     "file_dtype", t->tensor->type_name, "permuted_head_dim", t->permuted_head_dim);
}

static json_t *axes_json(const size_t axes[ARRAY_AXES]) {
    json_t *json = json_array();
    for (int i = 0; i < ARRAY_AXES; i++) json_array_append_new(json, json_integer((json_int_t)axes[i]));
    return json;
}

static json_t *layout_json(const struct weight_layout *l, size_t offset) {
    json_t *arrays = json_array();
    for (int i = 0; i < l->n_arrays; i++) {
        const struct weight_array *a = &l->arrays[i];
        json_t *array = json_pack("{s:s, s:s, s:I, s:o, s:o}", "name", a->name, "type", a->type,
                                  "offset", (json_int_t)(offset + a->offset), "shape",
                                  axes_json(a->shape), "stride", axes_json(a->stride));
        if (a->bits) {
            json_object_set_new(array, "bits", json_integer(a->bits));
            json_object_set_new(array, "shift", json_integer(a->shift));
        }
        json_array_append_new(arrays, array);
    }
    return json_pack("{s:i, s:i, s:b, s:o}", "lanes", l->lanes, "columns", l->columns, "by_bytes",
                     l->by_bytes, "arrays", arrays);
}

static json_t *handle_json(const struct mem_handle *h) {
    char hex[2 * MEM_IPC_BYTES + 1];
    switch (h->kind) {
    case MEM_HANDLE_SHM: return json_pack("{s:s, s:s}", "kind", "shm", "name", h->name);
    case MEM_HANDLE_CUDA:
        for (int i = 0; i < MEM_IPC_BYTES; i++) snprintf(hex + 2 * i, 3, "%02x", h->ipc[i]);
        return json_pack("{s:s, s:s, s:i}", "kind", "cuda", "ipc", hex, "device", h->device);
    }
    return NULL;
}

/* --- tensor.list -------------------------------------------------------------------------------- */

static json_t *list_json(const struct model *model, const struct shard_plan *plan,
                         const struct tensor_list *list) {
    json_t *tensors = json_array();
    for (size_t i = 0; i < list->n; i++) {
        const struct model_tensor *t = &list->tensors[i];
        json_t *tensor = tensor_json(t), *shards = json_array();
        struct tensor_part part;
        for (int r = 0; r < plan->n; r++)
            if (tensor_part_of(model, plan, t, r, &part))
                json_array_append_new(shards, part_json(r, t, &part));
        json_object_set_new(tensor, "shards", shards);
        json_array_append_new(tensors, tensor);
    }
    return json_pack("{s:o}", "tensors", tensors);
}

/* Whether the model is there and the call still wanted; plan: who holds what. */
static int begin(const struct call *call, struct shard_plan *plan, struct tensor_list *list,
                 struct error *e) {
    const struct server *server = call->server;
    if (call->cancelled || !server->model)
        return error_set(e, ERR_CANCELLED, "the request was cancelled");
    int err = model_plan(server->model, (int)server->config->tp, plan, e);
    return err ? err : tensor_list_make(list, server->model, e);
}

void handle_tensor_list(struct call *call) {
    struct shard_plan plan;
    struct tensor_list list = {0};
    struct error e;
    int err = begin(call, &plan, &list, &e);
    if (err) call_fail(call, &e);
    else call_result(call, list_json(call->server->model, &plan, &list));
    tensor_list_free(&list);
}

/* --- tensor.export ------------------------------------------------------------------------------ */

/* On its way to the ranks and back. */
struct export {
    struct letter letter;
    struct server *server;
    struct call *call;
    struct shard_plan plan;
    struct tensor_list list; /* what tensor points into */
    const struct model_tensor *tensor;
    char names[PLAN_MAX_RANKS][MEM_NAME_MAX];
    struct tensor_export out[PLAN_MAX_RANKS];
    struct error error; /* kind ERR_NONE: done */
};

static int export_unit(struct rank *rank, void *arg, struct error *e) {
    struct export *x = arg;
    struct tensor_part part;
    const struct tensor_sharing *s = &x->server->sharing;
    const struct mem_share share = {x->names[rank->index], s->mode, s->gid};
    if (!tensor_part_of(x->server->model, &x->plan, x->tensor, rank->index, &part)) return 0;
    return shard_export(rank->state, x->server->model, x->tensor, &share, &x->out[rank->index], e);
}

static int on_ranks(void *arg, struct ranks *ranks, struct error *e) {
    return ranks_run(ranks, export_unit, arg, e);
}

static json_t *export_json(const struct export *x) {
    json_t *tensor = tensor_json(x->tensor), *shards = json_array();
    struct tensor_part part;
    for (int r = 0; r < x->plan.n; r++) {
        if (!tensor_part_of(x->server->model, &x->plan, x->tensor, r, &part)) continue;
        const struct mem_handle *h = &x->out[r].handle;
        json_t *shard = part_json(r, x->tensor, &part);
        json_object_set_new(shard, "handle", handle_json(h));
        json_object_set_new(shard, "offset", json_integer((json_int_t)h->offset));
        json_object_set_new(shard, "bytes", json_integer((json_int_t)h->bytes));
        json_object_set_new(shard, "layout", layout_json(&x->out[r].layout, h->offset));
        json_array_append_new(shards, shard);
    }
    json_object_set_new(tensor, "shards", shards);
    return tensor;
}

static void finish(struct export *x) {
    if (x->error.kind == ERR_NONE) call_result(x->call, export_json(x));
    else call_fail(x->call, &x->error);
    tensor_list_free(&x->list);
    free(x);
}

static void deliver(struct letter *letter) { finish((struct export *)letter); }

static void on_done(void *arg, const struct error *error) {
    struct export *x = arg;
    if (error) x->error = *error;
    x->letter.deliver = deliver;
    mailbox_post(&x->server->mailbox, &x->letter);
}

static int choose(struct export *x, struct error *e) {
    const char *name = json_string_value(json_object_get(x->call->params, "name"));
    struct tensor_sharing *s = &x->server->sharing;
    int err = begin(x->call, &x->plan, &x->list, e);
    if (err) return err;
    x->tensor = tensor_list_find(&x->list, name);
    if (!x->tensor)
        return error_set(e, ERR_NOT_FOUND, "no tensor %.160s is loaded: tensor.list tells the names",
                         name);
    if (!may_open(s, &x->call->conn->peer))
        return error_set(e, ERR_NOT_PERMITTED,
                         "you may connect, but only the daemon's user may map its memory while "
                         "allow_uid or allow_gid say who connects");
    for (int r = 0; r < x->plan.n; r++)
        snprintf(x->names[r], sizeof x->names[r], "%s%llu-%d", s->prefix,
                 (unsigned long long)s->made, r);
    s->made++;
    return 0;
}

void handle_tensor_export(struct call *call) {
    struct export *x = calloc(1, sizeof *x);
    struct error e;
    if (!x) {
        error_set(&e, ERR_MEMORY, "no memory for the request");
        call_fail(call, &e);
        return;
    }
    x->server = call->server;
    x->call = call;
    int err = choose(x, &x->error);
    if (!err && !call->server->engine)
        err = error_set(&x->error, ERR_SHUTTING_DOWN, "tpd is shutting down");
    if (!err) err = engine_visit(call->server->engine, on_ranks, on_done, x, &x->error);
    if (err) finish(x);
}
