/* Safetensors: good files are read as they are; bad ones are refused with an error that names the
 * file, the tensor and the fault. */
#include "tests/unit/tiny_files.h"

#include "formats/safetensors.h"

#define T(name, dtype, shape, from, to)                                                            \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #from "," #to   \
    "]}"

static void refused_bytes(const struct bytes *b, const char *fault) {
    struct safetensors file;
    struct error e = {0};
    const char *path = tiny_write("bad.safetensors", b->data, b->n);
    if (safetensors_open(&file, path, &e) == 0) fail_msg("taken, but should name %s", fault);
    assert_int_equal(e.kind, ERR_BAD_FILE);
    assert_names(e.message, path);
    assert_names(e.message, fault);
}

static void refused(const char *header, size_t data_bytes, const char *fault) {
    struct bytes b = {0};
    put_safetensors(&b, header, data_bytes);
    refused_bytes(&b, fault);
}

static void taken(struct safetensors *file, const char *header, size_t data_bytes) {
    struct bytes b = {0};
    struct error e = {0};
    put_safetensors(&b, header, data_bytes);
    if (safetensors_open(file, tiny_write("good.safetensors", b.data, b.n), &e) != 0)
        fail_msg("refused: %s", e.message);
}

static void tensors_come_with_type_shape_and_data(void **state) {
    (void)state;
    struct safetensors file;
    /* clang-format off */
    const char *header = "{\"__metadata__\":{\"format\":\"pt\"},"
                         T("b", "BF16", "[2,3]", 4, 16) ","
                         T("a", "F16", "[2]", 0, 4) ","
                         T("scalar", "F32", "[]", 16, 20) ","
                         T("none", "F32", "[0,7]", 16, 16) "}  ";
    /* clang-format on */
    taken(&file, header, 20);
    assert_int_equal(file.n_tensors, 4);
    assert_string_equal(json_string_value(json_object_get(file.metadata, "format")), "pt");
    const struct store_tensor *a = &file.tensors[0], *b = &file.tensors[1];
    assert_string_equal(a->name, "a"), assert_int_equal(a->type, DTYPE_F16);
    assert_string_equal(b->name, "b"), assert_int_equal(b->type, DTYPE_BF16);
    assert_int_equal(b->n_dims, 2), assert_int_equal(b->dims[0], 2),
        assert_int_equal(b->dims[1], 3);
    assert_int_equal(b->bytes, 12), assert_int_equal(b->data[0], 4);
    safetensors_close(&file);
    taken(&file, "{}", 0);
    assert_int_equal(file.n_tensors, 0);
    safetensors_close(&file);
}

