/* kernels/cpu/vec.h: 16 lanes under one name on every instruction set.
 *
 * The loops (the *_impl.h files) are written once on two types, vf (16 floats) and vi (16 ints), and
 * compiled once for each level by level_*.c. A level's vec_*.h defines the types, these operations,
 * and the constants
 *     MATMUL_ROWS     rows that the matrix product keeps in registers, by 2 panels
 *     MATVEC_STREAMS  panels that the vector product reads side by side
 *     INT8_ROWS INT8_SIDE  rows and panels that the integer product keeps in registers
 *     INT8_FEW_GROUPS  groups of rows up to which int8_few_impl.h is faster, where that is worth having
 *     v_load v_store v_load_n v_store_n (the first n lanes; the others read as 0)
 *     v_zero v_set1 v_add v_sub v_mul v_div v_max v_min v_fma (a * b + c) v_sum (a fixed tree)
 *     v_highest v_transpose (16 x 16)
 *     v_sqrt v_zip_low v_zip_high (a0 b0 a1 b1 …: of the lower or the upper half of the lanes)
 *     v_f16 v_store_f16 v_bf16 (16 halves in memory)
 *     i_load i_store i_set1 i_add i_and i_or i_srl i_sll i_sra
 *     v_from_i i_round (to nearest even) v_cast i_cast (bits)
 *     i_sub i_max i_highest i_store_bytes (the low byte of each lane)
 *     i_dot (each lane: sum + its 4 unsigned bytes below 128 by 4 signed ones)
 *     i_dot8 (the same for any unsigned bytes; begun from i_dot8_begin: some levels take 128 off
 *     each of them, others begin with what that comes to)
 * and perhaps VEC_LOOKS_UP with its own v_code*, which give the low bits of each lane as floats.
 */
#ifndef TPD_KERNELS_CPU_VEC_H
#define TPD_KERNELS_CPU_VEC_H

#include "kernels/cpu/layout.h"
#include "kernels/cpu/train.h"

#define INLINE static inline __attribute__((always_inline, unused))
/* clang leaves arrays in memory where it is asked in gcc's words, and says so where it cannot unroll. */
#ifdef __clang__
#pragma clang diagnostic ignored "-Wpass-failed"
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

#endif
