#include "daemon/config.h"

#include "base/file.h"
#include "base/words.h"

#include <ctype.h>
#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AT(field) offsetof(struct daemon_config, field)

const struct config_key config_keys[] = {
    {"model", CONFIG_TEXT, AT(model), "", 0, 0, "PATH",
     "the model: a Hugging Face directory or a .gguf file"},
    {"quant", CONFIG_CHOICE, AT(quant), "none", 0, 0, "none|q8|q4",
     "serve a model of f32, f16 or bf16 weights in groups of 8 or 4 bits; the result is kept in "
     "state_dir, so only the first start makes it"},
    {"init", CONFIG_INT, AT(init), "-1", -1, INT64_MAX, NULL,
     "begin a model: its directory has config.json and a tokenizer but no weights, which are drawn "
     "from this seed; -1 = the weights are there"},
    {"draft", CONFIG_TEXT, AT(draft), "", 0, 0, "PATH",
     "a smaller model with the same vocabulary, which guesses ahead so that a step makes several tokens"},
    {"draft_tp", CONFIG_INT, AT(draft_tp), "1", 1, 64, NULL,
     "how many of the ranks the draft model is split over"},
    {"tp", CONFIG_INT, AT(tp), "0", 0, 64, NULL,
     "how many ranks the model is split over (tensor parallelism); 0 = one for each number of "
     "cuda:LIST, else 1"},
    {"device", CONFIG_TEXT, AT(device), "auto", 0, 0, "DEVICE",
     "cpu: the cores this process may use (cpu:0-3,8 names them); cuda:0,1: a GPU for each rank "
     "(cuda:0,0 shares one), cuda: the first tp; auto: GPUs where there are enough, else cpu"},
    {"threads", CONFIG_INT, AT(threads), "0", 0, 1024, NULL,
     "cores in all, dealt to the ranks; 0 = all that the device has"},
    {"ctx", CONFIG_INT, AT(ctx), "0", 0, 1 << 24, NULL,
     "longest sequence in tokens, prompt and answer; 0 = what the model was made for"},
    {"slots", CONFIG_INT, AT(slots), "16", 1, 4096, NULL, "requests that run at the same time"},
    {"max_queue", CONFIG_INT, AT(max_queue), "256", 1, 65536, NULL,
     "requests that wait; one more is refused as overloaded"},
    {"step_tokens", CONFIG_INT, AT(step_tokens), "512", 16, 65536, NULL,
     "tokens of the largest step: those that requests make and what is read of prompts beside them"},
    {"train_share", CONFIG_INT, AT(train_share), "30", 0, 90, NULL,
     "percent of the time that a fine-tune job gets while requests are live"},
    {"keep_results", CONFIG_INT, AT(keep_results), "0", 0, 1000, NULL,
     "results of earlier jobs of a name that stay beside those in use; 0 = all"},
    {"kv_type", CONFIG_CHOICE, AT(kv_type), "auto", 0, 0, "auto|f32|f16|bf16|q8",
     "type of the KV cache; auto = f32 for an f32 model, else f16; q8 takes half of f16"},
    {"activations", CONFIG_CHOICE, AT(activations), "auto", 0, 0, "auto|f32",
     "what weights are multiplied with when text is served; auto = int8 beside quantised weights, bf16 beside "
     "bf16 and in attention where the CPU multiplies it, else f32; f32 rounds nothing, and is slower"},
    {"kv_memory", CONFIG_BYTES, AT(kv_memory), "0", 0, INT64_MAX, NULL,
     "bytes of KV cache on one rank (K, M, G); 0 = slots times ctx, or half of what is free"},
    {"memory_fraction", CONFIG_FRACTION, AT(memory_fraction), "0", 0, 1, NULL,
     "part of a rank's free memory that the model takes: weights, a step's activations and the KV cache; "
     "0 = 0.9 on GPUs, on CPUs at most half of what the weights leave"},
    {"memory_limit", CONFIG_BYTES, AT(memory_limit), "0", 0, INT64_MAX, NULL,
     "bytes one rank may hold (K, M, G); 0 = what the machine has"},
    {"socket", CONFIG_TEXT, AT(socket), "", 0, 0, "PATH",
     "path of the socket; empty = $TPD_SOCKET, else $XDG_RUNTIME_DIR/tpd/tpd.sock, else "
     "/run/tpd/tpd.sock (root, user tpd), else ~/.tpd/tpd.sock"},
    {"socket_mode", CONFIG_MODE, AT(socket_mode), "0660", 0, 0777, NULL,
     "permissions of the socket, in octal"},
    {"socket_group", CONFIG_TEXT, AT(socket_group), "", 0, 0, "GROUP",
     "group that owns the socket; empty = the daemon's own"},
    {"allow_uid", CONFIG_USERS, AT(allow_uid), "", 0, 0, NULL,
     "users that may connect (names or numbers); with allow_gid empty too, all that the mode lets "
     "in"},
    {"allow_gid", CONFIG_GROUPS, AT(allow_gid), "", 0, 0, NULL, "groups that may connect"},
    {"admin_uid", CONFIG_USERS, AT(admin_uid), "", 0, 0, NULL,
     "users that may call what changes the daemon (shutdown …); with admin_gid empty too, all"},
    {"admin_gid", CONFIG_GROUPS, AT(admin_gid), "", 0, 0, NULL, "groups that may do so"},
    {"listen", CONFIG_TEXT, AT(listen), "", 0, 0, "ADDRESS",
     "address for HTTP over TCP, as 127.0.0.1:8080; empty = the socket alone"},
    {"api_key", CONFIG_TEXT, AT(api_key), "", 0, 0, "KEYS",
     "key or keys (separated by commas) that HTTP over TCP asks for; needed beyond this machine"},
    {"model_name", CONFIG_TEXT, AT(model_name), "", 0, 0, "NAME",
     "the model's name in the OpenAI API; empty = the last part of its path"},
    {"chat_template", CONFIG_TEXT, AT(chat_template), "", 0, 0, "NAME|FILE",
     "how conversations are written, instead of the model's own way: a .jinja file, or chatml, llama2, "
     "llama3, mistral, gemma, phi3, zephyr, vicuna, alpaca"},
    {"state_dir", CONFIG_TEXT, AT(state_dir), "", 0, 0, "DIR",
     "what the daemon keeps; empty = /var/lib/tpd (root, user tpd), else $XDG_STATE_HOME/tpd, else "
     "~/.local/state/tpd"},
    {"data_dir", CONFIG_TEXT, AT(data_dir), "", 0, 0, "DIR",
     "fine-tune jobs read data here and nowhere else; empty = the directory data in state_dir"},
    {"max_connections", CONFIG_INT, AT(max_connections), "1024", 1, 65536, NULL,
     "connections at once"},
    {"max_requests", CONFIG_INT, AT(max_requests), "256", 1, 65536, NULL,
     "live requests of one connection"},
    {"max_message", CONFIG_BYTES, AT(max_message), "8M", 1024, 1 << 28, NULL,
     "longest message of a client; over it the connection closes"},
    {"max_upload", CONFIG_BYTES, AT(max_upload), "64M", 1024, 1 << 30, NULL,
     "bytes of a file that is sent to /v1/files (K, M, G)"},
    {"max_outbound", CONFIG_BYTES, AT(max_outbound), "1M", 4096, 1 << 28, NULL,
     "unread answers of a client at which its generations pause"},
    {"slow_client_s", CONFIG_INT, AT(slow_client_s), "30", 1, 86400, NULL,
     "a client that stays paused so many seconds is dropped"},
    {"drain_timeout_s", CONFIG_INT, AT(drain_timeout_s), "30", 0, 86400, NULL,
     "how long SIGTERM lets live requests run before it cancels them"},
    {"device_timeout_s", CONFIG_INT, AT(device_timeout_s), "30", 1, 3600, NULL,
     "a rank that waits so long for its peers gives the step up"},
    {"debug_alias", CONFIG_BOOL, AT(debug_alias), "false", 0, 0, NULL,
     "hand out device memory that the host cannot read, so that a wrong access faults at once"},
    {"log_level", CONFIG_CHOICE, AT(log_level), "info", 0, 0, "error|warn|info|debug",
     "what is written to stderr"},
    {"log_json", CONFIG_BOOL, AT(log_json), "false", 0, 0, NULL, "log lines as JSON objects"},
};

