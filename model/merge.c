#include "model/merge.h"

#include "base/file.h"
#include "formats/safetensors_write.h"
#include "model/adapter_private.h"
#include "model/hf_dir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE_FLOATS = 1 << 20 };
static const size_t file_bytes_default = 5000000000;

/* A tensor of the result. */
struct piece {
    const struct store_tensor *from;
    const struct adapter_pair *pair; /* NULL: as it is */
    int32_t permuted_head_dim;       /* rows are in GGUF's order */
    enum dtype type;
    size_t bytes;
    size_t file; /* which one it goes to */
};

struct merge {
    const struct model *base;
    const struct adapter *adapter;
    const struct merge_options *options;
    struct merge_report *report;
    struct piece *pieces;
    size_t n, n_files;
    char *dir; /* the temporary one */
};

/* --- what is written ------------------------------------------------------------------------------- */

static int64_t rows_of(const struct store_tensor *t) { return t->n_dims == 2 ? t->dims[0] : 1; }
static int64_t cols_of(const struct store_tensor *t) { return t->dims[t->n_dims - 1]; }

static void add(struct merge *m, const struct store_tensor *t, const struct adapter_pair *pair,
                bool permuted) {
    if (!t) return;
    bool quantised = dtype_is_quantised((enum dtype)t->type);
    enum dtype type = quantised ? DTYPE_BF16 : (enum dtype)t->type;
    m->report->dequantised |= quantised;
    m->report->merged += pair != NULL;
    m->pieces[m->n++] = (struct piece){
        .from = t,
        .pair = pair,
        .permuted_head_dim = permuted ? m->base->config.head_dim : 0,
        .type = type,
        .bytes = (size_t)rows_of(t) * dtype_row_bytes(type, cols_of(t)),
    };
}

/* All tensors in the model's order. */
static int list_tensors(struct merge *m, struct error *e) {
    const struct model *base = m->base;
    size_t layers = (size_t)base->config.n_layers;
    m->pieces = calloc(layers * (2 * MAT_COUNT + NORM_COUNT) + 3, sizeof *m->pieces);
    if (!m->pieces) return error_set(e, ERR_MEMORY, "no memory for a list of tensors");
    add(m, base->embed, NULL, false);
    for (size_t i = 0; i < layers; i++) {
        const struct layer_tensors *l = &base->layers[i];
        for (int k = 0; k < MAT_COUNT; k++) {
            const struct adapter_pair *pair = &m->adapter->pairs[i * MAT_COUNT + (size_t)k];
            bool permuted = matrix_is_permuted(&base->config, (enum matrix)k);
            add(m, l->matrix[k], pair->a ? pair : NULL, permuted);
            add(m, l->bias[k], NULL, permuted);
        }
        for (int k = 0; k < NORM_COUNT; k++) add(m, l->norm[k], NULL, false);
    }
    add(m, base->norm, NULL, false);
    if (base->head != base->embed) add(m, base->head, NULL, false);
    m->report->tensors = m->n;
    return 0;
}

/* Fills file after file; a tensor that is larger than a file has one of its own. */
static void deal_files(struct merge *m) {
    size_t most = m->options->file_bytes ? m->options->file_bytes : file_bytes_default, used = 0;
    for (size_t i = 0; i < m->n; i++) {
        if (i > 0 && m->pieces[i].bytes > most - (used < most ? used : most)) {
            m->n_files++;
            used = 0;
        }
        m->pieces[i].file = m->n_files;
        used += m->pieces[i].bytes;
        m->report->bytes += m->pieces[i].bytes;
    }
    m->report->files = ++m->n_files;
}

static void file_name(const struct merge *m, size_t file, char out[64]) {
    if (m->n_files == 1) strcpy(out, "model.safetensors");
    else snprintf(out, 64, "model-%05zu-of-%05zu.safetensors", file + 1, m->n_files);
}

/* --- the sum ----------------------------------------------------------------------------------------- */

