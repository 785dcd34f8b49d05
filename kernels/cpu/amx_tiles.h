/* kernels/cpu/amx_tiles.h: the tile operations that products by AMX are made of.
 *
 * A thread has eight tiles, each up to 16 rows of 64 bytes; tile_config gives them their shapes and
 * empties them, tile_release gives them back, after which a thread is switched as cheaply as any other.
 * Tiles are named by plain numbers, 0 to 7.
 *
 * The loops (amx_int8_impl.h, amx_bf16_impl.h) are compiled with the instructions in amx_avx512.c. The tests
 * compile them once more with SOFT_TILES, where each operation is a function in C: so machines without AMX
 * hold them to their promises, too. */
#ifndef TPD_KERNELS_CPU_AMX_TILES_H
#define TPD_KERNELS_CPU_AMX_TILES_H

#include <stdint.h>

/* What LDTILECFG reads. A tile of no rows and no columns is not there. */
struct tile_shapes {
    uint8_t palette, start_row; /* 1 and 0 */
    uint8_t zero[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

static inline void tile_shape(struct tile_shapes *s, int tile, int rows, int row_bytes) {
    s->rows[tile] = (uint8_t)rows;
    s->row_bytes[tile] = (uint16_t)(rows ? row_bytes : 0);
}

#ifndef SOFT_TILES

#include <immintrin.h>

/* For functions that use tiles; whoever calls them knows that the CPU has them (amx.h). */
#define AMX __attribute__((target("amx-tile,amx-int8,amx-bf16")))

/* gcc does not know that the instructions read memory. */
#define tile_barrier() __asm__ volatile("" ::: "memory")

#define tile_config(shapes)       \
    do {                          \
        tile_barrier();           \
        _tile_loadconfig(shapes); \
    } while (0)
#define tile_release() _tile_release()
#define tile_zero(tile) _tile_zero(tile)
/* Rows lie stride bytes apart in memory. */
#define tile_load(tile, from, stride)      \
    do {                                   \
        tile_barrier();                    \
        _tile_loadd(tile, from, stride);   \
        tile_barrier();                    \
    } while (0)
#define tile_store(tile, to, stride) _tile_stored(tile, to, stride)
/* c [rows, n] of i32 += a [rows, 4k] of i8 times b, whose row i has a's columns 4i … 4i+3 of each of n. */
#define tile_dot_int8(c, a, b) _tile_dpbssd(c, a, b)
/* The same in fp32 with pairs of bf16. The even columns of a are one chain of fused sums from 0 in ascending
 * order, the odd ones another; their sum is added to c. Rounded to nearest even, denormals are 0. */
#define tile_dot_bf16(c, a, b) _tile_dpbf16ps(c, a, b)

#endif

#endif