const size_t config_n_keys = sizeof config_keys / sizeof *config_keys;

const struct config_key *config_find(const char *name) {
    for (size_t i = 0; i < config_n_keys; i++)
        if (strcmp(config_keys[i].name, name) == 0) return &config_keys[i];
    return NULL;
}

static void *field_of(struct daemon_config *config, const struct config_key *key) {
    return (char *)config + key->offset;
}

static int refuse(struct error *e, const struct config_key *key, const char *expected,
                  const char *value) {
    return error_set(e, ERR_CONFIG, "%s must be %s, not \"%s\"", key->name, expected, value);
}

static int set_text(char **field, const char *value, struct error *e) {
    char *copy = strdup(value);
    if (!copy) return error_set(e, ERR_MEMORY, "no memory for the configuration");
    free(*field);
    *field = copy;
    return 0;
}

/* Factor that a suffix stands for; 0 when it is not one. */
static int64_t suffix_factor(const char *suffix) {
    if (*suffix == '\0') return 1;
    if (suffix[1] != '\0' && strcasecmp(suffix + 1, "iB") != 0 && strcasecmp(suffix + 1, "B") != 0)
        return 0;
    switch (toupper((unsigned char)*suffix)) {
    case 'K': return 1 << 10;
    case 'M': return 1 << 20;
    case 'G': return 1 << 30;
    }
    return 0;
}

