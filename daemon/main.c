/* tpd: the daemon, and the offline commands. */
#include "base/log.h"
#include "daemon/command_line.h"
#include "daemon/merge.h"
#include "daemon/offline_inspect.h"
#include "daemon/offline_plan.h"
#include "daemon/offline_quantize.h"
#include "daemon/offline_template.h"
#include "daemon/offline_text.h"
#include "daemon/server.h"
#include "daemon/version.h"

#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static enum log_level level_of(const char *name) {
    static const char *const names[] = {"error", "warn", "info", "debug"};
    for (int i = 0; i < 4; i++)
        if (strcmp(names[i], name) == 0) return (enum log_level)i;
    return LOG_INFO;
}

/* What CUDA's driver reads when it starts, unless the user has set it: every kernel is loaded before any runs,
 * since loading one would wait for those that wait for it; and each of many ranks' streams on one device is a
 * queue of its own. Now, before there are other threads that read the environment. */
static void prepare_cuda(void) {
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

static int run(const struct daemon_config *config) {
    prepare_cuda();
    log_setup(level_of(config->log_level), config->log_json);
    return server_run(config);
}

static int run_daemon(int argc, char **argv) {
    struct daemon_config config;
    struct error e;
    enum command command;
    int exit_code = 0;
    if (command_line_read(&config, &command, argc, argv, &e) != 0) {
        fprintf(stderr, "tpd: %s\n", e.message);
        exit_code = error_class(e.kind)->exit_code;
    } else {
        switch (command) {
        case COMMAND_HELP: command_line_help(); break;
        case COMMAND_VERSION: printf("tpd %s\n", TPD_VERSION); break;
        case COMMAND_RUN: exit_code = run(&config); break;
        }
    }
    config_free(&config);
    return exit_code;
}

/* A closed stdin, stdout or stderr stays taken, so that no connection can become one of them and
 * get what is logged. Reading and writing there still fail. */
static void hold_standard_files(void) {
    int fd;
    do fd = open("/dev/null", O_PATH);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0) close(fd);
}

int main(int argc, char **argv) {
    hold_standard_files();
    signal(SIGXFSZ, SIG_IGN); /* a file over the limit is a failed write, as on a full disk */
    /* Large buffers are maps of their own, also after the first was freed: else what a job or a long
     * text took stays with the process, in heaps with holes. */
    mallopt(M_MMAP_THRESHOLD, 1 << 20);
    const char *command = argc > 1 ? argv[1] : "";
    if (strcmp(command, "inspect") == 0) return offline_inspect(argc - 2, argv + 2);
    if (strcmp(command, "plan") == 0) return offline_plan(argc - 2, argv + 2);
    if (strcmp(command, "merge") == 0) return offline_merge(argc - 2, argv + 2);
    if (strcmp(command, "quantize") == 0) return offline_quantize(argc - 2, argv + 2);
    if (strcmp(command, "tokenize") == 0) return offline_tokenize(argc - 2, argv + 2);
    if (strcmp(command, "detokenize") == 0) return offline_detokenize(argc - 2, argv + 2);
    if (strcmp(command, "template") == 0) return offline_template(argc - 2, argv + 2);
    return run_daemon(argc, argv);
}
