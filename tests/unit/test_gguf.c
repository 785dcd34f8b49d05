/* GGUF: good files are read as they are; bad ones are refused with an error that names the fault.
 */
#include "tests/unit/tiny_files.h"

#include "formats/gguf.h"

static struct gguf *open_ok(const struct bytes *b) {
    struct gguf *gguf;
    struct error e = {0};
    if (gguf_open(&gguf, tiny_write("good.gguf", b->data, b->n), &e) != 0)
        fail_msg("refused: %s", e.message);
    return gguf;
}

static void refused(const struct bytes *b, const char *fault) {
    struct gguf *gguf = NULL;
    struct error e = {0};
    const char *path = tiny_write("bad.gguf", b->data, b->n);
    if (gguf_open(&gguf, path, &e) == 0) fail_msg("taken, but should be refused for %s", fault);
    assert_null(gguf);
    assert_int_equal(e.kind, ERR_BAD_FILE);
    assert_names(e.message, path);
    assert_names(e.message, fault);
}

static void all_value_types_are_read(void **state) {
    (void)state;
    struct bytes b = {0};
    put_gguf(&b, 3, 0, 14);
    put_key(&b, "u8", 0), put(&b, "\xFF", 1);
    put_key(&b, "i8", 1), put(&b, "\xFF", 1);
    put_key(&b, "u16", 2), put(&b, "\xFE\xFF", 2);
    put_key(&b, "i16", 3), put(&b, "\xFE\xFF", 2);
    put_key(&b, "u32", 4), put_u32(&b, 4294967295u);
    put_key(&b, "i32", 5), put_u32(&b, (uint32_t)-5);
    put_key_f32(&b, "f32", 1.5f);
    put_key(&b, "bool", 7), put(&b, "\x01", 1);
    put_key_string(&b, "string", "four");
    put_key(&b, "u64", 10), put_u64(&b, UINT64_MAX);
    put_key(&b, "i64", 11), put_u64(&b, (uint64_t)-7);
    put_key(&b, "f64", 12), put(&b, &(double){0.1}, 8);
    put_key(&b, "numbers", 9), put_u32(&b, 5), put_u64(&b, 2), put_u32(&b, 1), put_u32(&b, -1u);
    put_key(&b, "strings", 9), put_u32(&b, 8), put_u64(&b, 2);
    put_string(&b, "a"), put_string(&b, "");
    struct gguf *gguf = open_ok(&b);

    int64_t i;
    double d;
    bool yes;
    struct gguf_string s;
    struct gguf_array a;
    struct error e = {0};
    assert_int_equal(gguf_version(gguf), 3);
    assert_int_equal(gguf_key_count(gguf), 14);
    assert_int_equal(gguf_get_int(gguf, "u8", &i, &e), 1), assert_int_equal(i, 255);
    assert_int_equal(gguf_get_int(gguf, "i8", &i, &e), 1), assert_int_equal(i, -1);
    assert_int_equal(gguf_get_int(gguf, "u16", &i, &e), 1), assert_int_equal(i, 65534);
    assert_int_equal(gguf_get_int(gguf, "i16", &i, &e), 1), assert_int_equal(i, -2);
    assert_int_equal(gguf_get_int(gguf, "u32", &i, &e), 1), assert_int_equal(i, 4294967295);
    assert_int_equal(gguf_get_int(gguf, "i32", &i, &e), 1), assert_int_equal(i, -5);
    assert_int_equal(gguf_get_int(gguf, "i64", &i, &e), 1), assert_int_equal(i, -7);
    assert_int_equal(gguf_get_float(gguf, "f32", &d, &e), 1), assert_true(d == 1.5);
    assert_int_equal(gguf_get_float(gguf, "f64", &d, &e), 1), assert_true(d == 0.1);
    assert_int_equal(gguf_get_bool(gguf, "bool", &yes, &e), 1), assert_true(yes);
    assert_int_equal(gguf_get_string(gguf, "string", &s, &e), 1);
    assert_int_equal(s.size, 4), assert_memory_equal(s.data, "four", 4);
    assert_int_equal(gguf_get_array(gguf, "numbers", &a, &e), 1);
    assert_int_equal(a.count, 2), assert_int_equal(gguf_array_int(&a, 1), -1);
    assert_true(gguf_array_float(&a, 0) == 1.0);
    assert_int_equal(gguf_get_array(gguf, "strings", &a, &e), 1);
    size_t cursor = 0;
    assert_true(gguf_array_next_string(&a, &cursor, &s)), assert_int_equal(s.size, 1);
    assert_true(gguf_array_next_string(&a, &cursor, &s)), assert_int_equal(s.size, 0);
    assert_false(gguf_array_next_string(&a, &cursor, &s));

    assert_int_equal(gguf_get_int(gguf, "absent", &i, &e), 0);
    assert_true(gguf_get_int(gguf, "u64", &i, &e) < 0), assert_names(e.message, "out of range");
    assert_true(gguf_get_int(gguf, "string", &i, &e) < 0);
    assert_names(e.message, "\"string\""), assert_names(e.message, "type string");
    assert_true(gguf_get_array(gguf, "f32", &a, &e) < 0), assert_names(e.message, "type f32");
    gguf_close(gguf);
}