static int set_number(int64_t *field, const struct config_key *key, const char *value,
                      struct error *e) {
    char expected[120];
    if (key->kind == CONFIG_MODE)
        snprintf(expected, sizeof expected, "an octal mode from 0 to %llo",
                 (unsigned long long)key->max);
    else
        snprintf(expected, sizeof expected, "an integer from %lld to %lld%s", (long long)key->min,
                 (long long)key->max, key->kind == CONFIG_BYTES ? " (K, M, G are taken)" : "");
    char *end;
    errno = 0;
    long long number = strtoll(value, &end, key->kind == CONFIG_MODE ? 8 : 10);
    if (end == value || errno != 0) return refuse(e, key, expected, value);
    int64_t factor = key->kind == CONFIG_BYTES ? suffix_factor(end) : *end == '\0';
    int64_t scaled;
    if (factor == 0 || __builtin_mul_overflow(number, factor, &scaled) || scaled < key->min ||
        scaled > key->max)
        return refuse(e, key, expected, value);
    *field = scaled;
    return 0;
}

static int set_fraction(double *field, const struct config_key *key, const char *value,
                        struct error *e) {
    char *end;
    double number = strtod(value, &end);
    if (end == value || *end != '\0' || !(number >= 0 && number <= 1))
        return refuse(e, key, "a number from 0 to 1", value);
    *field = number;
    return 0;
}

