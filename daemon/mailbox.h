/* daemon/mailbox.h: what the engine's thread tells the loop's thread.
 *
 * mailbox_post may be called from any thread and never waits for the loop. */
#ifndef TPD_DAEMON_MAILBOX_H
#define TPD_DAEMON_MAILBOX_H

#include "base/error.h"

#include <uv.h>

/* A letter is embedded in what is posted or allocated for it; the taker frees it. */
struct letter {
    struct letter *next;
    void (*deliver)(struct letter *letter); /* on the loop's thread; frees the letter */
};

struct mailbox {
    uv_mutex_t mutex;
    uv_async_t async;
    struct letter *first, **last; /* under the mutex */
};

int mailbox_init(struct mailbox *box, uv_loop_t *loop, struct error *e);
void mailbox_post(struct mailbox *box, struct letter *letter);
/* Delivers all that is there. Loop's thread. */
void mailbox_deliver(struct mailbox *box);
/* Closes the handle; nobody may post any more. */
void mailbox_close(struct mailbox *box);

#endif
