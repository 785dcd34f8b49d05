#include "model/quant.h"

#include "base/file.h"
#include "base/log.h"
#include "model/hf_dir.h"
#include "model/quant_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {[QUANT_NONE] = "none", [QUANT_Q8] = "q8", [QUANT_Q4] = "q4"};

const char *quant_name(enum quant quant) { return names[quant]; }

int quant_from_name(const char *name) {
    for (int i = 0; i <= QUANT_Q4; i++)
        if (strcmp(names[i], name) == 0) return i;
    return -1;
}

/* --- the recipe ------------------------------------------------------------------------------------ */

/* What a tensor is to the model. */
enum role { ROLE_VECTOR, ROLE_VOCAB, ROLE_MATRIX };

/* Groups of 32 go along a row. What is small or felt most stays wider: vectors as they are, embedding and
 * head in 8 bits, and v, through which all of a token's content passes, where few heads share it. */
static enum dtype type_for(const struct model *m, enum role role, int matrix, enum quant quant) {
    if (role == ROLE_VECTOR) return DTYPE_F32; /* not asked for */
    if (quant == QUANT_Q8 || role == ROLE_VOCAB) return DTYPE_Q8_0;
    if (matrix == MAT_V && m->config.n_kv_heads < m->config.n_heads) return DTYPE_Q8_0;
    return DTYPE_Q4_1;
}

/* A pointer of the model to one of its tensors. */
struct slot {
    const struct store_tensor **at;
    enum role role;
    int matrix;
};

/* All of them; *out is to be freed. A tied head is the embedding once more. */
static int slots_of(struct model *m, struct slot **out, size_t *n, struct error *e) {
    size_t most = 4 + (size_t)m->config.n_layers * (2 * MAT_COUNT + NORM_COUNT);
    struct slot *slots = calloc(most, sizeof *slots);
    *n = 0;
    if (!slots) return error_set(e, ERR_MEMORY, "no memory for the list of tensors");
    slots[(*n)++] = (struct slot){&m->embed, ROLE_VOCAB, 0};
    if (m->rope_factors) slots[(*n)++] = (struct slot){&m->rope_factors, ROLE_VECTOR, 0};
    for (int32_t i = 0; i < m->config.n_layers; i++) {
        struct layer_tensors *layer = &m->layers[i];
        for (int k = 0; k < MAT_COUNT; k++) {
            slots[(*n)++] = (struct slot){&layer->matrix[k], ROLE_MATRIX, k};
            if (layer->bias[k]) slots[(*n)++] = (struct slot){&layer->bias[k], ROLE_VECTOR, 0};
        }
        for (int k = 0; k < NORM_COUNT; k++)
            if (layer->norm[k]) slots[(*n)++] = (struct slot){&layer->norm[k], ROLE_VECTOR, 0};
    }
    slots[(*n)++] = (struct slot){&m->norm, ROLE_VECTOR, 0};
    slots[(*n)++] = (struct slot){&m->head, ROLE_VOCAB, 0};
    *out = slots;
    return 0;
}

static int refuse_quantised(const struct model *m, const struct slot *slots, size_t n, struct error *e) {
    for (size_t i = 0; i < n; i++) {
        const struct store_tensor *t = *slots[i].at;
        if (!dtype_is_quantised((enum dtype)t->type)) continue;
        return error_set(e, ERR_CONFIG,
                         "%s is quantised already (%s is %s): quant is for f32, f16 and bf16 models; "
                         "serve this one with quant none, or give the model that it was made of",
                         m->path, t->name, t->type_name);
    }
    return 0;
}

/* The type that a slot's tensor gets: its own where rows are not whole groups. */
static enum dtype settle(const struct model *m, const struct slot *slot, enum quant quant,
                         struct quant_report *report) {
    const struct store_tensor *t = *slot->at;
    if (slot->role == ROLE_VECTOR) return (enum dtype)t->type;
    enum dtype type = type_for(m, slot->role, slot->matrix, quant);
    if (t->dims[1] % dtype_info(type)->block == 0) return type;
    if (report->wide++ == 0) snprintf(report->first_wide, sizeof report->first_wide, "%s", t->name);
    return (enum dtype)t->type;
}

static int by_place(const void *a, const void *b) {
    const struct store_tensor *x = ((const struct quant_piece *)a)->from;
    const struct store_tensor *y = ((const struct quant_piece *)b)->from;
    return (x->data > y->data) - (x->data < y->data);
}

