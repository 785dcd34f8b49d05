/* kernels/cpu/amx.h: products on AMX tiles, of Intel's servers since Sapphire Rapids.
 *
 * Many rows of x by quantised weights have the bits that cpu_int8_avx512 gives them: a tile sums the integers
 * of a run of codes, which is exact, and the steps in fp32 are the same (int8.h). Few rows go to
 * cpu_int8_avx512 itself.
 *
 * Sums of bf16 on tiles round in another order than AVX512-BF16 does (amx_tiles.h), so one row is multiplied by
 * tiles as well: a row's bits do not depend on those beside it. */
#ifndef TPD_KERNELS_CPU_AMX_H
#define TPD_KERNELS_CPU_AMX_H

#include "kernels/cpu/bf16.h"
#include "kernels/cpu/int8.h"

/* Whether this process can use tiles: the CPU has them and the system saves them. The first call asks the
 * system for the permission, which all threads then have. Any thread may call. */
bool amx_usable(void);

extern const struct cpu_int8 cpu_int8_amx;
extern const struct cpu_bf16 cpu_bf16_amx;

#endif
