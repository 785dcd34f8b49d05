/* daemon/generate.h: what the methods generate and chat share. Loop's thread, but for put_result. */
#ifndef TPD_DAEMON_GENERATE_H
#define TPD_DAEMON_GENERATE_H

#include "daemon/generation.h"

/* A generation of one prompt with what the parameters say of sampling, n, stream and adapter. NULL:
 * that failed and the call has ended. */
struct generation *generate_begin(struct call *call, const struct generation_form *form);
/* The result of JSON-RPC. message: the text is also there as an assistant's message. Any thread. */
void generate_put_result(const struct generation *g, struct json_out *out, bool message);

#endif
