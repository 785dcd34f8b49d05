/* Finds the CUDA side: linked in (the tests' simulated devices), or tpd-cuda.so. */
#include "kernels/cuda/table.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern const struct cuda_table tpd_cuda_table __attribute__((weak));

static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;
static const struct cuda_table *loaded;

/* Beside the program as `make` leaves it, and where `make install` puts it. */
static const char *const places[] = {"tpd-cuda.so", "../lib/tpd/tpd-cuda.so"};

/* The program's folder with a slash; "" when it cannot be told. */
static void program_folder(char *out, size_t size) {
    ssize_t n = readlink("/proc/self/exe", out, size - 1);
    out[n > 0 ? n : 0] = 0;
    char *slash = strrchr(out, '/');
    if (slash) slash[1] = 0;
    else out[0] = 0;
}

bool cuda_driver_is_there(void) {
    const char *named = getenv("TPD_CUDA_LIBRARY");
    if (&tpd_cuda_table || (named && *named)) return true;
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (driver) dlclose(driver);
    return driver != NULL;
}

static void *open_library(struct error *e) {
    const char *named = getenv("TPD_CUDA_LIBRARY");
    char folder[3072], path[4096], tried[512] = "";
    program_folder(folder, sizeof folder);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        if (named && *named) snprintf(path, sizeof path, "%s", named);
        else snprintf(path, sizeof path, "%s%s", folder, places[i]);
        if (access(path, R_OK) == 0) {
            void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
            if (!library) error_set(e, ERR_DEVICE, "tpd-cuda.so cannot be loaded: %s", dlerror());
            return library;
        }
        size_t at = strlen(tried);
        snprintf(tried + at, sizeof tried - at, "%s%s", i ? ", " : "", path);
        if (named && *named) break;
    }
    error_set(e, ERR_DEVICE,
              "there is no tpd-cuda.so (looked for %s): build it with `make CUDA=1`, or run on the CPU",
              tried);
    return NULL;
}

static const struct cuda_table *find_table(struct error *e) {
    if (&tpd_cuda_table) return &tpd_cuda_table;
    void *library = open_library(e);
    if (!library) return NULL;
    const struct cuda_table *table = dlsym(library, "tpd_cuda_table");
    if (table && table->version == CUDA_TABLE_VERSION &&
        table->kernels_size == sizeof(struct kernels) && table->kctx_size == sizeof(struct kctx))
        return table;
    error_set(e, ERR_DEVICE, "tpd-cuda.so belongs to another build of tpd: build both together");
    dlclose(library);
    return NULL;
}

const struct cuda_table *cuda_table_load(struct error *e) {
    pthread_mutex_lock(&load_lock);
    if (!loaded) loaded = find_table(e);
    const struct cuda_table *table = loaded;
    pthread_mutex_unlock(&load_lock);
    return table;
}

int kernels_cuda_open(struct kctx **out, int rank, const struct cuda_options *options,
                      struct error *e) {
    *out = NULL;
    const struct cuda_table *table = cuda_table_load(e);
    return table ? table->open(out, rank, options, e) : -(int)ERR_DEVICE;
}
