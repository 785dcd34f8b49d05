/* model/quant.h: a model of f32, f16 or bf16 weights made into one of 8- or 4-bit groups (docs/quantize.md
 * has the recipe and what it costs in perplexity).
 *
 * Whole tensors are quantised as the file has them, before any is cut for a rank, so the result is the
 * same at every tp. A few MiB at a time go through memory. Any thread; not while a rank loads. */
#ifndef TPD_MODEL_QUANT_H
#define TPD_MODEL_QUANT_H

#include "model/model.h"

enum quant { QUANT_NONE, QUANT_Q8, QUANT_Q4 };

const char *quant_name(enum quant quant);
/* "none", "q8", "q4"; -1: no such one. */
int quant_from_name(const char *name);

struct quant_options {
    int threads;           /* at least 1 */
    const char *cache_dir; /* model_quantise: where results are kept, made when it is not there; NULL:
                              in memory */
    bool (*stopped)(void *user);                   /* asked every few MiB; NULL: never */
    void (*progress)(void *user, double part);     /* 0 … 1, about as often; NULL: nobody looks */
    void *user;
};

struct quant_report {
    size_t tensors, quantised;
    size_t bytes;         /* of the result's tensors */
    size_t wide;          /* matrices whose rows are not whole groups: they stay as they are */
    char first_wide[96];  /* one of them */
    bool cached;          /* model_quantise: a result of an earlier call was mapped */
    bool in_memory;       /* model_quantise: it could not be kept on disk (said in the log) */
};

/* Gives the model quantised weights in place of its own, from the cache when it has them. ERR_CONFIG for a
 * model that is quantised already; ERR_CANCELLED when stopped. After a failure the model is only good for
 * model_free. */
int model_quantise(struct model *model, enum quant quant, const struct quant_options *options,
                   struct quant_report *report, struct error *e);
/* The types that it would have, without data: for what only counts (model_outline's models too). */
int model_quantise_shapes(struct model *model, enum quant quant, struct error *e);
/* Writes the quantised model to out, which must not exist: a GGUF file for a GGUF model, else a directory
 * with the weights in model.gguf. Either is served by its path. */
int model_quantise_to(const struct model *model, enum quant quant, const char *out,
                      const struct quant_options *options, struct quant_report *report,
                      struct error *e);

#endif
