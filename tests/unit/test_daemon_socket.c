/* The socket: where it is, who owns it, who may come in. */
#include "daemon/access.h"
#include "daemon/listener.h"
#include "daemon/lock.h"
#include "daemon/notify.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[64];
static struct daemon_config config;

static int setup(void **state) {
    (void)state;
    struct error e;
    snprintf(dir, sizeof dir, "/tmp/tpd-socket-XXXXXX");
    if (!mkdtemp(dir)) return -1;
    return config_init(&config, &e);
}

static int teardown(void **state) {
    (void)state;
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    config_free(&config);
    return system(command);
}

static void set(const char *name, const char *value) {
    struct error e;
    assert_int_equal(config_set(&config, config_find(name), value, &e), 0);
}

/* Sets the socket to dir/name and returns its path. */
static const char *socket_at(const char *name) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    set("socket", path);
    return config.socket;
}

static mode_t mode_of(const char *path) {
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return st.st_mode & 07777;
}

static void refused(enum error_kind kind, const char *says) {
    struct listener listener;
    struct error e;
    assert_int_not_equal(listener_open(&listener, &config, &e), 0);
    assert_int_equal(e.kind, kind);
    if (!strstr(e.message, says)) fail_msg("message: %s", e.message);
    assert_int_equal(listener.fd, -1);
}

static void the_socket_has_its_mode_and_a_private_directory(void **state) {
    (void)state;
    struct listener listener;
    struct error e;
    char made[128];
    const char *path = socket_at("new/deeper/tpd.sock");
    mode_t old = umask(0);
    assert_int_equal(listener_open(&listener, &config, &e), 0);
    umask(old);
    assert_int_equal(mode_of(path), 0660);
    snprintf(made, sizeof made, "%s/new/deeper", dir);
    assert_int_equal(mode_of(made), 0700);
    listener_close(&listener);
    assert_int_not_equal(access(path, F_OK), 0);
    set("socket_mode", "0600");
    assert_int_equal(listener_open(&listener, &config, &e), 0);
    assert_int_equal(mode_of(path), 0600);
    listener_close(&listener);
}

static void a_path_over_the_limit_is_refused_not_cut(void **state) {
    (void)state;
    char name[200];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    socket_at(name);
    refused(ERR_CONFIG, "107");
}

static void the_longest_path_works(void **state) {
    (void)state;
    char name[108];
    size_t n = 107 - strlen(dir) - 1;
    memset(name, 'y', n);
    name[n] = '\0';
    struct listener listener;
    struct error e;
    const char *path = socket_at(name);
    assert_int_equal(strlen(path), 107);
    assert_int_equal(listener_open(&listener, &config, &e), 0);
    assert_int_equal(access(path, F_OK), 0);
    listener_close(&listener);
}

static void a_directory_open_to_all_is_refused(void **state) {
    (void)state;
    assert_int_equal(chmod(dir, 0777), 0);
    socket_at("tpd.sock");
    refused(ERR_CONFIG, "everybody may write");
    assert_int_equal(chmod(dir, 01777), 0); /* as /tmp: nobody can replace what is another's */
    struct listener listener;
    struct error e;
    assert_int_equal(listener_open(&listener, &config, &e), 0);
    listener_close(&listener);
}

static void a_stale_socket_is_replaced_and_a_file_is_not(void **state) {
    (void)state;
    struct listener first, second;
    struct error e;
    const char *path = socket_at("tpd.sock");
    assert_int_equal(listener_open(&first, &config, &e), 0);
    close(first.lock_fd); /* as a daemon that was killed */
    close(first.fd);
    free(first.path);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(listener_open(&second, &config, &e), 0);
    listener_close(&second);
    FILE *file = fopen(path, "w");
    fclose(file);
    refused(ERR_CONFIG, "not a socket");
    assert_int_equal(access(path, F_OK), 0);
}

static void the_second_owner_is_told_of_the_first(void **state) {
    (void)state;
    struct listener listener;
    struct error e;
    char pid[32];
    socket_at("tpd.sock");
    assert_int_equal(listener_open(&listener, &config, &e), 0);
    snprintf(pid, sizeof pid, "pid %ld", (long)getpid());
    refused(ERR_CONFLICT, pid);
    assert_int_equal(error_class(ERR_CONFLICT)->exit_code, EXIT_BUSY);
    assert_int_equal(access(config.socket, F_OK), 0); /* the first one's is still there */
    listener_close(&listener);
}

