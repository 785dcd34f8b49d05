/* An object of the daemon as a table for people, or as rows of path and value.
 *
 * Nothing here knows the fields: a daemon that tells more is shown whole. The name of a field tells
 * its unit, as the protocol names them: …bytes and memory…, …_s, …_ms, …per_s. */
#include "tpctl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CELL = 160, MAX_COLUMNS = 12, LABEL_WIDTH = 16, MAX_PATH = 192 };

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

/* path is "devices.memory.used": what holds a field counts as part of its name. */
static bool is_bytes(const char *path) {
    if (ends_with(path, ".rank")) return false;
    return strstr(path, "bytes") || ends_with(path, "bandwidth") || strstr(path, "memory") || !strncmp(path, "ranks.", 6);
}

/* A time, in seconds since 1970, as people here write it. */
static bool is_time(const char *path, double value) {
    static const char *const names[] = {"created", "started", "ended", "deadline", "time"};
    const char *dot = strrchr(path, '.'), *name = dot ? dot + 1 : path;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i])) return value > 1e9;
    return false;
}

static const char *time_text(double value, char buf[32]) {
    struct tm local;
    time_t seconds = (time_t)value;
    if (!localtime_r(&seconds, &local) || !strftime(buf, 32, "%Y-%m-%d %H:%M:%S", &local))
        snprintf(buf, 32, "%.0f", value);
    return buf;
}

static const char *number_text(const char *path, double value, char buf[32]) {
    if (is_time(path, value)) return time_text(value, buf);
    if (is_bytes(path)) return bytes_text(value, buf);
    if (ends_with(path, "flops") || ends_with(path, "flops_per_s")) return count_text(value, buf);
    if (strstr(path, "per_s")) snprintf(buf, 32, "%.1f", value);
    else if (ends_with(path, "_ms")) snprintf(buf, 32, "%.1f ms", value);
    else if (ends_with(path, "_s") || ends_with(path, "uptime")) return seconds_text(value, buf);
    else snprintf(buf, 32, "%.15g", value);
    return buf;
}

/* A copy that a terminal cannot obey and that keeps its row. */
static void copy_clean(char *out, size_t size, const char *text) {
    size_t n = 0;
    for (; *text && n + 1 < size; text++) {
        unsigned char c = (unsigned char)*text;
        out[n++] = c < 0x20 || c == 0x7F ? '?' : *text;
    }
    /* No part of a character at the cut, nor a C1 control. */
    while (*text && n > 0 && ((unsigned char)out[n - 1] & 0x80)) n--;
    out[n] = '\0';
    for (char *c1 = out; (c1 = strchr(c1, '\xC2')); c1++)
        if ((unsigned char)c1[1] < 0xA0) c1[0] = c1[1] = '?';
}

/* What is nested deeper than a table goes, as JSON. */
static void nested_text(const json_t *value, char out[CELL]) {
    char *text = json_dumps(value, JSON_COMPACT | JSON_REAL_PRECISION(7));
    copy_clean(out, CELL, text ? text : "-");
    free(text);
}

static void cell_text(const char *path, const json_t *value, char out[CELL]) {
    char buf[32];
    if (json_string_length(value) > 0) copy_clean(out, CELL, json_string_value(value));
    else if (json_is_boolean(value)) strcpy(out, json_is_true(value) ? "yes" : "no");
    else if (json_is_number(value))
        snprintf(out, CELL, "%s", number_text(path, json_number_value(value), buf));
    else if (json_is_array(value) && json_array_size(value) > 8)
        snprintf(out, CELL, "%zu entries", json_array_size(value));
    else if (json_is_array(value) || json_is_object(value)) nested_text(value, out);
    else strcpy(out, "-");
}

static void join_path(char *out, const char *path, const char *key) {
    snprintf(out, MAX_PATH, "%.120s%s%.60s", path, *path ? "." : "", key);
}

/* "tokens_per_s" → "tokens/s", "kv_heads" → "kv heads"; a unit that the value shows is dropped. */
static void label_text(const char *key, char out[CELL]) {
    copy_clean(out, CELL, key);
    size_t n = strlen(out);
    if (ends_with(out, "_bytes")) out[n - 6] = '\0';
    else if (ends_with(out, "_ms")) out[n - 3] = '\0';
    else if (ends_with(out, "_per_s")) strcpy(out + n - 6, "/s");
    else if (ends_with(out, "_s")) out[n - 2] = '\0';
    for (char *c = out; *c; c++)
        if (*c == '_' || *c == '.') *c = ' ';
}

/* --plain: "kv.used TAB 12", a row for each value in the tree. */
static void put_plain(const char *path, const json_t *value) {
    char inner[MAX_PATH], index[24];
    const char *key;
    json_t *member;
    size_t i;
    if (json_is_object(value)) {
        json_object_foreach((json_t *)value, key, member) {
            join_path(inner, path, key);
            put_plain(inner, member);
        }
        return;
    }
    if (json_is_array(value)) {
        json_array_foreach(value, i, member) {
            snprintf(index, sizeof index, "%zu", i);
            join_path(inner, path, index);
            put_plain(inner, member);
        }
        return;
    }
    put_field(path, strlen(path));
    putchar('\t');
    if (json_is_string(value)) put_field(json_string_value(value), json_string_length(value));
    else if (json_is_boolean(value)) fputs(json_is_true(value) ? "true" : "false", stdout);
    else if (json_is_number(value)) printf("%.15g", json_number_value(value));
    putchar('\n');
}

