/* The whole daemon in this process, on a tiny model: loop, engine and worker threads under many
 * clients at once. The sanitizers watch; the end-to-end tests look at what the answers say. */
#include "base/log.h"
#include "daemon/config.h"
#include "daemon/server.h"

#include <jansson.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_CLIENTS = 8, N_ROUNDS = 12 };

static char dir[64];
static struct daemon_config config;

static void set(const char *name, const char *value) {
    struct error e;
    assert_int_equal(config_set(&config, config_find(name), value, &e), 0);
}

static int setup(void **state) {
    (void)state;
    struct error e;
    char path[128];
    snprintf(dir, sizeof dir, "/tmp/tpd-serve-XXXXXX");
    if (!mkdtemp(dir) || config_init(&config, &e) != 0) return -1;
    set("model", "tests/data/models/tiny-chat");
    set("tp", "2");
    set("slots", "3");
    set("max_outbound", "8K");
    snprintf(path, sizeof path, "%s/tpd.sock", dir);
    set("socket", path);
    snprintf(path, sizeof path, "%s/state", dir);
    set("state_dir", path);
    log_setup(LOG_ERROR, false);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    config_free(&config);
    return system(command);
}

static void *serve(void *exit_code) {
    *(int *)exit_code = server_run(&config);
    return NULL;
}

/* Connects as soon as the daemon listens. */
static FILE *connect_client(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", config.socket);
    for (int i = 0; i < 150000; i++) {
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) return fdopen(fd, "r+");
        close(fd);
        usleep(200);
    }
    return NULL;
}

static void say(FILE *client, const char *line) {
    send(fileno(client), line, strlen(line), MSG_NOSIGNAL);
    send(fileno(client), "\n", 1, MSG_NOSIGNAL);
}

/* Reads to the answer with this id: its result, the caller's; NULL when the connection ends or the
 * answer is an error. */
static json_t *result_of(FILE *client, int id) {
    char *line = NULL;
    size_t capacity = 0;
    json_t *result = NULL;
    for (bool found = false; !found && getline(&line, &capacity, client) > 0;) {
        json_t *message = json_loads(line, 0, NULL);
        found = json_integer_value(json_object_get(message, "id")) == id &&
                !json_object_get(message, "method");
        if (found) result = json_incref(json_object_get(message, "result"));
        json_decref(message);
    }
    free(line);
    return result;
}

static bool answered(FILE *client, int id) {
    json_t *result = result_of(client, id);
    json_decref(result);
    return result != NULL;
}

#define REQUEST(id, method, params)                                                                \
    "{\"jsonrpc\":\"2.0\",\"id\":" id ",\"method\":\"" method "\",\"params\":{" params "}}"

/* Streams, scores and tokenises at once, cancels one, and goes away at another point each round. */
static void round_of_requests(FILE *client, unsigned turn, bool *failed) {
    say(client, REQUEST("1", "generate",
                        "\"prompt\":\"Once\",\"max_tokens\":40,\"stream\":true,\"ignore_eos\":true,"
                        "\"logprobs\":5,\"n\":2,\"seed\":7"));
    say(client, REQUEST("2", "score", "\"prompt\":\"Once upon\",\"completion\":\" a time\""));
    say(client, REQUEST("3", "tokenize", "\"text\":\"Once upon a time\",\"special\":true"));
    say(client, REQUEST("4", "generate", "\"prompt\":\"The sea\",\"ignore_eos\":true"));
    say(client, REQUEST("5", "status", ""));
    say(client, REQUEST("6", "metrics", ""));
    say(client, "{\"jsonrpc\":\"2.0\",\"method\":\"cancel\",\"params\":{\"id\":4}}");
    say(client, "{broken");
    if (turn % 3 == 0) return;
    if (turn % 3 == 1 && !answered(client, 3)) *failed = true;
    if (turn % 3 == 2 && !answered(client, 1)) *failed = true;
}

static void *client_main(void *arg) {
    bool *failed = arg;
    for (unsigned i = 0; i < N_ROUNDS; i++) {
        FILE *client = connect_client();
        if (!client) *failed = true;
        if (!client) break;
        round_of_requests(client, i, failed);
        fclose(client);
    }
    return NULL;
}

static void many_clients_at_once_and_a_clean_end(void **state) {
    (void)state;
    pthread_t daemon, clients[N_CLIENTS];
    bool failed[N_CLIENTS] = {false};
    int exit_code = -1;
    assert_int_equal(pthread_create(&daemon, NULL, serve, &exit_code), 0);
    for (int i = 0; i < N_CLIENTS; i++)
        assert_int_equal(pthread_create(&clients[i], NULL, client_main, &failed[i]), 0);
    for (int i = 0; i < N_CLIENTS; i++) {
        pthread_join(clients[i], NULL);
        assert_false(failed[i]);
    }
    FILE *client = connect_client();
    assert_non_null(client);
    say(client, REQUEST("9", "shutdown", "\"drain\":true"));
    assert_true(answered(client, 9));
    pthread_join(daemon, NULL);
    fclose(client);
    assert_int_equal(exit_code, 0);
    assert_int_not_equal(access(config.socket, F_OK), 0);
}

static void a_shutdown_while_loading_ends_cleanly(void **state) {
    (void)state;
    pthread_t daemon;
    int exit_code = -1;
    assert_int_equal(pthread_create(&daemon, NULL, serve, &exit_code), 0);
    FILE *client = connect_client();
    assert_non_null(client);
    say(client, REQUEST("1", "generate", "\"prompt\":\"Once\",\"max_tokens\":4"));
    say(client, REQUEST("2", "shutdown", ""));
    assert_true(answered(client, 2));
    pthread_join(daemon, NULL);
    fclose(client);
    assert_int_equal(exit_code, 0);
}

static void a_drain_while_loading_still_serves_what_waits(void **state) {
    (void)state;
    for (int i = 0; i < 5; i++) {
        pthread_t daemon;
        int exit_code = -1;
        assert_int_equal(pthread_create(&daemon, NULL, serve, &exit_code), 0);
        FILE *client = connect_client();
        assert_non_null(client);
        say(client, REQUEST("1", "generate",
                            "\"prompt\":\"Once\",\"max_tokens\":4,\"ignore_eos\":true"));
        say(client, REQUEST("2", "shutdown", "\"drain\":true"));
        json_t *result = result_of(client, 1);
        assert_string_equal(json_string_value(json_object_get(result, "finish_reason")), "length");
        json_decref(result);
        pthread_join(daemon, NULL);
        fclose(client);
        assert_int_equal(exit_code, 0);
    }
}

static void a_model_that_cannot_load_ends_it_with_its_exit_code(void **state) {
    (void)state;
    int exit_code = -1;
    log_setup((enum log_level) - 1, false); /* the complaint is what is meant to come */
    set("model", "tests/data/models/nothing");
    serve(&exit_code);
    assert_int_equal(exit_code, EXIT_NO_FILE);
    set("model", "tests/data/models/tiny-chat");
    set("tp", "64");
    serve(&exit_code);
    assert_int_equal(exit_code, EXIT_BAD_CONFIG);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(many_clients_at_once_and_a_clean_end),
        TEST(a_shutdown_while_loading_ends_cleanly),
        TEST(a_drain_while_loading_still_serves_what_waits),
        TEST(a_model_that_cannot_load_ends_it_with_its_exit_code),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
