/* The daemon's states: every one has a name, can be reached, and comes to an end. */
#include "daemon/lifecycle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

static void every_state_has_a_name_of_its_own(void **state) {
    (void)state;
    for (int i = 0; i < SERVER_STATE_COUNT; i++) {
        assert_non_null(server_state_name((enum server_state)i));
        for (int j = 0; j < i; j++)
            assert_string_not_equal(server_state_name((enum server_state)i),
                                    server_state_name((enum server_state)j));
    }
}

/* States that can be reached from one, as bits. */
static unsigned reach(enum server_state from) {
    unsigned seen = 1u << from;
    for (int round = 0; round < SERVER_STATE_COUNT; round++)
        for (int i = 0; i < SERVER_STATE_COUNT; i++)
            for (int j = 0; seen & 1u << i && j < SERVER_STATE_COUNT; j++)
                if (server_state_may_follow((enum server_state)i, (enum server_state)j)) seen |= 1u << j;
    return seen;
}

static void every_state_is_reached_and_ends(void **state) {
    (void)state;
    assert_int_equal(reach(SERVER_STARTING), (1u << SERVER_STATE_COUNT) - 1);
    for (int i = 0; i < SERVER_ENDED; i++) {
        enum server_state from = (enum server_state)i;
        assert_true(reach(from) & 1u << SERVER_ENDED);
        if (from != SERVER_DRAINING) assert_true(server_state_may_follow(from, SERVER_DRAINING));
        assert_false(server_state_may_follow(from, SERVER_STARTING));
    }
    assert_int_equal(reach(SERVER_ENDED), 1u << SERVER_ENDED);
}

/* What is freed can't be served without a load. */
static void a_model_that_is_gone_comes_back_by_loading_alone(void **state) {
    (void)state;
    assert_false(server_state_may_follow(SERVER_UNLOADING, SERVER_READY));
    assert_false(server_state_may_follow(SERVER_UNLOADED, SERVER_READY));
    assert_false(server_state_may_follow(SERVER_READY, SERVER_UNLOADED));
    assert_true(server_state_lacks_model(SERVER_UNLOADING) && server_state_lacks_model(SERVER_UNLOADED));
    assert_false(server_state_lacks_model(SERVER_LOADING) || server_state_lacks_model(SERVER_READY));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_state_has_a_name_of_its_own),
        cmocka_unit_test(every_state_is_reached_and_ends),
        cmocka_unit_test(a_model_that_is_gone_comes_back_by_loading_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