static void tensors_are_found_with_type_shape_and_data(void **state) {
    (void)state;
    struct bytes b = {0};
    put_gguf(&b, 2, 3, 1);
    put_key_u32(&b, "general.alignment", 64);
    put_tensor(&b, "f", 2, (uint64_t[]){3, 2}, 0, 0);
    put_tensor(&b, "q", 2, (uint64_t[]){64, 1}, 2, 64);
    put_tensor(&b, "x", 1, (uint64_t[]){32}, 20, 128);
    put_pad(&b, 64);
    size_t start = b.n;
    put_zeros(&b, 64), put_zeros(&b, 64), put_zeros(&b, 18);
    struct gguf *gguf = open_ok(&b);
    assert_int_equal(gguf_tensor_count(gguf), 3);
    const struct gguf_tensor *f = gguf_tensor_find(gguf, "f"), *q = gguf_tensor_find(gguf, "q");
    const struct gguf_tensor *x = gguf_tensor_find(gguf, "x");
    assert_int_equal(f->type, DTYPE_F32), assert_int_equal(f->bytes, 24);
    assert_int_equal(f->dims[0], 3), assert_int_equal(f->dims[1], 2);
    assert_int_equal(q->type, DTYPE_Q4_0), assert_int_equal(q->bytes, 36);
    assert_int_equal(x->type, -1), assert_string_equal(x->type_name, "IQ4_NL");
    assert_ptr_equal(f->data, gguf_map(gguf)->data + start);
    assert_ptr_equal(q->data, f->data + 64);
    assert_null(gguf_tensor_find(gguf, "none"));
    gguf_close(gguf);
}

