/* Runs AMX instructions on a CPU that has none: each is an illegal instruction there, the signal's handler does
 * what it would have done, and the thread goes on behind it. */
#include "tests/unit/soft_tiles.h"

#ifdef __x86_64__

#include <signal.h>
#include <string.h>
#include <ucontext.h>

/* In the order of the instructions' register numbers. */
static const int gregs[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                              REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

/* VEX, three bytes, opcode map 0F38, 128 bits, W0; then the opcode, ModRM and perhaps an address. */
struct instruction {
    enum { NO_PREFIX, PREFIX_66, PREFIX_F3, PREFIX_F2 } prefix;
    uint8_t opcode;
    int mod, reg, rm, third; /* third: VEX.vvvv */
    uint8_t *address;        /* where mod is not 3 */
    size_t stride;           /* the index register's value */
    int length;
};

/* Base, index and displacement, as compilers write them; never relative to the instruction. */
static bool read_address(const uint8_t *at, const greg_t *regs, struct instruction *out) {
    int base = out->rm | (at[1] & 0x20 ? 0 : 8), index = 4, scale = 0;
    if (out->mod == 0 && out->rm == 5) return false;
    if (out->rm == 4) {
        uint8_t sib = at[out->length++];
        base = (sib & 7) | (at[1] & 0x20 ? 0 : 8);
        index = (sib >> 3 & 7) | (at[1] & 0x40 ? 0 : 8);
        scale = sib >> 6;
        if (out->mod == 0 && (sib & 7) == 5) return false;
    }
    int32_t offset = 0;
    if (out->mod == 1) offset = (int8_t)at[out->length];
    if (out->mod == 2) memcpy(&offset, at + out->length, 4);
    out->length += out->mod == 1 ? 1 : out->mod == 2 ? 4 : 0;
    out->address = (uint8_t *)(uintptr_t)(regs[gregs[base]] + offset);
    out->stride = index == 4 ? 0 : (size_t)regs[gregs[index]] << scale;
    return true;
}

static bool read_instruction(const uint8_t *at, const greg_t *regs, struct instruction *out) {
    if (at[0] != 0xC4 || (at[1] & 0x1F) != 2 || (at[2] & 0x84) != 0) return false;
    *out = (struct instruction){.prefix = at[2] & 3,
                                .opcode = at[3],
                                .mod = at[4] >> 6,
                                .reg = at[4] >> 3 & 7,
                                .rm = at[4] & 7,
                                .third = ~at[2] >> 3 & 15,
                                .length = 5};
    return out->mod == 3 || read_address(at, regs, out);
}

static bool run_instruction(const struct instruction *i) {
    bool memory = i->mod != 3;
    switch (i->opcode) {
    case 0x49:
        if (i->prefix == PREFIX_F2 && !memory && i->rm == 0) soft_tile_zero(i->reg);
        else if (i->prefix == NO_PREFIX && memory && i->reg == 0) soft_tile_config((void *)i->address);
        else if (i->prefix == NO_PREFIX && !memory && i->reg == 0 && i->rm == 0) soft_tile_release();
        else return false;
        return true;
    case 0x4B:
        if (i->prefix == PREFIX_F2 && memory) soft_tile_load(i->reg, i->address, i->stride);
        else if (i->prefix == PREFIX_F3 && memory) soft_tile_store(i->reg, i->address, i->stride);
        else return false;
        return true;
    case 0x5E:
        if (i->prefix != PREFIX_F2 || memory) return false;
        soft_tile_dot_int8(i->reg, i->rm, i->third);
        return true;
    case 0x5C:
        if (i->prefix != PREFIX_F3 || memory) return false;
        soft_tile_dot_bf16(i->reg, i->rm, i->third);
        return true;
    default: return false;
    }
}

static void trapped(int signal_number, siginfo_t *info, void *context) {
    greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
    struct instruction i;
    (void)info;
    if (read_instruction((const uint8_t *)regs[REG_RIP], regs, &i) && run_instruction(&i)) regs[REG_RIP] += i.length;
    else signal(signal_number, SIG_DFL); /* it is met again, and ends the process */
}

void soft_tiles_trap(bool on) {
    struct sigaction action = {.sa_flags = SA_SIGINFO};
    if (on) action.sa_sigaction = trapped;
    else action.sa_handler = SIG_DFL;
    sigaction(SIGILL, &action, NULL);
}

#else

void soft_tiles_trap(bool on) { (void)on; }

#endif
