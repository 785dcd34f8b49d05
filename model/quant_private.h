/* model/quant_private.h: what quant.c, quant_run.c and quant_cache.c share. */
#ifndef TPD_MODEL_QUANT_PRIVATE_H
#define TPD_MODEL_QUANT_PRIVATE_H

#include "formats/gguf_write.h"
#include "model/quant.h"
#include "model/tensors.h"

/* Changes when the same source would give other bytes than before: older caches are then not believed. */
enum { QUANT_RECIPE = 1 };

/* A tensor of the result. */
struct quant_piece {
    const struct store_tensor *from;
    enum dtype type; /* from->type: copied */
};

/* Every tensor that the model uses, once, in the order of its files; to be freed. Refuses what is quantised
 * already. */
int quant_list(const struct model *model, enum quant quant, struct quant_piece **out, size_t *n,
               struct quant_report *report, struct error *e);

/* quant_run.c: quantises (or copies) a piece, a few MiB at a time; sink gets the bytes in order and says
 * whether to go on. */
struct quant_run {
    const struct model *model;
    const struct quant_options *options;
    size_t total, done; /* source bytes, for progress */
    bool (*sink)(void *user, const void *data, size_t bytes);
    void *user;
};
int quant_piece_make(struct quant_run *run, const struct quant_piece *piece, struct error *e);

/* Writes all pieces into a GGUF file at path. */
int quant_write(const struct model *model, enum quant quant, const struct quant_piece *pieces, size_t n,
                const char *path, const struct quant_options *options, struct error *e);

/* quant_sum.c: a sum over all bytes of a file. One that is cut short meanwhile has another. */
int quant_file_sum(uint64_t *out, const char *path, int threads, struct error *e);

/* quant_cache.c: opens the kept result for this model, or makes and keeps it. *out stays NULL, with 0 and a
 * line in the log, where the disk does not let it. */
int quant_cache_open(struct store **out, const struct model *model, enum quant quant,
                     const struct quant_piece *pieces, size_t n, const struct quant_options *options,
                     struct quant_report *report, struct error *e);

#endif
