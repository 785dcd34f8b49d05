#include "daemon/command_line.h"

#include "base/words.h"
#include "daemon/device.h"

#include <stdio.h>
#include <string.h>

enum { FLAG_MAX = 64 };

/* "--kv-type" → "kv_type"; false when it is not of that form. An "=value" at the end is given in
 * *value. */
static bool flag_name(const char *arg, char name[FLAG_MAX], const char **value) {
    *value = NULL;
    if (strncmp(arg, "--", 2) != 0) return false;
    arg += 2;
    size_t n = strcspn(arg, "=");
    if (n == 0 || n >= FLAG_MAX) return false;
    for (size_t i = 0; i < n; i++) name[i] = arg[i] == '-' ? '_' : arg[i];
    name[n] = '\0';
    if (arg[n] == '=') *value = arg + n + 1;
    return true;
}

static int unknown_flag(const char *arg, struct error *e) {
    char name[FLAG_MAX], hint[96];
    const char *value;
    if (!flag_name(arg, name, &value))
        return error_set(e, ERR_USAGE, "unexpected argument \"%s\": see tpd --help", arg);
    struct suggestion near;
    suggest_start(&near, name);
    suggest_offer(&near, "config");
    for (size_t i = 0; i < config_n_keys; i++) suggest_offer(&near, config_keys[i].name);
    suggest_text(&near, hint, sizeof hint);
    for (char *at = hint; *at; at++)
        if (*at == '_') *at = '-';
    return error_set(e, ERR_USAGE, "unknown flag \"%s\"%s: see tpd --help", arg, hint);
}

/* What read_flags does with each flag it meets. */
struct pass {
    bool config_file; /* this pass looks for --config only */
    const char *config_path;
    struct daemon_config *config;
    enum command *command;
};

static int take_flag(struct pass *pass, const char *arg, const struct config_key *key,
                     const char *value, struct error *e) {
    if (!key) {
        if (pass->config_file) pass->config_path = value;
        return 0;
    }
    if (pass->config_file) return 0;
    int rc = config_set(pass->config, key, value, e);
    if (rc != 0 && e) {
        e->kind = ERR_USAGE;
        rc = error_prefix(e, "%.*s: ", (int)strcspn(arg, "="), arg);
    }
    return rc;
}

static int read_flags(struct pass *pass, int argc, char **argv, struct error *e) {
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i], *value;
        char name[FLAG_MAX];
        if (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0) {
            *pass->command = COMMAND_HELP;
            return 0;
        }
        if (strcmp(arg, "--version") == 0 || strcmp(arg, "-V") == 0) {
            *pass->command = COMMAND_VERSION;
            return 0;
        }
        if (!flag_name(arg, name, &value)) return unknown_flag(arg, e);
        const struct config_key *key = config_find(name);
        if (!key && strcmp(name, "config") != 0) return unknown_flag(arg, e);
        if (!value && key && key->kind == CONFIG_BOOL) value = "true";
        if (!value && ++i == argc)
            return error_set(e, ERR_USAGE, "%s needs a value: see tpd --help", arg);
        if (!value) value = argv[i];
        int rc = take_flag(pass, arg, key, value, e);
        if (rc != 0) return rc;
    }
    return 0;
}

int command_line_read(struct daemon_config *config, enum command *command, int argc, char **argv,
                      struct error *e) {
    *command = COMMAND_RUN;
    int rc = config_init(config, e);
    struct pass pass = {.config_file = true, .config = config, .command = command};
    if (rc == 0) rc = read_flags(&pass, argc, argv, e);
    if (rc != 0 || *command != COMMAND_RUN) return rc;
    if (pass.config_path) rc = config_read_file(config, pass.config_path, e);
    pass.config_file = false;
    if (rc == 0) rc = read_flags(&pass, argc, argv, e);
    if (rc == 0 && *config->model == '\0')
        rc = error_set(e, ERR_USAGE, "no model given: tpd --model PATH (see tpd --help)");
    return rc == 0 ? device_settle(config, e) : rc;
}

/* Prints text in lines of at most 70 bytes, each after the first indented. */
static void print_wrapped(const char *text) {
    enum { WIDTH = 70 };
    while (strlen(text) > WIDTH) {
        size_t n = WIDTH;
        while (n > 0 && text[n] != ' ') n--;
        if (n == 0) break;
        printf("        %.*s\n", (int)n, text);
        text += n + 1;
    }
    printf("        %s\n", text);
}

/* What stands for the value of a flag. */
static const char *value_name(const struct config_key *key) {
    if (key->choices) return key->choices;
    switch (key->kind) {
    case CONFIG_BYTES: return "BYTES";
    case CONFIG_FRACTION: return "PART";
    case CONFIG_MODE: return "MODE";
    case CONFIG_USERS: return "USERS";
    case CONFIG_GROUPS: return "GROUPS";
    case CONFIG_TEXT: return "TEXT";
    default: return "N";
    }
}

/* "    --kv-type auto|f32 [auto]" */
static void print_flag(const struct config_key *key) {
    char flag[FLAG_MAX];
    snprintf(flag, sizeof flag, "%s", key->name);
    for (char *at = flag; *at; at++)
        if (*at == '_') *at = '-';
    if (key->kind == CONFIG_BOOL) printf("    --%s[=true|false]", flag);
    else printf("    --%s %s", flag, value_name(key));
    if (*key->standard) printf(" [%s]", key->standard);
    printf("\n");
}

void command_line_help(void) {
    printf("usage: tpd --model PATH [--tp N] [flags]      run the daemon\n"
           "       tpd inspect PATH [--json]              check a model file, show what it holds\n"
           "       tpd plan PATH [--tp N] [--ctx N] …     what it takes of each rank to serve or train it\n"
           "       tpd merge MODEL ADAPTER OUT [--json]   write a model and its adapter as one model\n"
           "       tpd quantize IN OUT q8|q4 [--json]     write a model in groups of 8 or 4 bits\n"
           "       tpd tokenize PATH [--special]          JSON lines of text to token ids\n"
           "       tpd detokenize PATH [--stream]         JSON lines of token ids to text\n"
           "       tpd template PATH                      JSON lines of messages to what the model reads\n"
           "       tpd --help | --version\n\n"
           "flags (each is also a key of the configuration file, with _ for -):\n"
           "    --config FILE\n"
           "        read settings from FILE first; flags override it\n");
    for (size_t i = 0; i < config_n_keys; i++) {
        print_flag(&config_keys[i]);
        print_wrapped(config_keys[i].meaning);
    }
    printf("\nexit: 0 ended as asked; 64 usage; 65 bad model file; 66 no such file; 70 internal;\n"
           "      74 input/output; 75 another tpd has the socket or the state; 77 not permitted;\n"
           "      78 bad configuration\n");
}