static void a_state_directory_has_one_owner(void **state) {
    (void)state;
    struct error e;
    int first, second;
    char path[128], *opened;
    snprintf(path, sizeof path, "%s/state", dir);
    set("state_dir", path);
    assert_int_equal(state_dir_open(&config, &first, &opened, &e), 0);
    assert_string_equal(opened, path);
    free(opened);
    assert_int_equal(mode_of(path), 0700);
    assert_int_not_equal(state_dir_open(&config, &second, &opened, &e), 0);
    assert_int_equal(e.kind, ERR_CONFLICT);
    close(first);
    assert_int_equal(state_dir_open(&config, &second, &opened, &e), 0);
    free(opened);
    close(second);
}

static void expect_path(const char *expected) {
    char *path;
    struct error e;
    assert_int_equal(listener_choose_path(&config, &path, &e), 0);
    assert_string_equal(path, expected);
    free(path);
}

static void the_path_is_chosen_in_the_order_of_the_protocol(void **state) {
    (void)state;
    setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
    setenv("TPD_SOCKET", "/env/t.sock", 1);
    set("socket", "/flag/t.sock");
    expect_path("/flag/t.sock");
    set("socket", "");
    expect_path("/env/t.sock");
    unsetenv("TPD_SOCKET");
    expect_path("/run/user/7/tpd/tpd.sock");
    unsetenv("XDG_RUNTIME_DIR");
    if (geteuid() == 0) expect_path("/run/tpd/tpd.sock");
}

static void only_listed_users_and_groups_come_in(void **state) {
    (void)state;
    const struct id_list none = {0}, users = {2, {7, 8}}, groups = {1, {50}};
    struct peer peer = {.uid = 1, .gid = 2};
    assert_true(access_allows(&peer, &none, &none));
    assert_false(access_allows(&peer, &users, &none));
    assert_false(access_allows(&peer, &none, &groups));
    peer.uid = 8;
    assert_true(access_allows(&peer, &users, &none));
    assert_true(access_allows(&peer, &users, &groups));
    peer = (struct peer){.uid = 1, .gid = 50};
    assert_true(access_allows(&peer, &users, &groups));
    peer = (struct peer){.uid = 1, .gid = 2, .n_groups = 2, .groups = {3, 50}};
    assert_true(access_allows(&peer, &users, &groups));
}

static void a_peer_is_who_the_kernel_says(void **state) {
    (void)state;
    int pair[2];
    struct peer peer;
    struct error e;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    assert_int_equal(peer_of_socket(&peer, pair[0], &e), 0);
    assert_int_equal(peer.uid, geteuid());
    assert_int_equal(peer.gid, getegid());
    assert_int_equal(peer.pid, getpid());
    close(pair[0]);
    close(pair[1]);
}

static void systemd_hears_what_is_sent(void **state) {
    (void)state;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char text[64] = "";
    snprintf(address.sun_path, sizeof address.sun_path, "%s/notify", dir);
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    setenv("NOTIFY_SOCKET", address.sun_path, 1);
    notify_send("READY=1\nSTATUS=serving");
    assert_int_equal(recv(fd, text, sizeof text - 1, MSG_DONTWAIT), 22);
    assert_string_equal(text, "READY=1\nSTATUS=serving");
    unsetenv("NOTIFY_SOCKET");
    notify_send("READY=1");
    assert_int_equal(recv(fd, text, sizeof text - 1, MSG_DONTWAIT), -1);
    close(fd);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(the_socket_has_its_mode_and_a_private_directory),
        TEST(a_path_over_the_limit_is_refused_not_cut),
        TEST(the_longest_path_works),
        TEST(a_directory_open_to_all_is_refused),
        TEST(a_stale_socket_is_replaced_and_a_file_is_not),
        TEST(the_second_owner_is_told_of_the_first),
        TEST(a_state_directory_has_one_owner),
        TEST(the_path_is_chosen_in_the_order_of_the_protocol),
        TEST(only_listed_users_and_groups_come_in),
        TEST(a_peer_is_who_the_kernel_says),
        TEST(systemd_hears_what_is_sent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
