/* Help, made from the tables, and guesses at what a mistyped word meant. */
#include "tpctl.h"

#include <stdio.h>
#include <string.h>

enum { LEFT_COLUMN = 30, MAX_WORD = 31 };

/* Edits (a letter more, less, other, or two swapped) between two short words. */
static int distance(const char *a, const char *b) {
    int n = (int)strlen(a), m = (int)strlen(b);
    if (n > MAX_WORD || m > MAX_WORD) return MAX_WORD;
    int d[MAX_WORD + 1][MAX_WORD + 1];
    for (int i = 0; i <= n; i++) d[i][0] = i;
    for (int j = 0; j <= m; j++) d[0][j] = j;
    for (int i = 1; i <= n; i++)
        for (int j = 1; j <= m; j++) {
            int best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            if (d[i - 1][j] + 1 < best) best = d[i - 1][j] + 1;
            if (d[i][j - 1] + 1 < best) best = d[i][j - 1] + 1;
            bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swapped && d[i - 2][j - 2] + 1 < best) best = d[i - 2][j - 2] + 1;
            d[i][j] = best;
        }
    return d[n][m];
}

const char *suggest(const char *word, const char *const *names) {
    const char *nearest = NULL;
    int least = strlen(word) > 4 ? 3 : 2; /* fewer edits than this */
    for (; *names; names++) {
        bool start = strlen(word) >= 3 && !strncmp(*names, word, strlen(word));
        int edits = start ? 1 : distance(word, *names);
        if (edits < least) {
            least = edits;
            nearest = *names;
        }
    }
    return nearest;
}

static void print_options(const struct option_def *table) {
    for (const struct option_def *o = table; o && o->name; o++) {
        char left[64], letter[5] = "    ";
        if (o->letter) snprintf(letter, sizeof letter, "-%c, ", o->letter);
        snprintf(left, sizeof left, "%s--%s%s%s", letter, o->name, o->value ? " " : "",
                 o->value ? o->value : "");
        printf("  %-*s %s\n", LEFT_COLUMN, left, o->help);
    }
}

void help_overview(void) {
    printf("tpctl speaks with tpd, the daemon that holds a language model.\n\n"
           "usage: tpctl [--socket PATH] [--json] [--quiet] COMMAND …\n\ncommands:\n");
    for (const struct command *c = commands; c->name; c++)
        printf("  %-*s %s\n", LEFT_COLUMN, c->name, c->summary);
    printf("\noptions of every command:\n");
    print_options(global_options);
    printf("\n'tpctl help COMMAND' tells more. Exit codes: 0 done, 1 generation or job failed,\n"
           "64 usage, 65 bad data, 66 no such file, 69 no daemon, 70 internal, 74 input/output, 75 "
           "busy,\n77 not permitted, 78 bad configuration, 124 deadline, 130 interrupted.\n");
}

static bool in_group(const struct command *command, const char *group) {
    size_t n = strlen(group);
    return !strncmp(command->name, group, n) && command->name[n] == ' ';
}

bool is_group(const char *word) {
    for (const struct command *c = commands; c->name; c++)
        if (in_group(c, word)) return true;
    return false;
}

static void print_group(const char *group) {
    printf("\ncommands:\n");
    for (const struct command *c = commands; c->name; c++)
        if (in_group(c, group)) printf("  %-*s %s\n", LEFT_COLUMN, c->name, c->summary);
}

void help_group(const char *group) {
    printf("usage: tpctl %s COMMAND …\n", group);
    print_group(group);
    printf("\n'tpctl help %s COMMAND' tells more.\n", group);
}

void help_command(const struct command *command) {
    printf("usage: tpctl %s%s%s%s\n\n%s.\n", command->name, *command->words ? " " : "",
           command->words, command->options ? " [options]" : "", command->summary);
    if (command->details) printf("%s\n", command->details);
    if (is_group(command->name)) print_group(command->name);
    if (command->options) {
        printf("\noptions:\n");
        print_options(command->options);
    }
    printf("\noptions of every command:\n");
    print_options(global_options);
}