static void dtypes_that_tpd_does_not_compute_with_open(void **state) {
    (void)state;
    const struct {
        const char *name;
        int bytes;
    } cases[] = {{"BOOL", 8}, {"U8", 8},   {"I8", 8},   {"F8_E4M3", 8}, {"F8_E5M2", 8},
                 {"I16", 16}, {"U16", 16}, {"I32", 32}, {"U32", 32},    {"I64", 64},
                 {"U64", 64}, {"F64", 64}, {"F4", 4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char header[200];
        snprintf(header, sizeof header,
                 "{\"t\":{\"dtype\":\"%s\",\"shape\":[8],\"data_offsets\":[0,%d]}}", cases[i].name,
                 cases[i].bytes);
        struct safetensors file;
        taken(&file, header, (size_t)cases[i].bytes);
        assert_int_equal(file.tensors[0].type, -1);
        assert_string_equal(file.tensors[0].type_name, cases[i].name);
        safetensors_close(&file);
    }
    refused("{" T("t", "F4", "[3]", 0, 1) "}", 1, "do not fill whole bytes");
}

static void bad_headers_are_refused(void **state) {
    (void)state;
    struct bytes b = {0};
    refused_bytes(&b, "has 0 bytes");
    put(&b, "\x02", 2), refused_bytes(&b, "has 2 bytes");
    b = (struct bytes){0}, put_u64(&b, UINT64_MAX),
    refused_bytes(&b, "header too large (limit 100000000)");
    b = (struct bytes){0}, put_u64(&b, 132095296), put(&b, "{}", 2);
    refused_bytes(&b, "header too large (limit 100000000)");
    b = (struct bytes){0}, put_u64(&b, 4096), put(&b, "{}", 2);
    refused_bytes(&b, "should have 4096 bytes");
    /* The length counts what follows its own eight bytes: a header of the file's size is too long.
     */
    b = (struct bytes){0}, put_u64(&b, 10), put(&b, "{}", 2), refused_bytes(&b, "10 bytes");
    refused("[]", 0, "not a JSON object");
    refused("{\"a\":", 0, "not valid JSON");
    refused("{\"a\":1}", 0, "\"a\"");
    refused("{\"__metadata__\":{\"a\":1}}", 0, "__metadata__");
    b = (struct bytes){0};
    put_u64(&b, 20000);
    for (int i = 0; i < 10000; i++) put(&b, "[", 1);
    for (int i = 0; i < 10000; i++) put(&b, "]", 1);
    refused_bytes(&b, "too deeply nested");
}

/* Two bytes of text a number would make a tree of twenty times the file's size. */
static void a_header_of_nothing_but_numbers_is_refused_before_it_is_parsed(void **state) {
    (void)state;
    size_t n = 9 << 20;
    char *data = malloc(8 + n);
    memcpy(data, &n, 8);
    for (size_t i = 0; i < n; i += 2) memcpy(data + 8 + i, i ? "0," : "[ ", 2);
    const char *path = tiny_write("numbers.safetensors", data, 8 + n);
    free(data);
    struct safetensors file;
    struct error e = {0};
    assert_true(safetensors_open(&file, path, &e) < 0);
    assert_names(e.message, "too many values");
}

static void bad_tensors_are_refused_by_name(void **state) {
    (void)state;
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[]}}", 4,
            "\"a\": data_offsets");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "\"a\": data_offsets");
    refused("{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "\"a\": shape");
    refused("{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "\"a\": dtype");
    refused("{" T("a", "F128", "[1]", 0, 16) "}", 16, "unknown dtype \"F128\"");
    refused("{" T("a", "F32", "[1]", 4, 0) "}", 4, "[4, 0] are no range");
    refused("{" T("a", "F32", "[1]", -4, 0) "}", 4, "[-4, 0] are no range");
    refused("{" T("a", "F32", "[4294967296,4294967296]", 0, 0) "}", 0, "overflows");
    refused("{" T("a", "F32", "[4]", 1099511627776, 1099511627792) "}", 16, "beyond the 16 bytes");
    refused("{" T("a", "F32", "[4]", 0, 12) "}", 12, "hold 12 bytes; shape and dtype F32 need 16");
    refused("{" T("a", "F32", "[-1]", 0, 4) "}", 4, "dimension 0");
    refused("{" T("a", "F32", "[1.5]", 0, 4) "}", 4, "dimension 0");
    refused("{" T("a", "F32", "[1,1,1,1,1,1,1,1,1]", 0, 4) "}", 4, "9 dimensions");
}

static void data_must_be_tiled(void **state) {
    (void)state;
    refused("{" T("k", "F32", "[2]", 0, 8) "," T("v", "F32", "[2]", 0, 8) "}", 8,
            "overlaps tensor");
    refused("{" T("k", "F32", "[2]", 0, 8) "," T("v", "F32", "[2]", 4, 12) "}", 12,
            "\"v\": overlaps tensor \"k\"");
    refused("{" T("x", "U8", "[1]", 1, 2) "}", 2, "\"x\": a gap: bytes 0 to 1");
    refused("{" T("x", "U8", "[1]", 0, 1) "}", 3, "the last 2 bytes");
    refused("{" T("a", "F32", "[1]", 0, 4) "," T("a", "F32", "[1]", 4, 8) "}", 8, "duplicate");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_come_with_type_shape_and_data),
        cmocka_unit_test(dtypes_that_tpd_does_not_compute_with_open),
        cmocka_unit_test(bad_headers_are_refused),
        cmocka_unit_test(a_header_of_nothing_but_numbers_is_refused_before_it_is_parsed),
        cmocka_unit_test(bad_tensors_are_refused_by_name),
        cmocka_unit_test(data_must_be_tiled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
