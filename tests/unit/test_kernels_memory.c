/* Device memory: counted, limited, unreadable for the host in debug mode; and dispatch. */
#include "tests/unit/kernels_fixture.h"

#include <sys/wait.h>
#include <unistd.h>

static void memory_is_aligned_zeroed_and_counted(void **state) {
    (void)state;
    for (int alias = 0; alias < 2; alias++) {
        struct kctx *c = open_ctx(1, 64 << 20, alias);
        static const size_t sizes[] = {0, 1, 255, 4096, 4097, 3 << 20, 5000000};
        dev_addr a[7];
        struct mem_use use;
        for (int i = 0; i < 7; i++) {
            assert_int_equal(c->ops->mem_alloc(c, MEM_KV, sizes[i], &a[i], NULL), 0);
            assert_true(a[i] != 0 && a[i] % 256 == 0);
            const uint8_t *p = kernels_cpu_pointer(c, a[i]);
            for (size_t j = 0; j < sizes[i]; j++) assert_int_equal(p[j], 0);
        }
        c->ops->mem_use(c, &use);
        assert_true(use.bytes[MEM_KV] >= (3 << 20) + 5008448 && use.bytes[MEM_WEIGHTS] == 0);
        assert_true(use.total == 64 << 20 && use.free == use.total - use.bytes[MEM_KV]);
        for (int i = 0; i < 7; i++) c->ops->mem_free(c, a[i]);
        c->ops->mem_use(c, &use);
        assert_true(use.bytes[MEM_KV] == 0 && use.free == 64 << 20);
        assert_int_equal(c->ops->wait(c, NULL), 0);
        c->ops->close(c);
    }
}

static void over_the_limit_is_an_error_with_needed_and_free(void **state) {
    (void)state;
    struct kctx *c = open_ctx(1, 1 << 20, false);
    struct error e;
    dev_addr a, b;
    assert_int_equal(c->ops->mem_alloc(c, MEM_KV, 1 << 19, &a, &e), 0);
    assert_int_equal(c->ops->mem_alloc(c, MEM_KV, (1 << 19) + 1, &b, &e), -(int)ERR_MEMORY);
    assert_int_equal(b, 0);
    assert_string_equal(e.notes[0].key, "needed");
    assert_int_equal(e.notes[0].number, (1 << 19) + 1);
    assert_string_equal(e.notes[1].key, "free");
    assert_int_equal(e.notes[1].number, 1 << 19);
    assert_int_equal(c->ops->mem_alloc(c, MEM_KV, SIZE_MAX, &b, &e), -(int)ERR_MEMORY);
    struct weight w;
    assert_int_equal(c->ops->weight_new(c, DTYPE_F32, 1 << 15, 1 << 15, &w, &e), -(int)ERR_MEMORY);
    assert_int_equal(c->ops->mem_alloc(c, MEM_KV, 1 << 19, &b, &e), 0);
    c->ops->close(c);
}

/* Whether reading p kills the process. */
static bool faults(const volatile uint8_t *p) {
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        _exit(*p == 255 ? 1 : 0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) || WEXITSTATUS(status) > 1;
}

static void the_host_cannot_follow_an_alias(void **state) {
    (void)state;
    setenv("TPD_DEBUG_ALIAS", "1", 1);
    struct kctx *c = open_ctx(1, 1 << 20, false);
    unsetenv("TPD_DEBUG_ALIAS");
    dev_addr a = to_device(c, "seen", 5);
    to_device(c, NULL, 5); /* its neighbour */
    char *got = from_device(c, a, 5);
    assert_string_equal(got, "seen");
    free(got);
    const uint8_t *real = kernels_cpu_pointer(c, a);
    assert_true(faults((const uint8_t *)(uintptr_t)a));
    assert_false(faults(real));
    assert_true(faults(real + 256)); /* beyond the end */
    c->ops->mem_free(c, a);
    assert_true(faults(real)); /* after its life */
    c->ops->close(c);
}

static void an_error_stops_the_context_until_it_is_taken(void **state) {
    (void)state;
    struct kctx *c = open_ctx(1, 0, false);
    float x = 3;
    dev_addr a = to_device(c, &x, 4);
    struct error e;
    error_set(&e, ERR_DEVICE, "made up");
    kctx_fail(c, &e);
    c->ops->scale(c, a, 1, 2);
    assert_int_equal(c->ops->wait(c, &e), -(int)ERR_DEVICE);
    assert_string_equal(e.message, "made up");
    c->ops->scale(c, a, 1, 3);
    float *got = from_device(c, a, 4);
    assert_true(*got == 9);
    free(got);
    c->ops->close(c);
}

static void a_free_of_what_is_not_there_is_reported(void **state) {
    (void)state;
    struct kctx *c = open_ctx(1, 0, false);
    c->ops->mem_free(c, 4096);
    assert_int_equal(c->ops->wait(c, NULL), -(int)ERR_INTERNAL);
    c->ops->close(c);
}

static void an_unknown_level_is_refused(void **state) {
    (void)state;
    struct cpu_options options = {.cores = {.n = 1}};
    struct kctx *c;
    struct error e;
    setenv("TPD_CPU_CAP", "mmx", 1);
    assert_int_equal(kernels_cpu_open(&c, 0, &options, &e), -(int)ERR_CONFIG);
    unsetenv("TPD_CPU_CAP");
    assert_non_null(strstr(e.message, "avx2"));
    assert_null(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_aligned_zeroed_and_counted),
        cmocka_unit_test(over_the_limit_is_an_error_with_needed_and_free),
        cmocka_unit_test(the_host_cannot_follow_an_alias),
        cmocka_unit_test(an_error_stops_the_context_until_it_is_taken),
        cmocka_unit_test(a_free_of_what_is_not_there_is_reported),
        cmocka_unit_test(an_unknown_level_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