static void versions_other_than_2_and_3_are_refused(void **state) {
    (void)state;
    const struct {
        uint32_t version;
        const char *fault;
    } cases[] = {{0, "version 0"},         {1, "version 1"},
                 {4, "version 4"},         {4294967295u, "version 4294967295"},
                 {3u << 24, "big-endian"}, {2u << 24, "big-endian"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bytes b = {0};
        put_gguf(&b, cases[i].version, 0, 0);
        refused(&b, cases[i].fault);
    }
    struct bytes b = {0};
    refused(&b, "not a GGUF file");
    put(&b, "GGUX", 4);
    refused(&b, "not a GGUF file");
    struct gguf *gguf;
    struct error e = {0};
    assert_true(gguf_open(&gguf, tiny_path("absent.gguf"), &e) < 0);
    assert_int_equal(e.kind, ERR_NOT_FOUND);
}

static struct bytes one_key(void) {
    struct bytes b = {0};
    put_gguf(&b, 3, 0, 1);
    return b;
}

static void bad_keys_are_refused_by_name(void **state) {
    (void)state;
    struct bytes b = one_key();
    put_key(&b, "general.name", 8), put_u64(&b, UINT64_MAX), put(&b, "x", 1);
    refused(&b, "\"general.name\"");
    b = one_key(), put_key(&b, "a", 9), put_u32(&b, 4), put_u64(&b, 1ull << 63);
    refused(&b, "9223372036854775808 u32 values");
    b = one_key(), put_key(&b, "a", 9), put_u32(&b, 8), put_u64(&b, 1ull << 62), put_zeros(&b, 64);
    refused(&b, "4611686018427387904 strings");
    b = one_key(), put_key(&b, "a", 9), put_u32(&b, 9), put_u64(&b, 1), put_zeros(&b, 64);
    refused(&b, "array of arrays");
    b = one_key(), put_key(&b, "a", 9), put_u32(&b, 13), put_u64(&b, 1), put_zeros(&b, 64);
    refused(&b, "element type 13");
    b = one_key(), put_key(&b, "a", 13), put_zeros(&b, 64);
    refused(&b, "value type 13");
    b = one_key(), put_key(&b, "", 0), put_zeros(&b, 64);
    refused(&b, "key 1 of 1");
    b = one_key(), put_u64(&b, 1ull << 60), put_zeros(&b, 64);
    refused(&b, "key 1 of 1");
    b = (struct bytes){0}, put_gguf(&b, 3, 0, 2);
    put_key_u32(&b, "twice", 1), put_key_u32(&b, "twice", 1);
    refused(&b, "key \"twice\": is there twice");
    b = (struct bytes){0}, put_gguf(&b, 3, 0, UINT64_MAX), put_zeros(&b, 64);
    refused(&b, "18446744073709551615 keys");
    b = (struct bytes){0}, put_gguf(&b, 3, 1ull << 59, 0), put_zeros(&b, 64);
    refused(&b, "576460752303423488 tensors");
}

static void bad_alignment_is_refused(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct bytes b = one_key();
        put_key_u32(&b, "general.alignment", (uint32_t[]){0, 48, 1u << 30}[i]);
        refused(&b, "\"general.alignment\"");
    }
    struct bytes b = one_key();
    put_key_string(&b, "general.alignment", "32");
    refused(&b, "type string; it must be u32");
}

static struct bytes one_tensor(const char *name, uint32_t n_dims, const uint64_t *dims,
                               uint32_t type, uint64_t offset) {
    struct bytes b = {0};
    put_gguf(&b, 3, 1, 0);
    put_tensor(&b, name, n_dims, dims, type, offset);
    put_pad(&b, 32);
    put_zeros(&b, 64);
    return b;
}

static void bad_tensors_are_refused_by_name(void **state) {
    (void)state;
    struct bytes b = one_tensor("t.weight", 2, (uint64_t[]){4, 0}, 0, 0);
    refused(&b, "tensor \"t.weight\": dimension 1 is 0");
    b = one_tensor("t", 9, (uint64_t[]){1, 1, 1, 1, 1, 1, 1, 1, 1}, 0, 0);
    refused(&b, "tensor \"t\": has 9 dimensions");
    b = one_tensor("t", 4, (uint64_t[]){UINT64_MAX, 2, 1, 1}, 0, 0), refused(&b, "overflows");
    b = one_tensor("t", 2, (uint64_t[]){1ull << 32, 1ull << 32}, 0, 0), refused(&b, "overflows");
    b = one_tensor("t", 2, (uint64_t[]){1ull << 62, 1}, 0, 0), refused(&b, "overflows");
    b = one_tensor("t", 1, (uint64_t[]){16}, 0, 32), refused(&b, "go beyond the file");
    b = one_tensor("t", 1, (uint64_t[]){16}, 0, 1ull << 40), refused(&b, "go beyond the file");
    b = one_tensor("t", 1, (uint64_t[]){1}, 0, UINT64_MAX - 31), refused(&b, "beyond the file");
    b = one_tensor("t", 1, (uint64_t[]){1}, 0, 8), refused(&b, "multiple of the alignment 32");
    b = one_tensor("t", 1, (uint64_t[]){33}, 2, 0), refused(&b, "whole blocks of 32 (Q4_0)");
    b = one_tensor("future", 1, (uint64_t[]){1}, 99, 0), refused(&b, "tensor type 99");
    b = one_tensor("old", 1, (uint64_t[]){32}, 4, 0), refused(&b, "type Q4_2 was taken out");
    b = one_tensor("", 1, (uint64_t[]){32}, 0, 0), refused(&b, "tensor 1 of 1");
}

