/* serve/draft.h: the draft model: guesses for many sequences at once, one token of each a step.
 *
 * It runs on the same ranks as the model, between that one's steps. Its keys and values have the same blocks
 * (kv_blocks.h, the second cache): block b of a sequence holds the same positions of both, so whatever shares,
 * keeps or takes blocks does it for both, and what the draft model lacks of a sequence it computes before it
 * guesses. Prompts it reads along, a chunk behind.
 *
 * A sequence whose guesses cannot be made yet (rows, blocks) waits for them: they were found to pay. Driver only;
 * private to serve/. */
#ifndef TPD_SERVE_DRAFT_H
#define TPD_SERVE_DRAFT_H

#include "serve/pace.h"
#include "serve/runner.h"
#include "serve/sequence.h"

struct draft;

/* options: of both models' shards; slots: live sequences at the most. runner (which has a draft model) and scheduler are borrowed. */
int draft_new(struct draft **out, struct runner *runner, struct scheduler *scheduler,
              const struct shard_options *options, int32_t slots, struct error *e);
void draft_free(struct draft *d); /* NULL is taken */

/* Between steps: makes the guesses that the sequences (a list by next) wait for, as far as a step's rows go.
 * True: some still wait for rows, so there is more to do even if no step can be put together. */
bool draft_run(struct draft *d, struct sequence *sequences);
/* Time it has taken, and what its steps take by their rows. */
double draft_seconds(const struct draft *d);
const struct pace *draft_pace(const struct draft *d);

#endif
