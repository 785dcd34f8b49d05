/* kernels/race.h: the number that a token has of its own in a race (serve/logits.h), of a position's bits and its id:
 * one step of a splitmix64 sequence that begins with bits. For the CPU, where these are loops over registers too, and
 * for devices. */
#ifndef TPD_KERNELS_RACE_H
#define TPD_KERNELS_RACE_H

#define RACE_STEP 0x9E3779B97F4A7C15u
#define RACE_BEGIN(bits, id) ((bits) + ((uint64_t)(uint32_t)(id) + 1) * RACE_STEP)
/* x, from RACE_BEGIN, becomes the number, but for the last step, which changes nothing in the 31 highest bits. */
#define RACE_MIX(x)                             \
    x = ((x) ^ (x) >> 30) * 0xBF58476D1CE4E5B9u; \
    x = ((x) ^ (x) >> 27) * 0x94D049BB133111EBu
/* 0 to 2^53 - 1; u = (this + 1) * 2^-53. */
#define RACE_END(x) (((x) ^ (x) >> 31) >> 11)

#endif
