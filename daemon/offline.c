#include "daemon/offline.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int offline_fail(const struct error *e) {
    fprintf(stderr, "tpd: %s\n", e->message);
    return error_class(e->kind)->exit_code;
}

int offline_end(int exit_code) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return exit_code;
    fprintf(stderr, "tpd: cannot write to standard output: %s\n", strerror(errno));
    return EXIT_IO;
}