static void aliasing_tensors_are_refused(void **state) {
    (void)state;
    struct bytes b = {0};
    put_gguf(&b, 3, 2, 0);
    put_tensor(&b, "k", 1, (uint64_t[]){16}, 0, 0);
    put_tensor(&b, "v", 1, (uint64_t[]){8}, 0, 32);
    put_pad(&b, 32), put_zeros(&b, 64);
    refused(&b, "tensor \"v\": overlaps tensor \"k\"");
    b = (struct bytes){0};
    put_gguf(&b, 3, 2, 0);
    put_tensor(&b, "k", 1, (uint64_t[]){8}, 0, 0);
    put_tensor(&b, "k", 1, (uint64_t[]){8}, 0, 32);
    put_pad(&b, 32), put_zeros(&b, 64);
    refused(&b, "tensor \"k\": is there twice");
}

static void a_file_cut_anywhere_is_refused(void **state) {
    (void)state;
    struct bytes b = {0};
    put_gguf(&b, 3, 1, 2);
    put_key_string(&b, "general.architecture", "llama");
    put_key(&b, "names", 9), put_u32(&b, 8), put_u64(&b, 2);
    put_string(&b, "one"), put_string(&b, "two");
    put_tensor(&b, "t", 1, (uint64_t[]){8}, 0, 0);
    put_pad(&b, 32), put_zeros(&b, 32);
    gguf_close(open_ok(&b));
    for (size_t n = 0; n < b.n; n++) {
        struct gguf *gguf;
        struct error e = {0};
        assert_true(gguf_open(&gguf, tiny_write("cut.gguf", b.data, n), &e) < 0);
        assert_int_equal(e.kind, ERR_BAD_FILE);
    }
}

static void real_files_are_read(void **state) {
    (void)state;
    const char *names[] = {"models/stories260K.gguf", "gguf_vocab/ggml-vocab-gpt-2.gguf",
                           "gguf_vocab/ggml-vocab-phi-3.gguf"};
    for (size_t i = 0; i < 3; i++) {
        const char *path = shared_path(names[i]);
        if (!path) continue;
        struct gguf *gguf;
        struct error e = {0};
        if (gguf_open(&gguf, path, &e) != 0) fail_msg("%s", e.message);
        struct gguf_array tokens;
        assert_int_equal(gguf_get_array(gguf, "tokenizer.ggml.tokens", &tokens, &e), 1);
        struct gguf_string s;
        size_t cursor = 0, n = 0;
        while (gguf_array_next_string(&tokens, &cursor, &s)) n++;
        assert_int_equal(n, tokens.count);
        if (i == 0) assert_int_equal(gguf_tensor_count(gguf), 48);
        gguf_close(gguf);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_value_types_are_read),
        cmocka_unit_test(tensors_are_found_with_type_shape_and_data),
        cmocka_unit_test(versions_other_than_2_and_3_are_refused),
        cmocka_unit_test(bad_keys_are_refused_by_name),
        cmocka_unit_test(bad_alignment_is_refused),
        cmocka_unit_test(bad_tensors_are_refused_by_name),
        cmocka_unit_test(aliasing_tensors_are_refused),
        cmocka_unit_test(a_file_cut_anywhere_is_refused),
        cmocka_unit_test(real_files_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
