/* daemon/lifecycle.h: where the daemon stands, and the ways from there.
 *
 *   STARTING   nothing is served yet: state directory, socket, loop
 *   LOADING    a model is being opened, or is on its way to the ranks; requests for it wait
 *   READY      it is served
 *   UNLOADING  its live requests end, then it is freed; new ones are refused
 *   UNLOADED   there is none; jobs wait
 *   DRAINING   the daemon ends: live requests, then everything
 *   ENDED      handles are closed, the loop is about to end
 *
 * A load that fails before the daemon was ever READY ends it (DRAINING, with that error's exit code); a later
 * one leads to UNLOADED and is told to whoever asked for it. On the loop's thread. */
#ifndef TPD_DAEMON_LIFECYCLE_H
#define TPD_DAEMON_LIFECYCLE_H

#include <stdbool.h>

enum server_state {
    SERVER_STARTING,
    SERVER_LOADING,
    SERVER_READY,
    SERVER_UNLOADING,
    SERVER_UNLOADED,
    SERVER_DRAINING,
    SERVER_ENDED,
    SERVER_STATE_COUNT
};

/* As `status` tells it. */
const char *server_state_name(enum server_state state);
bool server_state_may_follow(enum server_state from, enum server_state to);
/* DRAINING or ENDED: no new work. */
bool server_state_ends(enum server_state state);
/* UNLOADING or UNLOADED: what needs a model is refused. */
bool server_state_lacks_model(enum server_state state);

struct server;
/* The only place that changes server->state; a way that is not in the table is a bug, and aborts. */
void server_enter(struct server *server, enum server_state to);

#endif
