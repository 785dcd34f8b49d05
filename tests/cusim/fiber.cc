#include "fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#if !defined(__x86_64__) && !defined(__aarch64__)
#error "the simulator switches stacks by hand: x86-64 and AArch64 only"
#endif

/* Registers that a call must keep, by hand: ucontext would make a system call at each switch. */
#ifdef __x86_64__
asm(".text\n.globl cusim_switch\n.type cusim_switch,@function\ncusim_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
    ".size cusim_switch,.-cusim_switch\n");
enum { SAVED = 6 };
#else
asm(".text\n.globl cusim_switch\n.type cusim_switch,%function\ncusim_switch:\n"
    "sub sp,sp,#160\nstp x19,x20,[sp]\nstp x21,x22,[sp,#16]\nstp x23,x24,[sp,#32]\n"
    "stp x25,x26,[sp,#48]\nstp x27,x28,[sp,#64]\nstp x29,x30,[sp,#80]\n"
    "stp d8,d9,[sp,#96]\nstp d10,d11,[sp,#112]\nstp d12,d13,[sp,#128]\nstp d14,d15,[sp,#144]\n"
    "mov x9,sp\nstr x9,[x0]\nmov sp,x1\n"
    "ldp x19,x20,[sp]\nldp x21,x22,[sp,#16]\nldp x23,x24,[sp,#32]\nldp x25,x26,[sp,#48]\n"
    "ldp x27,x28,[sp,#64]\nldp x29,x30,[sp,#80]\nldp d8,d9,[sp,#96]\nldp d10,d11,[sp,#112]\n"
    "ldp d12,d13,[sp,#128]\nldp d14,d15,[sp,#144]\nadd sp,sp,#160\nret\n");
#endif

namespace cusim {

static thread_local std::vector<char *> pool;

char *stack_take() {
    if (!pool.empty()) {
        char *stack = pool.back();
        pool.pop_back();
        return stack;
    }
    void *stack = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) {
        std::perror("no memory for a simulated thread");
        std::abort();
    }
    return static_cast<char *>(stack);
}

void stack_give(char *stack) { pool.push_back(stack); }

void *stack_prepare(char *stack, void (*entry)()) {
    auto *top = reinterpret_cast<uintptr_t *>(stack + STACK_BYTES);
#ifdef __x86_64__
    *--top = 0; /* where entry would return to; keeps the alignment of a call */
    *--top = reinterpret_cast<uintptr_t>(entry);
    for (int i = 0; i < SAVED; i++) *--top = 0;
#else
    top -= 20;
    for (int i = 0; i < 20; i++) top[i] = 0;
    top[11] = reinterpret_cast<uintptr_t>(entry); /* x30 */
#endif
    return top;
}

} // namespace cusim