static int set_bool(bool *field, const struct config_key *key, const char *value, struct error *e) {
    static const char *const words[][2] = {
        {"false", "true"}, {"no", "yes"}, {"off", "on"}, {"0", "1"}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        for (int truth = 0; truth < 2; truth++)
            if (strcmp(value, words[i][truth]) == 0) {
                *field = truth;
                return 0;
            }
    return refuse(e, key, "true or false", value);
}

bool config_id_of(enum config_kind kind, const char *word, uint32_t *id) {
    char *end;
    errno = 0;
    unsigned long long number = strtoull(word, &end, 10);
    if (isdigit((unsigned char)*word) && *end == '\0') {
        *id = (uint32_t)number;
        return errno == 0 && number < UINT32_MAX;
    }
    if (kind == CONFIG_USERS) {
        const struct passwd *user = getpwnam(word);
        if (user) *id = user->pw_uid;
        return user != NULL;
    }
    const struct group *group = getgrnam(word);
    if (group) *id = group->gr_gid;
    return group != NULL;
}

static int set_ids(struct id_list *field, const struct config_key *key, const char *value,
                   struct error *e) {
    const char *what = key->kind == CONFIG_USERS ? "a list of users" : "a list of groups";
    struct id_list list = {0};
    char *words = strdup(value), *save = NULL;
    if (!words) return error_set(e, ERR_MEMORY, "no memory for the configuration");
    int rc = 0;
    for (char *word = strtok_r(words, ", \t", &save); word && rc == 0;
         word = strtok_r(NULL, ", \t", &save)) {
        if (list.n == ID_LIST_MAX)
            rc = error_set(e, ERR_CONFIG, "%s has more than %d entries", key->name, ID_LIST_MAX);
        else if (!config_id_of(key->kind, word, &list.ids[list.n++]))
            rc = error_set(e, ERR_CONFIG, "%s must be %s: \"%s\" is not a known name or a number",
                           key->name, what, word);
    }
    free(words);
    if (rc == 0 && *value && list.n == 0)
        rc = refuse(e, key, "a list with names or numbers in it, or empty", value);
    if (rc == 0) *field = list;
    return rc;
}

int config_set(struct daemon_config *config, const struct config_key *key, const char *value,
               struct error *e) {
    void *field = field_of(config, key);
    char expected[120];
    switch (key->kind) {
    case CONFIG_CHOICE:
        if (!word_among(key->choices, value)) {
            snprintf(expected, sizeof expected, "one of %s", key->choices);
            return refuse(e, key, expected, value);
        }
        return set_text(field, value, e);
    case CONFIG_TEXT: return set_text(field, value, e);
    case CONFIG_INT:
    case CONFIG_BYTES:
    case CONFIG_MODE: return set_number(field, key, value, e);
    case CONFIG_FRACTION: return set_fraction(field, key, value, e);
    case CONFIG_BOOL: return set_bool(field, key, value, e);
    case CONFIG_USERS:
    case CONFIG_GROUPS: return set_ids(field, key, value, e);
    }
    return 0;
}

int config_init(struct daemon_config *config, struct error *e) {
    *config = (struct daemon_config){0};
    int rc = 0;
    for (size_t i = 0; i < config_n_keys && rc == 0; i++)
        rc = config_set(config, &config_keys[i], config_keys[i].standard, e);
    return rc;
}

void config_free(struct daemon_config *config) {
    for (size_t i = 0; i < config_n_keys; i++) {
        if (config_keys[i].kind != CONFIG_TEXT && config_keys[i].kind != CONFIG_CHOICE) continue;
        char **field = field_of(config, &config_keys[i]);
        free(*field);
        *field = NULL;
    }
}

static char *trim(char *text) {
    while (isspace((unsigned char)*text)) text++;
    size_t n = strlen(text);
    while (n > 0 && isspace((unsigned char)text[n - 1])) text[--n] = '\0';
    return text;
}

/* A # starts a comment at the start of a line or after white space: paths may have one inside. */
static void cut_comment(char *line) {
    for (char *at = line; *at; at++)
        if (*at == '#' && (at == line || isspace((unsigned char)at[-1]))) {
            *at = '\0';
            return;
        }
}

/* One line of a file, which it may write into. */
static int set_line(struct daemon_config *config, char *line, struct error *e) {
    cut_comment(line);
    line = trim(line);
    if (*line == '\0') return 0;
    char *equals = strchr(line, '=');
    if (!equals)
        return error_set(e, ERR_CONFIG, "\"%s\" is not a setting: write key = value", line);
    *equals = '\0';
    const char *name = trim(line), *value = trim(equals + 1);
    const struct config_key *key = config_find(name);
    if (!key) {
        struct suggestion near;
        char hint[80];
        suggest_start(&near, name);
        for (size_t i = 0; i < config_n_keys; i++) suggest_offer(&near, config_keys[i].name);
        return error_set(e, ERR_CONFIG, "unknown key \"%s\"%s", name,
                         suggest_text(&near, hint, sizeof hint));
    }
    return config_set(config, key, value, e);
}

int config_read_file(struct daemon_config *config, const char *path, struct error *e) {
    enum { MAX_FILE = 1 << 20 };
    char *text;
    size_t size;
    int rc = file_read(path, MAX_FILE, &text, &size, e);
    if (rc != 0) {
        if (e && e->kind == ERR_BAD_FILE) e->kind = ERR_CONFIG;
        return rc;
    }
    if (strlen(text) != size)
        rc = error_set(e, ERR_CONFIG, "%s: has a NUL byte: not a text file", path);
    char *next = strncmp(text, "\xEF\xBB\xBF", 3) == 0 ? text + 3 : text; /* a BOM is no setting */
    for (int number = 1; next && rc == 0; number++) {
        char *line = strsep(&next, "\n");
        rc = set_line(config, line, e);
        if (rc != 0) rc = error_prefix(e, "%s:%d: ", path, number);
    }
    free(text);
    return rc;
}