int quant_list(const struct model *model, enum quant quant, struct quant_piece **out, size_t *n,
               struct quant_report *report, struct error *e) {
    struct slot *slots;
    size_t n_slots;
    *out = NULL;
    *n = 0;
    int err = slots_of((struct model *)model, &slots, &n_slots, e);
    if (err) return err;
    err = refuse_quantised(model, slots, n_slots, e);
    struct quant_piece *pieces = err ? NULL : calloc(n_slots, sizeof *pieces);
    if (!err && !pieces) err = error_set(e, ERR_MEMORY, "no memory for the list of tensors");
    for (size_t i = 0; i < n_slots && !err; i++) {
        const struct store_tensor *t = *slots[i].at;
        if (slots[i].at == &model->head && t == model->embed) continue;
        enum dtype type = settle(model, &slots[i], quant, report);
        pieces[(*n)++] = (struct quant_piece){t, type};
        report->tensors++;
        report->quantised += (int)type != t->type;
        report->bytes += (size_t)(t->n_dims == 2 ? t->dims[0] : 1) *
                         dtype_row_bytes(type, t->dims[t->n_dims - 1]);
    }
    free(slots);
    /* Read as the files lie. (Without data there is no order to keep.) */
    if (!err && model->store) qsort(pieces, *n, sizeof *pieces, by_place);
    *out = pieces;
    return err;
}

/* --- a file ---------------------------------------------------------------------------------------- */

static bool is_key(struct gguf_string key, const char *name) {
    return key.size == strlen(name) && memcmp(key.data, name, key.size) == 0;
}

/* What a GGUF source says of itself comes along, but for the file's type. */
static void make_keys(struct gguf_keys *keys, const struct model *m, enum quant quant) {
    enum { MOSTLY_Q4_1 = 3, MOSTLY_Q8_0 = 7, LAYOUT = 2 }; /* numbers of the GGUF specification */
    const struct gguf *gguf = store_gguf(m->store);
    char recipe[32];
    for (uint64_t i = 0; gguf && i < gguf_key_count(gguf); i++) {
        enum gguf_type type;
        struct gguf_string key = gguf_key(gguf, i, &type);
        if (!is_key(key, "general.file_type") && !is_key(key, "general.quantization_version") &&
            !is_key(key, "tpd.quant"))
            gguf_keys_copy(keys, gguf, i);
    }
    if (!gguf) gguf_keys_text(keys, "general.architecture", arch_name(m->config.arch));
    gguf_keys_u32(keys, "general.file_type", quant == QUANT_Q4 ? MOSTLY_Q4_1 : MOSTLY_Q8_0);
    gguf_keys_u32(keys, "general.quantization_version", LAYOUT);
    snprintf(recipe, sizeof recipe, "%s, recipe %d", quant_name(quant), QUANT_RECIPE);
    gguf_keys_text(keys, "tpd.quant", recipe);
}

/* The tensor's name in the file: that of a GGUF source, else Hugging Face's, which also says that rows are in
 * Hugging Face's order. */
static struct gguf_string name_of(const struct model *m, const struct store_tensor *t) {
    const struct gguf *gguf = store_gguf(m->store);
    if (gguf) return gguf_tensor_at(gguf, (size_t)(t - store_at(m->store, 0)))->name;
    return (struct gguf_string){t->name, strlen(t->name)};
}

static bool to_file(void *user, const void *data, size_t bytes) {
    return gguf_writer_add(user, data, bytes);
}

static size_t source_bytes(const struct quant_piece *pieces, size_t n) {
    size_t total = 0;
    for (size_t i = 0; i < n; i++) total += pieces[i].from->bytes;
    return total;
}

int quant_write(const struct model *model, enum quant quant, const struct quant_piece *pieces, size_t n,
                const char *path, const struct quant_options *options, struct error *e) {
    enum { ALIGNMENT = 32 };
    const struct gguf *gguf = store_gguf(model->store);
    struct gguf_writer writer;
    struct gguf_keys keys = {0};
    struct gguf_entry *entries = calloc(n, sizeof *entries);
    if (!entries) return error_set(e, ERR_MEMORY, "no memory for the list of tensors");
    for (size_t i = 0; i < n; i++) {
        const struct store_tensor *t = pieces[i].from;
        entries[i] = (struct gguf_entry){.name = name_of(model, t),
                                         .type = pieces[i].type,
                                         .n_dims = t->n_dims,
                                         .dims = {t->dims[0], t->n_dims == 2 ? t->dims[1] : 0}};
    }
    make_keys(&keys, model, quant);
    int err = gguf_writer_open(&writer, path, &keys, entries, n,
                               gguf ? gguf_alignment(gguf) : ALIGNMENT, e);
    gguf_keys_free(&keys);
    free(entries);
    if (err) return err;
    struct quant_run run = {.model = model,
                            .options = options,
                            .total = source_bytes(pieces, n),
                            .sink = to_file,
                            .user = &writer};
    for (size_t i = 0; i < n && !err; i++) err = quant_piece_make(&run, &pieces[i], e);
    /* What went wrong in writing is best said by the commit, which then fails. */
    if (!err || writer.file.errnum) return gguf_writer_commit(&writer, e);
    gguf_writer_abandon(&writer);
    return err;
}

/* --- in memory ------------------------------------------------------------------------------------- */

struct filling {
    struct quant_run run;
    const struct quant_piece *next;
    uint8_t *at;
    int err;
    struct error *e;
};

static bool to_memory(void *user, const void *data, size_t bytes) {
    struct filling *f = user;
    memcpy(f->at, data, bytes);
    f->at += bytes;
    return true;
}

