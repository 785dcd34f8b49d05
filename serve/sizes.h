/* serve/sizes.h: how large everything is, from what was asked for and the memory there is. Private
 * to serve/; a pure function. */
#ifndef TPD_SERVE_SIZES_H
#define TPD_SERVE_SIZES_H

#include "serve/runner.h"

enum { KV_BLOCK_SIZE = 32 };

struct engine_sizes {
    int32_t ctx, slots, max_queue;
    struct shard_options shard;
};

/* Everything but the number of KV blocks, and ctx as asked for. ERR_CONFIG for a ctx that the
 * model's positions do not reach. */
int engine_sizes_ask(struct engine_sizes *out, const struct engine_options *options,
                     const struct runner *runner, struct error *e);
/* The part of a rank's memory that the model may take; 0: no such part was asked for. */
double engine_memory_fraction(const struct engine_options *options);
/* Fits the KV cache into memory_left bytes a rank (with a fraction: all of it, they are the cache's own):
 * kv_memory, or else slots * ctx positions, without a fraction in at most half of the memory; at
 * least one whole context; a ctx that was not asked for shrinks to what
 * fits. ERR_MEMORY with needed and free. */
int engine_sizes_fit(struct engine_sizes *sizes, const struct engine_options *options,
                     const struct runner *runner, size_t block_bytes, size_t memory_left,
                     struct error *e);

#endif
