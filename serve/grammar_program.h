/* serve/grammar_program.h: a compiled grammar: a program over bytes, and the states that running it
 * leads to. Private to serve/grammar*.
 *
 * A frame is a place in the program, a counter and a parent frame: what goes on after a return. A
 * state is a set of frames that each wait for a byte; it stands for all the ways in which the text so
 * far can be read. Frames and states are kept once each and known by number, and where a byte leads
 * from a state is remembered, so that running becomes a walk through tables. Only productive grammars
 * are compiled: a state that has frames can always be brought to an end.
 *
 * A frame may also hang from FRAME_HOLE: then it is not known what comes after its rule. Such states
 * serve masks (grammar_mask.c): most of what a token does happens inside one rule. */
#ifndef TPD_SERVE_GRAMMAR_PROGRAM_H
#define TPD_SERVE_GRAMMAR_PROGRAM_H

#include "serve/grammar.h"

#include <stdatomic.h>

enum op {
    OP_BYTE,   /* one byte from lo to hi, then x */
    OP_SPLIT,  /* x, and y */
    OP_CALL,   /* the part of the program at x; then y */
    OP_RETURN, /* to the parent */
    OP_COUNT,  /* the counter becomes min (x) and max (y) rounds to go, then the next instruction */
    OP_TEST,   /* a round (x) while some may be left; y when no more need be */
    OP_DOWN    /* a round is over: x */
};

struct inst {
    uint8_t op, lo, hi;
    int32_t x, y;
};

enum { FRAME_ROOT = -1, FRAME_HOLE = -2 };
#define COUNT_NO_END UINT32_MAX

struct frame {
    int32_t pc, parent;
    uint32_t min, max; /* rounds to go */
};

enum { STATE_DEAD = 0 };

struct mask_part;

struct state {
    int32_t *frames; /* [n], ascending */
    int32_t n;
    bool ends;    /* the text may end here */
    bool escapes; /* FRAME_HOLE was reached: the text may go on in ways that are not known */
    int32_t *next; /* [n_classes], -1: not known; NULL: none of them is */
    uint64_t *mask;
};

struct grammar {
    _Atomic int users;
    struct inst *code;
    int32_t n_code, start;
    uint8_t class_of[256]; /* bytes of a class are treated alike everywhere */
    int n_classes;
    /* From here on: what running has made. All of it goes when it is more than GRAMMAR_MEMORY; then
     * epoch moves on, and numbers of states from before mean nothing. */
    uint32_t epoch;
    size_t memory;
    struct frame *frames;
    struct state *states;
    size_t n_frames, room_frames, n_states, room_states;
    int32_t *frame_table, *state_table; /* hashed, -1: free; their sizes are powers of 2 */
    size_t frame_slots, state_slots;
    int32_t first; /* state at the start of a text; -1: not made yet */
    struct mask_part *parts; /* grammar_mask.c */
    size_t n_parts, room_parts;
    /* ERR_NONE; ERR_MEMORY; ERR_PARAMS: too many ways to read a text. Stays until grammar_trim. */
    enum error_kind trouble;
    bool crowded; /* some text could be read in more than STATE_MAX_FRAMES ways */
    size_t work; /* places looked at since the last grammar_trim call */
    struct closure *closure;
};

/* MEMORY: what is kept from one walk to the next; a walk may take as much again. WORK: places that one
 * walk may look at, a fraction of a second. */
enum { GRAMMAR_MEMORY = 32 << 20, GRAMMAR_WORK = 4 << 20, STATE_MAX_FRAMES = 4096 };

/* STATE_DEAD has no frames. These return numbers of states; STATE_DEAD with trouble set when memory
 * or work ran out. A text that can be read in more than STATE_MAX_FRAMES ways is dead: nothing that the
 * grammar does not allow passes. */
int32_t state_first(struct grammar *g);
int32_t state_step(struct grammar *g, int32_t state, uint8_t byte);
/* frames [n], which frame_of gave; they are sorted. */
int32_t state_of(struct grammar *g, int32_t *frames, int32_t n, bool ends, bool escapes);
int32_t frame_of(struct grammar *g, struct frame frame);
/* Before each walk: forgets all when it has become too much, or after trouble. True when it did. */
bool grammar_trim(struct grammar *g);
/* grammar_mask.c: forgets parts of masks. */
void mask_forget(struct grammar *g);

#endif
