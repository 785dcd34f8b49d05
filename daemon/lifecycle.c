#include "daemon/lifecycle.h"

#include "base/log.h"
#include "daemon/server.h"

#include <stdlib.h>

#define TO(state) (1u << (state))

static const unsigned ways[SERVER_STATE_COUNT] = {
    [SERVER_STARTING] = TO(SERVER_LOADING) | TO(SERVER_DRAINING),
    [SERVER_LOADING] = TO(SERVER_READY) | TO(SERVER_UNLOADING) | TO(SERVER_DRAINING),
    [SERVER_READY] = TO(SERVER_UNLOADING) | TO(SERVER_DRAINING),
    [SERVER_UNLOADING] = TO(SERVER_UNLOADED) | TO(SERVER_DRAINING),
    [SERVER_UNLOADED] = TO(SERVER_LOADING) | TO(SERVER_DRAINING),
    [SERVER_DRAINING] = TO(SERVER_ENDED),
    [SERVER_ENDED] = 0,
};

const char *server_state_name(enum server_state state) {
    static const char *const names[SERVER_STATE_COUNT] = {
        [SERVER_STARTING] = "STARTING",   [SERVER_LOADING] = "LOADING",
        [SERVER_READY] = "READY",         [SERVER_UNLOADING] = "UNLOADING",
        [SERVER_UNLOADED] = "UNLOADED",   [SERVER_DRAINING] = "DRAINING",
        [SERVER_ENDED] = "ENDED",
    };
    return names[state];
}

bool server_state_may_follow(enum server_state from, enum server_state to) {
    return ways[from] & TO(to);
}

bool server_state_ends(enum server_state state) {
    return state == SERVER_DRAINING || state == SERVER_ENDED;
}

bool server_state_lacks_model(enum server_state state) {
    return state == SERVER_UNLOADING || state == SERVER_UNLOADED;
}

void server_enter(struct server *server, enum server_state to) {
    if (!server_state_may_follow(server->state, to)) {
        log_error("from %s to %s: there is no such way", server_state_name(server->state),
                  server_state_name(to));
        abort();
    }
    log_debug("%s, was %s", server_state_name(to), server_state_name(server->state));
    server->state = to;
}
