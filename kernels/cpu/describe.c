/* What layout.h says, as data: for other processes that map weights. */
#include "base/dequant.h"
#include "kernels/cpu/layout.h"

/* Where the next field of a panel's blocks begins, and how large a block of the panel is. */
struct cursor {
    size_t at, block_bytes, panel_bytes, panels, blocks;
};

/* Appends an array of `words` fields of `bytes` each a block and lane. packed: a lane's fields side by
 * side; else all lanes of a field. */
static struct weight_array *add(struct weight_layout *out, struct cursor *c, const char *name,
                                const char *type, size_t bytes, size_t words, bool packed) {
    struct weight_array *a = &out->arrays[out->n_arrays++];
    *a = (struct weight_array){
        .name = name,
        .type = type,
        .offset = c->at,
        .shape = {c->panels, c->blocks, LANES, words},
        .stride = {c->panel_bytes, c->block_bytes, packed ? words * bytes : bytes,
                   packed ? bytes : LANES * bytes},
    };
    c->at += words * bytes * LANES;
    return a;
}

static void describe_plain(const struct weight *w, struct cursor *c, struct weight_layout *out) {
    size_t bytes = w->type == DTYPE_F32 ? 4 : 2, words = w->type == DTYPE_BF16 ? 2 : 1;
    const char *type = w->type == DTYPE_F32 ? "f32" : w->type == DTYPE_F16 ? "f16" : "bf16";
    out->columns = (int32_t)words;
    c->blocks = ((size_t)w->cols + words - 1) / words;
    c->block_bytes = LANES * words * bytes;
    add(out, c, "values", type, bytes, words, true);
}

static void describe_quantised(const struct weight *w, struct cursor *c, struct weight_layout *out) {
    const struct layout *l = &layouts[w->type];
    const struct dtype_info *info = dtype_info(w->type);
    out->columns = info->block;
    out->by_bytes = true;
    c->blocks = (size_t)(w->cols / info->block);
    c->block_bytes = LANES * (size_t)info->block_bytes;
    add(out, c, "scale", "f16", 2, 1, false);
    if (l->min >= 0) add(out, c, "minimum", "f16", 2, 1, false);
    if (l->scale_words) add(out, c, "sub_scales", "u32", 4, (size_t)l->scale_words, false);
    for (int i = 0; i < 2 && l->planes[i].bits; i++) {
        size_t words = (size_t)(info->block * l->planes[i].bits / 32);
        struct weight_array *a = add(out, c, "codes", "u32", 4, words, false);
        a->bits = l->planes[i].bits;
        a->shift = l->planes[i].shift;
    }
}

void cpu_weight_layout(const struct weight *w, struct weight_layout *out) {
    struct cursor c = {.panel_bytes = layout_panel_bytes(w->type, w->cols),
                       .panels = (size_t)(round_up(w->rows, LANES) / LANES)};
    *out = (struct weight_layout){.lanes = LANES};
    if (dtype_is_quantised(w->type)) describe_quantised(w, &c, out);
    else describe_plain(w, &c, out);
}
