/* tests/unit/soft_tiles.h: AMX tiles in C, for kernels/cpu/amx_*_impl.h on machines that have none.
 *
 * Each thread has its own, as each core has. The operations do what the instructions are documented to do,
 * bit for bit but for what a NaN carries; shapes that an instruction would refuse, and the use of a tile that
 * has no shape, abort with a sentence. */
#ifndef TPD_TESTS_SOFT_TILES_H
#define TPD_TESTS_SOFT_TILES_H

#define SOFT_TILES
#include "kernels/cpu/amx.h"
#include "kernels/cpu/amx_tiles.h"

void soft_tile_config(const struct tile_shapes *shapes);
void soft_tile_release(void);
void soft_tile_zero(int tile);
void soft_tile_load(int tile, const void *from, size_t stride);
void soft_tile_store(int tile, void *to, size_t stride);
void soft_tile_dot_int8(int c, int a, int b);
void soft_tile_dot_bf16(int c, int a, int b);

/* From here on the instructions run, too, where the CPU has none (soft_tiles_trap.c). */
void soft_tiles_trap(bool on);

/* Whether this thread's tiles have shapes. */
bool soft_tiles_in_use(void);

/* The products by tiles, on vectors of the portable level and of AVX-512. */
extern const struct cpu_int8 soft_int8_portable, soft_int8_avx512;
extern const struct cpu_bf16 soft_bf16_portable, soft_bf16_avx512;

/* bf16.h's prepare, one row, in plain C. */
void soft_round_row(const struct narrow_rows *to, const float *x, const struct narrow_part *part);

#define AMX
#define tile_config soft_tile_config
#define tile_release soft_tile_release
#define tile_zero soft_tile_zero
#define tile_load soft_tile_load
#define tile_store soft_tile_store
#define tile_dot_int8 soft_tile_dot_int8
#define tile_dot_bf16 soft_tile_dot_bf16

#endif
