/* Prompts, files and token ids from the command line and from stdin. */
#include "tpctl.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The daemon takes messages of 8 MiB unless told otherwise; this only bounds our own memory. */
enum { MAX_INPUT = 64 << 20 };

static int read_stream(FILE *from, const char *name, char **text, size_t *size) {
    size_t capacity = 64 << 10, used = 0;
    char *memory = malloc(capacity);
    while (memory) {
        used += fread(memory + used, 1, capacity - used - 1, from);
        if (ferror(from) || feof(from) || used > MAX_INPUT) break;
        char *more = realloc(memory, capacity *= 2);
        if (!more) free(memory);
        memory = more;
    }
    if (!memory) {
        complain("%s: out of memory", name);
        return TPD_EXIT_BUSY;
    }
    if (ferror(from) || used > MAX_INPUT) {
        bool failed = ferror(from);
        if (failed) complain("%s: cannot read: %s", name, strerror(errno));
        else complain("%s: over %d MiB, which no prompt can be", name, MAX_INPUT >> 20);
        free(memory);
        return failed ? TPD_EXIT_IO : TPD_EXIT_BAD_DATA;
    }
    memory[used] = '\0';
    *text = memory;
    *size = used;
    return EXIT_OK;
}

int read_stdin(char **text, size_t *size) {
    return read_stream(stdin, "stdin", text, size);
}

int read_file(const char *path, char **text, size_t *size) {
    FILE *file = fopen(path, "r");
    if (!file) {
        int why = errno;
        complain("%s: cannot open: %s", path, strerror(why));
        return why == ENOENT || why == ENOTDIR ? TPD_EXIT_NO_FILE
               : why == EACCES || why == EPERM ? TPD_EXIT_NOT_PERMITTED
                                               : TPD_EXIT_IO;
    }
    int rc = read_stream(file, path, text, size);
    fclose(file);
    return rc;
}

/* Bytes of the character at s, or 0 when it is not valid UTF-8 (overlong, surrogate, cut). */
static size_t character_size(const unsigned char *s, size_t left) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t n = s[0] < 0x80 ? 1 : s[0] >> 5 == 6 ? 2 : s[0] >> 4 == 14 ? 3 : s[0] >> 3 == 30 ? 4 : 0;
    if (n <= 1) return n;
    if (n > left) return 0;
    uint32_t code = s[0] & (0x7Fu >> n);
    for (size_t i = 1; i < n; i++) {
        if (s[i] >> 6 != 2) return 0;
        code = code << 6 | (s[i] & 0x3F);
    }
    bool surrogate = code >= 0xD800 && code < 0xE000;
    return code < least[n] || code > 0x10FFFF || surrogate ? 0 : n;
}

int text_to_json(const char *what, const char *text, size_t size, json_t **value) {
    for (size_t at = 0; at < size;) {
        size_t n = character_size((const unsigned char *)text + at, size - at);
        if (n == 0) {
            complain("the %s is not valid UTF-8 at byte %zu (0x%02x)", what, at,
                     (unsigned char)text[at]);
            return TPD_EXIT_BAD_DATA;
        }
        at += n;
    }
    *value = json_stringn(text, size);
    if (*value) return EXIT_OK;
    complain("out of memory");
    return TPD_EXIT_BUSY;
}

int read_text_word(const struct args *args, const char *what, json_t **value) {
    if (args->n_words > 1) {
        complain("one %s is wanted, not %d words: put it in quotes", what, args->n_words);
        return TPD_EXIT_USAGE;
    }
    const char *word = args->n_words ? args->words[0] : NULL;
    if (word && strcmp(word, "-")) return text_to_json(what, word, strlen(word), value);
    if (!word && isatty(STDIN_FILENO)) {
        complain("no %s: give it in quotes, or '-' to read it from stdin", what);
        return TPD_EXIT_USAGE;
    }
    char *text;
    size_t size;
    int rc = read_stdin(&text, &size);
    if (rc == EXIT_OK) {
        rc = text_to_json(what, text, size, value);
        free(text);
    }
    return rc;
}

static int bad_ids(const char *why) {
    complain("token ids are wanted, as numbers between spaces or as a JSON array: %s", why);
    return TPD_EXIT_BAD_DATA;
}

static int ids_from_json(const char *text, size_t size, json_t **ids) {
    json_error_t why;
    json_t *value = json_loadb(text, size, JSON_REJECT_DUPLICATES, &why);
    json_t *list = json_is_object(value) ? json_object_get(value, "tokens") : value;
    json_incref(list);
    json_decref(value);
    bool all = json_is_array(list);
    size_t i;
    json_t *id;
    json_array_foreach(list, i, id) all = all && json_is_integer(id);
    if (all) {
        *ids = list;
        return EXIT_OK;
    }
    json_decref(list);
    return bad_ids(value ? "the JSON is not a list of whole numbers" : why.text);
}

int read_ids(const char *text, size_t size, json_t **ids) {
    const char *s = text, *end = text + size;
    while (s < end && isspace((unsigned char)*s)) s++;
    if (s < end && (*s == '[' || *s == '{')) return ids_from_json(s, (size_t)(end - s), ids);
    json_t *list = json_array();
    char why[96];
    while (s < end) {
        char *after;
        errno = 0;
        int64_t id = strtoll(s, &after, 10);
        bool ends = after == end || isspace((unsigned char)*after) || *after == ',';
        if (after == s || errno || !ends) {
            snprintf(why, sizeof why, "'%.20s' is none (byte %td)", s, s - text);
            json_decref(list);
            return bad_ids(why);
        }
        json_array_append_new(list, json_integer(id));
        s = after;
        while (s < end && (isspace((unsigned char)*s) || *s == ',')) s++;
    }
    *ids = list;
    return EXIT_OK;
}
