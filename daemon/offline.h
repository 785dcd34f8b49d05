/* daemon/offline.h: how commands read, answer and end that need no daemon (tpd inspect, plan, merge, quantize, tokenize,
 * detokenize, template). All give the exit code, with a line
 * on stderr for all but 0. */
#ifndef TPD_DAEMON_OFFLINE_H
#define TPD_DAEMON_OFFLINE_H

#include "base/json.h"

/* Tells of the error. */
int offline_fail(const struct error *e);
/* Reads JSON objects from stdin, a line each, and writes one JSON line for each: what answer gives or, when it
 * gives NULL, {"error": e's message} and e's numbers. Empty lines are passed over. */
typedef json_t *offline_answer_fn(const void *self, json_t *line, struct error *e);
int offline_answer_lines(offline_answer_fn *answer, const void *self);
/* Everything is said: exit_code, or EXIT_IO when stdout did not take it. */
int offline_end(int exit_code);

#endif
