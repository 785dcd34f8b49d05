/* Whether there are AMX tiles, and leave to use them: see amx.h. */
#include "kernels/cpu/amx.h"

#ifdef __x86_64__

#include <cpuid.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Of the architecture: CPUID leaves 7 and 0x1D, XCR0, arch_prctl(2). */
enum {
    CPUID_AMX_BF16 = 1 << 22,
    CPUID_AMX_TILE = 1 << 24,
    CPUID_AMX_INT8 = 1 << 25,
    XCR0_TILES = 3 << 17, /* configuration and data are saved when threads are switched */
    TILE_DATA = 18,
    REQUEST_PERMISSION = 0x1023
};

static bool cpu_has_tiles(void) {
    const unsigned wanted = CPUID_AMX_BF16 | CPUID_AMX_TILE | CPUID_AMX_INT8;
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & wanted) != wanted) return false;
    /* Palette 1 has 8 tiles of 16 rows of 64 bytes. */
    return __get_cpuid_count(0x1D, 1, &a, &b, &c, &d) && b == (8u << 16 | 64) && (c & 0xFFFF) == 16;
}

static bool system_saves_tiles(void) {
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & XCR0_TILES) == XCR0_TILES;
}

static bool usable;

static void ask(void) {
    usable = cpu_has_tiles() && system_saves_tiles() &&
             syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

bool amx_usable(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, ask);
    return usable;
}

#else

bool amx_usable(void) { return false; }

#endif