/* "used 12, free 500"; an object within it stands in parentheses. */
static void put_inline(const char *path, const json_t *object) {
    const char *key, *comma = "";
    json_t *member;
    char inner[MAX_PATH], cell[CELL], label[CELL];
    json_object_foreach((json_t *)object, key, member) {
        join_path(inner, path, key);
        label_text(key, label);
        printf("%s%s ", comma, label);
        comma = ", ";
        if (json_object_size(member) > 0) {
            putchar('(');
            put_inline(inner, member);
            putchar(')');
        } else {
            cell_text(inner, member, cell);
            fputs(cell, stdout);
        }
    }
}

/* The columns of a list of objects: paths of its first entry, one level of nesting opened. */
static int find_columns(const json_t *entry, char columns[MAX_COLUMNS][MAX_PATH]) {
    int n = 0;
    const char *key, *inner_key;
    json_t *member, *inner;
    json_object_foreach((json_t *)entry, key, member) {
        if (json_is_object(member)) {
            json_object_foreach(member, inner_key, inner) if (n < MAX_COLUMNS)
                snprintf(columns[n++], MAX_PATH, "%.90s.%.90s", key, inner_key);
        } else if (n < MAX_COLUMNS) snprintf(columns[n++], MAX_PATH, "%.90s", key);
    }
    return n;
}

static const json_t *look_up(const json_t *object, const char *path) {
    char outer[MAX_PATH];
    const json_t *whole = json_object_get(object, path);
    const char *dot = strchr(path, '.');
    if (whole || !dot) return whole;
    snprintf(outer, sizeof outer, "%.*s", (int)(dot - path), path);
    return json_object_get(json_object_get(object, outer), dot + 1);
}

/* Columns on a screen, for UTF-8 of single width. */
static int width_of(const char *text) {
    int n = 0;
    for (; *text; text++) n += ((unsigned char)*text & 0xC0) != 0x80;
    return n;
}

static void put_padded(const char *text, int width) {
    printf("%s%*s", text, width > width_of(text) ? width - width_of(text) : 0, "");
}

static void put_list(const struct tool *tool, const char *name, const json_t *list) {
    char columns[MAX_COLUMNS][MAX_PATH], path[MAX_PATH], cell[CELL];
    int width[MAX_COLUMNS], n = find_columns(json_array_get(list, 0), columns);
    size_t i;
    json_t *entry;
    for (int c = 0; c < n; c++) {
        label_text(columns[c], cell);
        width[c] = width_of(cell);
        join_path(path, name, columns[c]);
        json_array_foreach(list, i, entry) {
            cell_text(path, look_up(entry, columns[c]), cell);
            if (width_of(cell) > width[c]) width[c] = width_of(cell);
        }
    }
    fputs(bold(tool), stdout);
    for (int c = 0; c < n; c++) {
        label_text(columns[c], cell);
        fputs("  ", stdout);
        put_padded(cell, c + 1 < n ? width[c] : 0);
    }
    printf("%s\n", unbold(tool));
    json_array_foreach(list, i, entry) {
        for (int c = 0; c < n; c++) {
            join_path(path, name, columns[c]);
            cell_text(path, look_up(entry, columns[c]), cell);
            fputs("  ", stdout);
            put_padded(cell, c + 1 < n ? width[c] : 0);
        }
        putchar('\n');
    }
}

/* A list of plain values: "2, 2, 1". */
static void put_values(const char *path, const json_t *list) {
    char cell[CELL];
    size_t i;
    json_t *value;
    json_array_foreach(list, i, value) {
        cell_text(path, value, cell);
        printf("%s%s", i ? ", " : "", cell);
    }
    puts(json_array_size(list) ? "" : "-");
}

void put_object(const struct tool *tool, const json_t *object) {
    char label[CELL], cell[CELL];
    const char *key;
    json_t *member;
    if (tool->format == OUT_PLAIN) {
        put_plain("", object);
        return;
    }
    json_object_foreach((json_t *)object, key, member) {
        bool is_table = json_is_object(json_array_get(member, 0));
        label_text(key, label);
        fputs(bold(tool), stdout);
        put_padded(label, is_table ? 0 : LABEL_WIDTH);
        printf("%s%s", unbold(tool), is_table ? "\n" : " ");
        if (is_table) put_list(tool, key, member);
        else if (json_is_object(member)) {
            put_inline(key, member);
            putchar('\n');
        }
        else if (json_is_array(member)) put_values(key, member);
        else {
            cell_text(key, member, cell);
            puts(cell);
        }
    }
}
