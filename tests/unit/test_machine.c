/* Promises of base/machine.h. */
#include "base/machine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void available_memory_is_some_and_not_more_than_there_is(void **state) {
    (void)state;
    size_t all = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    assert_in_range(machine_memory_available(), 1, all);
}

static void groups_end_at_the_root(void **state) {
    (void)state;
    char dir[CGROUP_DIR_MAX] = "/sys/fs/cgroup/a/b.slice";
    assert_true(cgroup_parent(dir));
    assert_string_equal(dir, "/sys/fs/cgroup/a");
    assert_true(cgroup_parent(dir));
    assert_string_equal(dir, "/sys/fs/cgroup");
    assert_false(cgroup_parent(dir));
    /* "0::/" gives the root with a slash at its end. */
    strcpy(dir, "/sys/fs/cgroup/");
    assert_true(cgroup_parent(dir));
    assert_string_equal(dir, "/sys/fs/cgroup");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(available_memory_is_some_and_not_more_than_there_is),
        cmocka_unit_test(groups_end_at_the_root),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