/* values[rows, cols] += scale B[row0 …, :] A. The product is summed apart, then added once. */
static void add_product(float *values, int64_t row0, int64_t rows, int64_t cols, const float *a,
                        const float *b, int32_t r, float scale, float *sum) {
    for (int64_t row = 0; row < rows; row++) {
        const float *factors = b + (row0 + row) * r;
        float *to = values + row * cols;
        memset(sum, 0, (size_t)cols * sizeof *sum);
        for (int32_t k = 0; k < r; k++)
            for (int64_t i = 0; i < cols; i++) sum[i] += factors[k] * a[k * cols + i];
        for (int64_t i = 0; i < cols; i++) to[i] += scale * sum[i];
    }
}

/* Memory for one tensor on its way. */
struct work {
    float *values, *a, *b, *sum;
};

static void work_free(struct work *w) {
    free(w->values);
    free(w->a);
    free(w->b);
    free(w->sum);
}

static int work_new(struct work *w, const struct piece *p, int64_t rows_at_once, int32_t r,
                    struct error *e) {
    size_t rows = (size_t)rows_of(p->from), cols = (size_t)cols_of(p->from);
    *w = (struct work){.values = malloc((size_t)rows_at_once * cols * sizeof(float))};
    bool good = w->values != NULL;
    if (p->pair) {
        w->a = malloc((size_t)r * cols * sizeof(float));
        w->b = malloc(rows * (size_t)r * sizeof(float));
        w->sum = malloc(cols * sizeof(float));
        good = good && w->a && w->b && w->sum;
    }
    if (!good) return error_set(e, ERR_MEMORY, "no memory for tensor %s", p->from->name);
    if (p->pair) {
        tensor_read(p->pair->a, 0, 0, r, 0, (int32_t)cols, w->a);
        tensor_read(p->pair->b, 0, 0, (int32_t)rows, 0, r, w->b);
        return store_tensor_check(p->pair->b, e); /* one file has both */
    }
    return 0;
}

/* A vector is read as rows of one column, which is how its rows are put in order, too. */
static void read_rows(const struct piece *p, int64_t from, int64_t to, float *out) {
    bool vector = p->from->n_dims == 1;
    if (vector)
        tensor_read(p->from, p->permuted_head_dim, 0, (int32_t)cols_of(p->from), 0, 1, out);
    else
        tensor_read(p->from, p->permuted_head_dim, (int32_t)from, (int32_t)to, 0,
                    (int32_t)cols_of(p->from), out);
}

static int write_piece(struct merge *m, struct safetensors_writer *w, const struct piece *p,
                       struct error *e) {
    int64_t rows = rows_of(p->from), cols = cols_of(p->from);
    int64_t at_once = cols < PIECE_FLOATS ? PIECE_FLOATS / cols : 1;
    if (at_once > rows) at_once = rows;
    struct work work;
    int err = work_new(&work, p, at_once, m->adapter->r, e);
    for (int64_t row = 0; row < rows && !err; row += at_once) {
        int64_t n = rows - row < at_once ? rows - row : at_once;
        if (m->options->stopped && m->options->stopped(m->options->user)) {
            err = error_set(e, ERR_CANCELLED, "the merge was cancelled");
            break;
        }
        read_rows(p, row, row + n, work.values);
        err = store_tensor_check(p->from, e);
        if (p->pair)
            add_product(work.values, row, n, cols, work.a, work.b, m->adapter->r,
                        m->adapter->scale, work.sum);
        safetensors_writer_add(w, work.values, (size_t)(n * cols));
        if (w->file.errnum && !err) err = -(int)ERR_IO; /* the commit would say it later */
    }
    store_drop(m->base->store, p->from, 0, p->from->bytes);
    work_free(&work);
    return err;
}

/* --- files ------------------------------------------------------------------------------------------- */

static int write_file(struct merge *m, size_t file, const struct piece *first, size_t n,
                      struct error *e) {
    char name[64];
    file_name(m, file, name);
    char *path = path_join(m->dir, name);
    struct safetensors_entry *entries = calloc(n, sizeof *entries);
    struct safetensors_writer w;
    int err = path && entries ? 0 : error_set(e, ERR_MEMORY, "no memory to write %s", name);
    for (size_t i = 0; i < n && !err; i++) {
        const struct store_tensor *t = first[i].from;
        entries[i] = (struct safetensors_entry){
            t->name, first[i].type, t->n_dims, {t->dims[0], t->n_dims == 2 ? t->dims[1] : 0}};
    }
    if (!err) err = safetensors_writer_open(&w, path, entries, n, e);
    if (!err) {
        for (size_t i = 0; i < n && !err; i++) err = write_piece(m, &w, &first[i], e);
        if (err && w.file.errnum) err = error_errno(e, w.file.errnum, path, "write");
        if (err) safetensors_writer_abandon(&w);
        else err = safetensors_writer_commit(&w, e);
    }
    free(entries);
    free(path);
    return err;
}

