#include "daemon/offline_inspect.h"

#include "daemon/inspect_report.h"
#include "daemon/offline.h"

#include <stdio.h>
#include <string.h>

/* Columns after which a value is cut; names and paths are never cut. */
enum { VALUE_WIDTH = 60, NAME_WIDTH = 1 << 20 };

static const char usage[] = "usage: tpd inspect PATH [--json]\n";

/* A file's own text, fit for a terminal: one line, no control characters, cut after width bytes. */
static void print_text(const char *text, size_t width) {
    size_t n = strlen(text), shown = n;
    if (n > width) {
        shown = width;
        while (shown > 0 && ((unsigned char)text[shown] & 0xC0) == 0x80) shown--;
    }
    for (size_t i = 0; i < shown; i++) {
        unsigned char c = (unsigned char)text[i];
        putchar(c < 0x20 || c == 0x7F ? ' ' : c);
    }
    if (shown < n) printf("... (%zu bytes)", n);
}

/* 1234567 → 1,234,567 */
static const char *grouped(json_int_t number, char *buf, size_t size) {
    char digits[32];
    int n = snprintf(digits, sizeof digits, "%lld", (long long)number);
    size_t out = 0;
    for (int i = 0; i < n && out + 2 < size; i++) {
        if (i && (n - i) % 3 == 0) buf[out++] = ',';
        buf[out++] = digits[i];
    }
    buf[out] = '\0';
    return buf;
}

static void print_value(const json_t *value) {
    char number[40];
    if (json_is_string(value)) {
        print_text(json_string_value(value), VALUE_WIDTH);
    } else if (json_is_real(value)) {
        printf("%.7g", json_real_value(value));
    } else if (json_is_array(value)) {
        putchar('[');
        for (size_t i = 0; i < json_array_size(value); i++) {
            if (i) printf(", ");
            print_value(json_array_get(value, i));
        }
        putchar(']');
    } else if (json_is_object(value)) {
        const char *key;
        json_t *member;
        const char *between = "";
        json_object_foreach((json_t *)value, key, member) {
            printf("%s", between);
            print_text(key, NAME_WIDTH);
            putchar(' ');
            print_value(member);
            between = ", ";
        }
    } else {
        printf("%s", json_describe(value, number, sizeof number));
    }
}

static void print_members(const char *title, json_t *object) {
    if (!object) return;
    printf("%s\n", title);
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value) {
        printf("  ");
        print_text(key, NAME_WIDTH);
        printf(": ");
        print_value(value);
        putchar('\n');
    }
}

static void print_tensors(const json_t *report) {
    const json_t *list = json_object_get(report, "tensors");
    char bytes[40];
    size_t i;
    json_t *tensor;
    int width = 4;
    json_array_foreach((json_t *)list, i, tensor) {
        int n = (int)strlen(json_string_value(json_object_get(tensor, "name")));
        if (n > width && n <= 100) width = n;
    }
    printf("tensors (%zu)\n", json_array_size(list));
    json_array_foreach((json_t *)list, i, tensor) {
        const char *name = json_string_value(json_object_get(tensor, "name"));
        int pad = width - (int)strlen(name);
        printf("  ");
        print_text(name, NAME_WIDTH);
        printf("%*s  %-8s %14s  ", pad > 0 ? pad : 0, "",
               json_string_value(json_object_get(tensor, "dtype")),
               grouped(json_integer_value(json_object_get(tensor, "bytes")), bytes, sizeof bytes));
        print_value(json_object_get(tensor, "shape"));
        putchar('\n');
    }
}

static void print_table(json_t *report) {
    char number[40];
    print_text(json_string_value(json_object_get(report, "path")), NAME_WIDTH);
    printf("\nkind: %s\nformat: %s", json_string_value(json_object_get(report, "kind")),
           json_string_value(json_object_get(report, "format")));
    const json_t *version = json_object_get(report, "gguf_version");
    if (version) printf(" version %lld", (long long)json_integer_value(version));
    json_int_t files = json_integer_value(json_object_get(report, "files"));
    printf(", %lld file%s\n", (long long)files, files == 1 ? "" : "s");
    printf("parameters: %s\n", grouped(json_integer_value(json_object_get(report, "parameters")),
                                       number, sizeof number));
    printf("bytes: %s",
           grouped(json_integer_value(json_object_get(report, "bytes")), number, sizeof number));
    const char *dtype, *between = " (";
    json_t *bytes;
    json_object_foreach(json_object_get(report, "bytes_by_dtype"), dtype, bytes) {
        printf("%s%s %s", between, dtype,
               grouped(json_integer_value(bytes), number, sizeof number));
        between = ", ";
    }
    puts(strcmp(between, ", ") == 0 ? ")" : "");
    const char *note = json_string_value(json_object_get(report, "note"));
    if (note) printf("note: %s\n", note);
    print_members("model", json_object_get(report, "model"));
    print_members("adapter", json_object_get(report, "adapter"));
    print_members("metadata", json_object_get(report, "metadata"));
    print_tensors(report);
}

int offline_inspect(int argc, char **argv) {
    const char *path = NULL;
    bool as_json = false;
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) as_json = true;
        else if (argv[i][0] == '-' || path) {
            fputs(usage, stderr);
            return EXIT_USAGE;
        } else path = argv[i];
    }
    if (!path || !path[0]) {
        fputs(usage, stderr);
        return EXIT_USAGE;
    }
    json_t *report;
    struct error e = {0};
    if (inspect_report(&report, path, &e) != 0) return offline_fail(&e);
    if (as_json) {
        json_dumpf(report, stdout, JSON_COMPACT);
        putchar('\n');
    } else {
        print_table(report);
    }
    json_decref(report);
    return offline_end(0);
}
