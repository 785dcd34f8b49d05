#include "daemon/tidy.h"

#include <link.h>
#include <malloc.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A debugger has written its breakpoints into the code: they would be lost. */
static bool is_debugged(void) {
    char line[128];
    int tracer = 0;
    FILE *status = fopen("/proc/self/status", "re");
    while (status && fgets(line, sizeof line, status) && sscanf(line, "TracerPid: %d", &tracer) != 1) {}
    if (status) fclose(status);
    return tracer != 0;
}

/* The parts of an object that are as in its file, since nobody else can write to them. The kernel's own (the vdso)
 * has no file; the program itself has no name. */
static int drop_code(struct dl_phdr_info *object, size_t size, void *user) {
    (void)size, (void)user;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    bool is_file = object->dlpi_name[0] == '\0' || strchr(object->dlpi_name, '/');
    for (int i = 0; i < object->dlpi_phnum && is_file; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        if (part->p_type != PT_LOAD || (part->p_flags & PF_W)) continue;
        uintptr_t from = (object->dlpi_addr + part->p_vaddr) & ~(page - 1);
        madvise((void *)from, object->dlpi_addr + part->p_vaddr + part->p_filesz - from, MADV_DONTNEED);
    }
    return 0;
}

void tidy_after_start(void) {
    malloc_trim(0);
    if (!is_debugged()) dl_iterate_phdr(drop_code, NULL);
}
