/* daemon/config.h: the daemon's settings, from etc/tpd.conf and from flags.
 *
 * One table (config_keys) lists every key with its kind, range, default and meaning; the file, the
 * flags (`--kv-type` for kv_type), `--help` and the test of etc/tpd.conf all read it. Filled by
 * main before anything starts; read-only afterwards. Failures are ERR_CONFIG (file) or ERR_USAGE
 * (flags).
 */
#ifndef TPD_DAEMON_CONFIG_H
#define TPD_DAEMON_CONFIG_H

#include "base/error.h"

#include <sys/types.h>

enum { ID_LIST_MAX = 64 };

/* Users or groups by number. */
struct id_list {
    int n;
    uint32_t ids[ID_LIST_MAX];
};

/* Strings are owned and never NULL; empty means not set. */
struct daemon_config {
    char *model, *draft, *quant, *device, *kv_type, *activations;
    int64_t init, draft_tp, tp, threads, ctx, slots, max_queue, step_tokens, train_share, keep_results, kv_memory;
    int64_t memory_limit;
    double memory_fraction;
    bool debug_alias;
    char *socket, *socket_group, *state_dir, *data_dir;
    char *listen, *api_key, *model_name, *chat_template;
    int64_t socket_mode;
    struct id_list allow_uid, allow_gid, admin_uid, admin_gid;
    int64_t max_connections, max_requests, max_message, max_upload, max_outbound;
    int64_t slow_client_s, drain_timeout_s, device_timeout_s;
    char *log_level;
    bool log_json;
};

enum config_kind {
    CONFIG_TEXT,
    CONFIG_CHOICE, /* one of the words in `choices` */
    CONFIG_INT,
    CONFIG_BYTES, /* an integer with K, M or G */
    CONFIG_FRACTION, /* a number from 0 to 1 */
    CONFIG_MODE,  /* octal */
    CONFIG_BOOL,
    CONFIG_USERS, /* numbers or names, separated by spaces or commas */
    CONFIG_GROUPS
};

struct config_key {
    const char *name;
    enum config_kind kind;
    size_t offset;        /* in struct daemon_config */
    const char *standard; /* the default, as a file would have it */
    int64_t min, max;
    const char *choices; /* "auto|f32|f16"; of a text what help calls it, such as "PATH", or NULL */
    const char *meaning;
};

extern const struct config_key config_keys[];
extern const size_t config_n_keys;

/* Everything at its default. */
int config_init(struct daemon_config *config, struct error *e);
void config_free(struct daemon_config *config);
const struct config_key *config_find(const char *name);
/* The number of a user (CONFIG_USERS) or a group, given by number or name; false: no such one. */
bool config_id_of(enum config_kind kind, const char *word, uint32_t *id);
/* The message says what the value must be; the caller puts where it stood in front. */
int config_set(struct daemon_config *config, const struct config_key *key, const char *value,
               struct error *e);
/* Lines of `key = value`; `#` starts a comment. Errors name the file and the line. */
int config_read_file(struct daemon_config *config, const char *path, struct error *e);

#endif