static int write_files(struct merge *m, struct error *e) {
    int err = 0;
    for (size_t i = 0, end; i < m->n && !err; i = end) {
        for (end = i + 1; end < m->n && m->pieces[end].file == m->pieces[i].file;) end++;
        err = write_file(m, m->pieces[i].file, &m->pieces[i], end - i, e);
    }
    return err;
}

static int write_index(struct merge *m, struct error *e) {
    json_t *map = json_object();
    char name[64];
    for (size_t i = 0; i < m->n; i++) {
        file_name(m, m->pieces[i].file, name);
        json_object_set_new(map, m->pieces[i].from->name, json_string(name));
    }
    json_t *index = json_pack("{s:{s:I}, s:o}", "metadata", "total_size",
                              (json_int_t)m->report->bytes, "weight_map", map);
    char *text = index ? json_dumps(index, JSON_INDENT(2)) : NULL;
    char *path = path_join(m->dir, "model.safetensors.index.json");
    struct file_writer w;
    int err = text && path ? file_writer_open(&w, path, e)
                           : error_set(e, ERR_MEMORY, "no memory to write the index");
    if (!err) {
        file_writer_add(&w, text, strlen(text));
        err = file_writer_commit(&w, e);
    }
    json_decref(index);
    free(text);
    free(path);
    return err;
}

static int write_all(struct merge *m, struct error *e) {
    struct hf_companions companions;
    enum dtype type = model_dtype(m->base);
    m->report->type = dtype_is_quantised(type) ? DTYPE_BF16 : type;
    int err = list_tensors(m, e);
    if (err) return err;
    deal_files(m);
    /* First what may be refused, then what takes long. */
    err = hf_companions_write(&companions, m->dir, m->base, m->report->type, e);
    if (!err) err = write_files(m, e);
    if (!err && m->n_files > 1) err = write_index(m, e);
    if (!err) err = dir_sync(m->dir, e);
    m->report->config_made = companions.config_made;
    m->report->tokenizer = companions.tokenizer;
    return err;
}

int model_merge(struct merge_report *report, const struct model *base, const struct adapter *adapter,
                const char *out, const struct merge_options *options, struct error *e) {
    struct merge m = {
        .base = base, .adapter = adapter, .options = options, .report = report};
    size_t size = strlen(out);
    *report = (struct merge_report){0};
    while (size > 1 && out[size - 1] == '/') size--;
    char *to = strndup(out, size);
    m.dir = malloc(size + sizeof ".part");
    int err = 0;
    if (!to || !m.dir) err = error_set(e, ERR_MEMORY, "no memory for a path");
    else if (path_exists(to)) {
        err = error_set(e, ERR_CONFLICT,
                        "%s is there already: choose another name, or remove it first", to);
        error_note(e, "path", to);
    }
    if (!err) {
        sprintf(m.dir, "%s.part", to);
        if (path_exists(m.dir)) err = dir_remove(m.dir, e); /* of a merge that was killed */
        if (!err) err = dir_make(m.dir, e);
        if (!err) err = write_all(&m, e);
        if (!err) err = dir_move(m.dir, to, e);
        if (err) dir_remove(m.dir, NULL);
    }
    free(m.pieces);
    free(m.dir);
    free(to);
    return err;
}

void merge_notes(const struct merge_report *report, const char *notes[MERGE_NOTES], int *n) {
    *n = 0;
    if (report->dequantised)
        notes[(*n)++] = "quantised tensors of the base were written as bf16";
    if (report->config_made) notes[(*n)++] = "config.json was made from the GGUF file's metadata";
    if (!report->tokenizer)
        notes[(*n)++] = "the base has no tokenizer.json to take along: copy the model's own into the "
                        "directory before it is loaded";
}