static void fill(void *user, const struct store_tensor *t, uint8_t *data) {
    struct filling *f = user;
    (void)t;
    f->at = data;
    if (!f->err) f->err = quant_piece_make(&f->run, f->next++, f->e);
}

static int make_in_memory(struct store **out, const struct model *m, const struct quant_piece *pieces,
                          size_t n, const struct quant_options *options, struct error *e) {
    struct store_tensor *entries = calloc(n, sizeof *entries);
    if (!entries) return error_set(e, ERR_MEMORY, "no memory for the list of tensors");
    for (size_t i = 0; i < n; i++) {
        entries[i] = *pieces[i].from;
        entries[i].type = (int)pieces[i].type;
    }
    struct filling f = {.run = {.model = m,
                                .options = options,
                                .total = source_bytes(pieces, n),
                                .sink = to_memory,
                                .user = &f},
                        .next = pieces,
                        .e = e};
    int err = store_make(out, m->path, entries, n, fill, &f, e);
    free(entries);
    if (err || !f.err) return err;
    store_close(*out);
    *out = NULL;
    return f.err;
}

/* --- a model --------------------------------------------------------------------------------------- */

static int take_store(struct model *m, struct store *store, struct error *e) {
    store_close(m->store);
    free(m->layers);
    m->layers = NULL;
    m->store = store;
    return model_find_tensors(m, e);
}

int model_quantise(struct model *model, enum quant quant, const struct quant_options *options,
                   struct quant_report *report, struct error *e) {
    struct quant_piece *pieces;
    struct store *store = NULL;
    size_t n;
    *report = (struct quant_report){0};
    if (quant == QUANT_NONE) return 0;
    int err = quant_list(model, quant, &pieces, &n, report, e);
    if (!err && options->cache_dir)
        err = quant_cache_open(&store, model, quant, pieces, n, options, report, e);
    if (!err && !store) {
        report->in_memory = true;
        err = make_in_memory(&store, model, pieces, n, options, e);
    }
    free(pieces);
    return err ? err : take_store(model, store, e);
}

int model_quantise_shapes(struct model *model, enum quant quant, struct error *e) {
    struct quant_report report = {0};
    struct slot *slots;
    size_t n;
    if (quant == QUANT_NONE) return 0;
    int err = slots_of(model, &slots, &n, e);
    if (!err) err = refuse_quantised(model, slots, n, e);
    if (!err && !(model->shapes = calloc(n, sizeof *model->shapes)))
        err = error_set(e, ERR_MEMORY, "no memory for the list of tensors");
    bool tied = model->head == model->embed;
    for (size_t i = 0; i < n && !err; i++) {
        struct store_tensor *t = &model->shapes[i];
        *t = **slots[i].at;
        t->type = (int)settle(model, &slots[i], quant, &report);
        t->type_name = dtype_info((enum dtype)t->type)->name;
        t->bytes = (size_t)(t->n_dims == 2 ? t->dims[0] : 1) *
                   dtype_row_bytes((enum dtype)t->type, t->dims[t->n_dims - 1]);
        *slots[i].at = t;
    }
    if (!err && tied) model->head = model->embed;
    free(slots);
    return err;
}

static int write_directory(const struct model *m, enum quant quant, const struct quant_piece *pieces,
                           size_t n, const char *dir, const struct quant_options *options,
                           struct error *e) {
    struct hf_companions companions;
    char *file = path_join(dir, "model.gguf");
    int err = file ? 0 : error_set(e, ERR_MEMORY, "no memory for a path");
    if (!err) err = hf_companions_write(&companions, dir, m, model_dtype(m), e);
    if (!err) err = quant_write(m, quant, pieces, n, file, options, e);
    if (!err) err = dir_sync(dir, e);
    free(file);
    return err;
}

int model_quantise_to(const struct model *model, enum quant quant, const char *out,
                      const struct quant_options *options, struct quant_report *report,
                      struct error *e) {
    struct quant_piece *pieces = NULL;
    char *part = NULL;
    size_t n;
    *report = (struct quant_report){0};
    if (path_exists(out))
        return error_set(e, ERR_CONFLICT, "%s is there already: choose another name, or remove it first",
                         out);
    int err = quant_list(model, quant, &pieces, &n, report, e);
    if (!err && store_gguf(model->store))
        err = quant_write(model, quant, pieces, n, out, options, e);
    else if (!err && asprintf(&part, "%s.part", out) < 0) {
        part = NULL;
        err = error_set(e, ERR_MEMORY, "no memory for a path");
    } else if (!err) {
        if (path_exists(part)) err = dir_remove(part, e); /* of a run that was killed */
        if (!err) err = dir_make(part, e);
        if (!err) err = write_directory(model, quant, pieces, n, part, options, e);
        if (!err) err = dir_move(part, out, e);
        if (err) dir_remove(part, NULL);
    }
    free(part);
    free(pieces);
    return err;
}
