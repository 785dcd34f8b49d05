/* The daemon's settings: what the file, the flags and etc/tpd.conf promise. */
#include "base/file.h"
#include "daemon/command_line.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Writes text to a file and reads it as settings; the file is gone afterwards. */
static int read_text(struct daemon_config *config, const char *text, struct error *e) {
    char path[] = "/tmp/tpd-conf-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    assert_int_equal(config_init(config, e), 0);
    int rc = config_read_file(config, path, e);
    unlink(path);
    return rc;
}

static void refused(const char *text, const char *line, const char *says) {
    struct daemon_config config;
    struct error e;
    assert_int_not_equal(read_text(&config, text, &e), 0);
    assert_int_equal(e.kind, ERR_CONFIG);
    assert_int_equal(error_class(e.kind)->exit_code, EXIT_BAD_CONFIG);
    if (!strstr(e.message, line) || !strstr(e.message, says)) fail_msg("message: %s", e.message);
    config_free(&config);
}

static void a_file_sets_what_it_names(void **state) {
    (void)state;
    struct daemon_config c;
    struct error e;
    const char *text = "# a comment\n\n  model = /m/a b#c  # not part\r\ntp=3\nmax_message = 2M\n"
                       "socket_mode = 0600\nallow_uid = 0, 1000 1001\nlog_json = yes\nkv_type=bf16";
    assert_int_equal(read_text(&c, text, &e), 0);
    assert_string_equal(c.model, "/m/a b#c");
    assert_int_equal(c.tp, 3);
    assert_int_equal(c.max_message, 2 << 20);
    assert_int_equal(c.socket_mode, 0600);
    assert_int_equal(c.allow_uid.n, 3);
    assert_int_equal(c.allow_uid.ids[2], 1001);
    assert_true(c.log_json);
    assert_string_equal(c.kv_type, "bf16");
    assert_int_equal(c.slots, 16);
    config_free(&c);
}

static void a_wrong_line_is_named(void **state) {
    (void)state;
    refused("tp = 2\nslotz = 4\n", ":2:", "did you mean slots?");
    refused("qwertyuiop = 4\n", ":1:", "unknown key");
    refused("\n\ntp = two\n", ":3:", "integer");
    refused("tp = -1\n", ":1:", "from 0");
    refused("tp = 99999999999999999999\n", ":1:", "integer");
    refused("tp = 2x\n", ":1:", "integer");
    refused("max_message = 99999999999G\n", ":1:", "max_message");
    refused("max_message = 5Q\n", ":1:", "max_message");
    refused("memory_fraction = 1.5\n", ":1:", "a number from 0 to 1");
    refused("memory_fraction = nan\n", ":1:", "a number from 0 to 1");
    refused("memory_fraction = 0.5x\n", ":1:", "a number from 0 to 1");
    refused("socket_mode = 999\n", ":1:", "octal");
    refused("log_level = loud\n", ":1:", "error|warn|info|debug");
    refused("log_json = maybe\n", ":1:", "true or false");
    refused("allow_uid = nobody-of-this-name\n", ":1:", "nobody-of-this-name");
    refused("admin_uid = ,\n", ":1:", "admin_uid"); /* else it would let everybody in */
    refused("just words\n", ":1:", "key = value");
}

static void a_missing_file_is_missing(void **state) {
    (void)state;
    struct daemon_config c;
    struct error e;
    assert_int_equal(config_init(&c, &e), 0);
    assert_int_not_equal(config_read_file(&c, "/nonexistent/tpd.conf", &e), 0);
    assert_int_equal(error_class(e.kind)->exit_code, EXIT_NO_FILE);
    config_free(&c);
}

static int flags(struct daemon_config *c, enum command *command, struct error *e, int n, ...) {
    char *argv[16] = {(char *)"tpd"};
    va_list args;
    va_start(args, n);
    for (int i = 0; i < n; i++) argv[i + 1] = va_arg(args, char *);
    va_end(args);
    return command_line_read(c, command, n + 1, argv, e);
}

static void flags_win_over_the_file_wherever_it_is_named(void **state) {
    (void)state;
    struct daemon_config c;
    struct error e;
    enum command command;
    char path[] = "/tmp/tpd-conf-XXXXXX";
    int fd = mkstemp(path);
    assert_int_equal(write(fd, "tp = 2\nslots = 5\n", 17), 17);
    close(fd);
    assert_int_equal(
        flags(&c, &command, &e, 6, "--tp", "4", "--config", path, "--model=/m", "--log-json"), 0);
    assert_int_equal(command, COMMAND_RUN);
    assert_int_equal(c.tp, 4);
    assert_int_equal(c.slots, 5);
    assert_string_equal(c.model, "/m");
    assert_true(c.log_json);
    unlink(path);
    config_free(&c);
}

