/* tests/unit/tiny_files.h: writes small model files, right ones and wrong ones, for tests. Each
 * test program that includes it has a directory of its own, in memory where the system has room
 * there. */
#ifndef TPD_TESTS_TINY_FILES_H
#define TPD_TESTS_TINY_FILES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define UNUSED __attribute__((unused))

/* ---- bytes ---- */

struct bytes {
    size_t n;
    uint8_t data[1 << 16];
};

UNUSED static void put(struct bytes *b, const void *data, size_t n) {
    assert_true(b->n + n <= sizeof b->data);
    if (n) memcpy(b->data + b->n, data, n);
    b->n += n;
}
UNUSED static void put_u32(struct bytes *b, uint32_t value) {
    put(b, &value, 4);
}
UNUSED static void put_u64(struct bytes *b, uint64_t value) {
    put(b, &value, 8);
}
UNUSED static void put_zeros(struct bytes *b, size_t n) {
    for (size_t i = 0; i < n; i++) put(b, "", 1);
}
UNUSED static void put_pad(struct bytes *b, size_t to) {
    while (b->n % to) put(b, "", 1);
}

/* ---- GGUF ---- */

UNUSED static void put_string(struct bytes *b, const char *text) {
    put_u64(b, strlen(text));
    put(b, text, strlen(text));
}
UNUSED static void put_gguf(struct bytes *b, uint32_t version, uint64_t tensors, uint64_t keys) {
    put(b, "GGUF", 4);
    put_u32(b, version);
    put_u64(b, tensors);
    put_u64(b, keys);
}
UNUSED static void put_key(struct bytes *b, const char *key, uint32_t type) {
    put_string(b, key);
    put_u32(b, type);
}
UNUSED static void put_key_u32(struct bytes *b, const char *key, uint32_t value) {
    put_key(b, key, 4);
    put_u32(b, value);
}
UNUSED static void put_key_f32(struct bytes *b, const char *key, float value) {
    put_key(b, key, 6);
    put(b, &value, 4);
}
UNUSED static void put_key_string(struct bytes *b, const char *key, const char *value) {
    put_key(b, key, 8);
    put_string(b, value);
}
UNUSED static void put_tensor(struct bytes *b, const char *name, uint32_t n_dims,
                              const uint64_t *dims, uint32_t type, uint64_t offset) {
    put_string(b, name);
    put_u32(b, n_dims);
    for (uint32_t i = 0; i < n_dims; i++) put_u64(b, dims[i]);
    put_u32(b, type);
    put_u64(b, offset);
}

/* ---- safetensors ---- */

UNUSED static void put_safetensors(struct bytes *b, const char *header, size_t data_bytes) {
    put_u64(b, strlen(header));
    put(b, header, strlen(header));
    for (size_t i = 0; i < data_bytes; i++) put(b, &(uint8_t){(uint8_t)i}, 1);
}

/* ---- files ---- */

static char tiny_dir[64];

static int tiny_remove(const char *path, const struct stat *st, int flag, struct FTW *ftw) {
    (void)st, (void)flag, (void)ftw;
    return remove(path);
}
static void tiny_clean(void) {
    nftw(tiny_dir, tiny_remove, 8, FTW_DEPTH | FTW_PHYS);
}

/* The path of name in this program's directory; good for the next 63 calls. */
UNUSED static const char *tiny_path(const char *name) {
    static char paths[64][512];
    static int next;
    if (!tiny_dir[0]) {
        const char *root = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
        snprintf(tiny_dir, sizeof tiny_dir, "%s/tpd-test-XXXXXX", root);
        assert_non_null(mkdtemp(tiny_dir));
        atexit(tiny_clean);
    }
    char *path = paths[next++ % 64];
    snprintf(path, sizeof paths[0], "%s/%s", tiny_dir, name);
    return path;
}
UNUSED static const char *tiny_mkdir(const char *name) {
    const char *path = tiny_path(name);
    assert_int_equal(mkdir(path, 0700), 0);
    return path;
}
UNUSED static const char *tiny_write(const char *name, const void *data, size_t n) {
    const char *path = tiny_path(name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    return path;
}
UNUSED static const char *tiny_write_text(const char *name, const char *text) {
    return tiny_write(name, text, strlen(text));
}

/* A path under the shared inputs, or NULL (said once) where there are none. */
UNUSED static const char *shared_path(const char *name) {
    static char path[1024];
    const char *root = getenv("TPD_SHARED");
    snprintf(path, sizeof path, "%s/cases/%s", root ? root : "../shared", name);
    if (access(path, R_OK) == 0) return path;
    print_message("skipped: %s is not there\n", path);
    return NULL;
}

/* The message must name the fault. */
UNUSED static void assert_names(const char *message, const char *fault) {
    if (!strstr(message, fault)) fail_msg("\"%s\" does not name \"%s\"", message, fault);
}

#endif
