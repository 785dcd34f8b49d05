/* tests/cusim/fiber.h: stacks of their own and the switch between them. */
#ifndef TPD_CUSIM_FIBER_H
#define TPD_CUSIM_FIBER_H

#include <cstddef>

namespace cusim {

enum { STACK_BYTES = 64 * 1024 };

/* A stack from the calling thread's pool, and back to it. */
char *stack_take();
void stack_give(char *stack);
/* What switch_stack resumes for the first time: entry() on that stack. entry must not return. */
void *stack_prepare(char *stack, void (*entry)());

} // namespace cusim

/* Saves the callee's registers and stack pointer in *from, continues at `to`. */
extern "C" void cusim_switch(void **from, void *to);

#endif