static void usage(const char *says, int n, const char *one, const char *two) {
    struct daemon_config c;
    struct error e;
    enum command command;
    assert_int_not_equal(flags(&c, &command, &e, n, one, two), 0);
    assert_int_equal(error_class(e.kind)->exit_code, EXIT_USAGE);
    if (!strstr(e.message, says)) fail_msg("message: %s", e.message);
    config_free(&c);
}

static void wrong_flags_are_usage_errors_with_a_hint(void **state) {
    (void)state;
    usage("did you mean kv-type?", 1, "--kv-typ", NULL);
    usage("--tp: tp must be", 2, "--tp", "many");
    usage("needs a value", 1, "--tp", NULL);
    usage("unexpected argument", 1, "model.gguf", NULL);
    usage("--draft-tp: draft_tp must be", 2, "--draft-tp", "0");
    usage("no model", 0, NULL, NULL);
    usage("unexpected argument", 1, "--=3", NULL);
}

/* The ranks of `--device DEVICE --tp TP` (NULL: not given); -1 when that is refused. */
static int64_t ranks_of(const char *device, const char *tp, const char *says) {
    struct daemon_config c;
    struct error e = {0};
    enum command command;
    int rc = flags(&c, &command, &e, tp ? 6 : 4, "--model", "/m", "--device", device, "--tp", tp);
    int64_t ranks = rc == 0 ? c.tp : -1;
    if (rc != 0 && !strstr(e.message, says)) fail_msg("%s: %s", device, e.message);
    config_free(&c);
    return ranks;
}

static void a_list_of_gpus_has_one_for_each_rank(void **state) {
    (void)state;
    assert_int_equal(ranks_of("auto", NULL, ""), 1);
    assert_int_equal(ranks_of("cpu:0-3", "2", ""), 2);
    assert_int_equal(ranks_of("cuda", "4", ""), 4);
    assert_int_equal(ranks_of("cuda:3", NULL, ""), 1);
    assert_int_equal(ranks_of("cuda:0,0", NULL, ""), 2);
    assert_int_equal(ranks_of("cuda:1,0", "2", ""), 2);
    assert_int_equal(ranks_of("cuda:0,1", "3", "tp is 3, but device cuda:0,1 names 2 devices"), -1);
    assert_int_equal(ranks_of("cuda:0", "2", "tp is 2, but device cuda:0 names 1 device:"), -1);
    static const char *const wrong[] = {"cuda:",     "cuda:a",   "cuda:0,",   "cuda:,0", "cuda:-1",
                                        "cuda:0 1", "cuda:0,,1", "cuda:+1", "cuda:1024", "cuda:99999999999999999999"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(ranks_of(wrong[i], NULL, "behind cuda: come up to 64 device numbers"), -1);
    assert_int_equal(ranks_of("cudas", NULL, "device must be auto, cpu"), -1);
    assert_int_equal(ranks_of("gpu", NULL, "device must be auto, cpu"), -1);
}

static void help_and_version_need_no_model(void **state) {
    (void)state;
    struct daemon_config c;
    struct error e;
    enum command command;
    assert_int_equal(flags(&c, &command, &e, 1, "--help"), 0);
    assert_int_equal(command, COMMAND_HELP);
    config_free(&c);
    assert_int_equal(flags(&c, &command, &e, 1, "--version"), 0);
    assert_int_equal(command, COMMAND_VERSION);
    config_free(&c);
}

/* "# key = default" stands in the file for every key. */
static void the_sample_file_shows_every_key_with_its_default(void **state) {
    (void)state;
    struct error e;
    char *text, line[256];
    size_t size;
    assert_int_equal(file_read("etc/tpd.conf", 1 << 20, &text, &size, &e), 0);
    for (size_t i = 0; i < config_n_keys; i++) {
        const struct config_key *key = &config_keys[i];
        const char *space = *key->standard ? " " : "";
        snprintf(line, sizeof line, "\n# %s =%s%s\n", key->name, space, key->standard);
        if (!strstr(text, line)) fail_msg("etc/tpd.conf has no line \"%s\"", line);
    }
    free(text);
    struct daemon_config c;
    assert_int_equal(config_init(&c, &e), 0);
    assert_int_equal(config_read_file(&c, "etc/tpd.conf", &e), 0);
    config_free(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_sets_what_it_names),
        cmocka_unit_test(a_wrong_line_is_named),
        cmocka_unit_test(a_missing_file_is_missing),
        cmocka_unit_test(flags_win_over_the_file_wherever_it_is_named),
        cmocka_unit_test(wrong_flags_are_usage_errors_with_a_hint),
        cmocka_unit_test(a_list_of_gpus_has_one_for_each_rank),
        cmocka_unit_test(help_and_version_need_no_model),
        cmocka_unit_test(the_sample_file_shows_every_key_with_its_default),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
