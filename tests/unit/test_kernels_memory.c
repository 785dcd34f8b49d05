/* Device memory: counted, limited, unreadable for the host in debug mode; and dispatch. */
#include "base/dequant.h"
#include "tests/unit/kernels_fixture.h"

#include <fcntl.h>
#include <sys/mman.h>

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

/* Of both kinds that share pages: more than a share of address space holds, some freed meanwhile. */
static void weights_side_by_side_keep_their_own(void **state) {
    (void)state;
    enum { N = 60 };
    struct kctx *c = open_ctx(1, 256 << 20, false);
    dev_addr a[N];
    size_t bytes[N];
    for (int i = 0; i < N; i++) {
        bytes[i] = (size_t)(i % 7 == 0 ? 5 << 20 : 1000 * (i + 1));
        assert_int_equal(c->ops->mem_alloc(c, i % 2 ? MEM_WEIGHTS : MEM_PARAMETERS, bytes[i], &a[i], NULL), 0);
        uint8_t *p = kernels_cpu_pointer(c, a[i]);
        for (size_t j = 0; j < bytes[i]; j += 500) assert_int_equal(p[j], 0);
        memset(p, i + 1, bytes[i]);
        if (i % 5 == 4) c->ops->mem_free(c, a[i - 2]);
    }
    for (int i = 0; i < N; i++) {
        if (i % 5 == 2) continue;
        const uint8_t *p = kernels_cpu_pointer(c, a[i]);
        for (size_t j = 0; j < bytes[i]; j += 500) assert_int_equal(p[j], i + 1);
        assert_int_equal(p[bytes[i] - 1], i + 1);
    }
    assert_int_equal(c->ops->wait(c, NULL), 0);
    c->ops->close(c);
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

/* Reads the n-th word, of `bytes`, that an array says is at (panel, block, lane, word). */
static uint64_t word_at(const uint8_t *data, const struct weight_array *a, size_t bytes,
                        const size_t at[ARRAY_AXES]) {
    uint64_t word = 0;
    size_t from = a->offset;
    for (int i = 0; i < ARRAY_AXES; i++) from += at[i] * a->stride[i];
    memcpy(&word, data + from, bytes);
    return word;
}

static const uint8_t *map_handle(const struct mem_handle *h) {
    int fd = shm_open(h->name, O_RDONLY, 0);
    assert_true(fd >= 0);
    const uint8_t *at = mmap(NULL, h->offset + h->bytes, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(at != MAP_FAILED);
    close(fd);
    return at + h->offset;
}

static void exported_memory_is_the_memory_itself(void **state) {
    (void)state;
    for (int alias = 0; alias < 2; alias++) {
        struct kctx *c = open_ctx(1, 64 << 20, alias);
        struct mem_handle h[2];
        char name[64];
        snprintf(name, sizeof name, "/tpd-unit-%d-%d", (int)getpid(), alias);
        const struct mem_share share = {name, 0400, getegid()};
        static const size_t sizes[] = {1000, (4 << 20) + 12};
        for (int i = 0; i < 2; i++) {
            dev_addr a;
            assert_int_equal(c->ops->mem_alloc(c, MEM_WEIGHTS, sizes[i], &a, NULL), 0);
            uint32_t first = 7, last = 8;
            c->ops->upload(c, a + sizes[i] - 4, &first, 4);
            for (int again = 0; again < 2; again++)
                assert_int_equal(c->ops->mem_export(c, a, &share, &h[again], NULL), 0);
            assert_memory_equal(&h[0], &h[1], sizeof *h);
            assert_int_equal(h[0].kind, MEM_HANDLE_SHM);
            assert_true(h[0].bytes >= sizes[i] && h[0].bytes < sizes[i] + 256);
            const uint8_t *map = map_handle(&h[0]);
            assert_int_equal(map[sizes[i] - 4], first);
            c->ops->upload(c, a + sizes[i] - 4, &last, 4); /* no copy: it is seen at once */
            assert_int_equal(map[sizes[i] - 4], last);
            c->ops->mem_free(c, a);
            assert_int_equal(shm_open(name, O_RDONLY, 0), -1);
            assert_int_equal(map[sizes[i] - 4], last); /* who has it keeps it */
        }
        struct error e;
        assert_int_equal(c->ops->mem_export(c, 4096, &share, &h[0], &e), -(int)ERR_INTERNAL);
        dev_addr kept;
        assert_int_equal(c->ops->mem_alloc(c, MEM_WEIGHTS, 1, &kept, NULL), 0);
        assert_int_equal(c->ops->mem_export(c, kept, &share, &h[0], NULL), 0);
        c->ops->close(c);
        assert_int_equal(shm_open(name, O_RDONLY, 0), -1);
    }
}

/* Codes, scale and sub-scales of every element, as the layout says where they are. */
static void layouts_say_where_everything_is(void **state) {
    (void)state;
    struct kctx *c = open_ctx(1, 64 << 20, false);
    for (int type = 0; type < DTYPE_COUNT; type++) {
        if (!dtype_is_quantised((enum dtype)type)) continue;
        const struct dtype_info *info = dtype_info((enum dtype)type);
        enum { ROWS = 37 };
        int32_t cols = 3 * info->block;
        size_t row_bytes = dtype_row_bytes((enum dtype)type, cols);
        uint8_t *file = malloc(ROWS * row_bytes);
        for (size_t i = 0; i < ROWS * row_bytes; i++) file[i] = (uint8_t)(i * 2654435761u >> 13);
        struct weight w;
        struct weight_layout l;
        assert_int_equal(c->ops->weight_new(c, (enum dtype)type, ROWS, cols, &w, NULL), 0);
        c->ops->weight_put(c, &w, 0, ROWS, file, row_bytes);
        c->ops->weight_layout(&w, &l);
        assert_int_equal(l.columns, info->block);
        const uint8_t *data = kernels_cpu_pointer(c, w.data);
        for (int r = 0; r < ROWS; r++)
            for (int b = 0; b < 3; b++) {
                uint8_t codes[QUANT_BLOCK_MAX], expected[QUANT_BLOCK_MAX];
                memset(codes, 0, sizeof codes);
                for (int i = 0; i < l.n_arrays; i++) {
                    const struct weight_array *a = &l.arrays[i];
                    size_t at[] = {(size_t)(r / l.lanes), (size_t)b, (size_t)(r % l.lanes), 0};
                    for (int k = 0; a->bits && k < info->block; k++) {
                        at[3] = (size_t)(k * a->bits / 32);
                        assert_true(at[3] < a->shape[3]);
                        int of = k % (32 / a->bits); /* the word's codes */
                        int bit = l.by_bytes ? of % 4 * 8 + of / 4 * a->bits : of * a->bits;
                        uint64_t bits = word_at(data, a, 4, at) >> bit;
                        codes[k] |= (uint8_t)((bits & ((1u << a->bits) - 1)) << a->shift);
                    }
                }
                quant_block_codes((enum dtype)type, file + (size_t)r * row_bytes + (size_t)b * (size_t)info->block_bytes,
                                  expected);
                assert_memory_equal(codes, expected, (size_t)info->block);
            }
        c->ops->weight_free(c, &w);
        free(file);
    }
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
        cmocka_unit_test(weights_side_by_side_keep_their_own),
        cmocka_unit_test(over_the_limit_is_an_error_with_needed_and_free),
        cmocka_unit_test(exported_memory_is_the_memory_itself),
        cmocka_unit_test(layouts_say_where_everything_is),
        cmocka_unit_test(the_host_cannot_follow_an_alias),
        cmocka_unit_test(an_error_stops_the_context_until_it_is_taken),
        cmocka_unit_test(a_free_of_what_is_not_there_is_reported),
        cmocka_unit_test(an_unknown_level_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
