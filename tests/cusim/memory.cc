/* Device memory: numbers for addresses, and the checks of every access. */
#include "state.h"

#include <cstdlib>
#include <map>
#include <unordered_map>

namespace cusim {

/* An address is BASE + (slot << 32) + offset: never host memory, and a stride past an allocation's end
 * meets no other one for 4 GiB. */
enum { SLOTS = 1 << 14, WORD = 4, GRANULE = 256 };
static const uint64_t BASE = 0x100000000000ull;

/* Who touched a word last, as actor << 32 | tick; 0: nobody. */
using stamp = std::atomic<uint64_t>;

struct allocation {
    int device;
    size_t bytes;
    bool alive = true;
    char *data;
    std::unique_ptr<std::atomic<uint8_t>[]> written; /* a byte each */
    std::unique_ptr<stamp[]> last_write, last_read;  /* a word each */
    /* A granule each: the piece that it belongs to. */
    std::unique_ptr<std::atomic<uint64_t>[]> pieces;
    std::atomic<bool> divided{false}; /* it has, or had, pieces */
};

/* begin << 32 | end, in bytes from the allocation's beginning. */
static const uint64_t NO_PIECE = 0, ENDED = ~0ull;
static uint64_t piece_begin(uint64_t piece) { return piece >> 32; }
static uint64_t piece_end_at(uint64_t piece) { return piece & 0xFFFFFFFFull; }

static std::atomic<allocation *> slots[SLOTS];
static std::mutex table_lock;
static int next_slot = 1;
static bool peers[MAX_DEVICES][MAX_DEVICES], losing[MAX_DEVICES][MAX_DEVICES];
static bool refused;
static std::map<void *, uint64_t> pinned; /* host address -> device address */

static allocation *find(uint64_t address, uint64_t *offset) {
    uint64_t slot = (address - BASE) >> 32;
    if (address < BASE || slot >= SLOTS) return nullptr;
    *offset = address & 0xFFFFFFFFull;
    return slots[slot].load(std::memory_order_acquire);
}

uint64_t memory_new(int device, size_t bytes) {
    auto *a = new allocation{};
    size_t words = bytes / WORD + 1;
    a->device = device;
    a->bytes = bytes;
    a->data = static_cast<char *>(std::aligned_alloc(256, (bytes + 255) / 256 * 256 + 256));
    std::memset(a->data, 0xFF, bytes); /* a NaN in every float type */
    a->written.reset(new std::atomic<uint8_t>[bytes + 1]());
    a->last_write.reset(new stamp[words]());
    a->last_read.reset(new stamp[words]());
    a->pieces.reset(new std::atomic<uint64_t>[bytes / GRANULE + 1]());
    std::lock_guard<std::mutex> hold(table_lock);
    for (int tries = 0; tries < SLOTS; tries++) {
        int slot = next_slot;
        next_slot = next_slot + 1 < SLOTS ? next_slot + 1 : 1;
        allocation *old = slots[slot].load();
        if (old && old->alive) continue;
        /* A dead one stays readable for threads that still hold its address: a fault, not a crash. */
        slots[slot].store(a, std::memory_order_release);
        uint64_t address = BASE + ((uint64_t)slot << 32);
        if (device < 0) pinned[a->data] = address;
        return address;
    }
    std::abort();
}

bool memory_delete(uint64_t address, int device) {
    uint64_t offset;
    std::lock_guard<std::mutex> hold(table_lock);
    allocation *a = find(address, &offset);
    if (!a || !a->alive || offset != 0 || a->device != device) return false;
    a->alive = false;
    if (device < 0) pinned.erase(a->data);
    return true;
}

bool memory_knows(uint64_t address) {
    uint64_t offset;
    allocation *a = find(address, &offset);
    return a && a->alive;
}

int memory_device(uint64_t address) {
    uint64_t offset;
    allocation *a = find(address, &offset);
    return a ? a->device : -2;
}

void *memory_pinned(uint64_t address) {
    uint64_t offset;
    allocation *a = find(address, &offset);
    return a && a->alive && a->device < 0 ? a->data + offset : nullptr;
}

/* The device address of pinned host memory; 0 when it is none. */
uint64_t pinned_address(void *host) {
    std::lock_guard<std::mutex> hold(table_lock);
    auto at = pinned.find(host);
    return at == pinned.end() ? 0 : at->second;
}

size_t live_allocations() {
    std::lock_guard<std::mutex> hold(table_lock);
    size_t n = 0;
    for (auto &slot : slots) {
        allocation *a = slot.load();
        n += a && a->alive;
    }
    return n;
}

void peer_enable(int from, int to, bool on) {
    std::lock_guard<std::mutex> hold(table_lock);
    peers[from][to] = on;
}

bool peer_enabled(int from, int to) {
    std::lock_guard<std::mutex> hold(table_lock);
    return peers[from][to];
}

bool peer_possible() {
    std::lock_guard<std::mutex> hold(table_lock);
    return !refused;
}

void peers_refused(bool all) {
    std::lock_guard<std::mutex> hold(table_lock);
    refused = all;
    if (all) std::memset(peers, 0, sizeof peers);
}

void peers_lose_writes(int from, int to, bool lost) {
    std::lock_guard<std::mutex> hold(table_lock);
    losing[from][to] = lost;
}

/* --- pieces of an allocation ----------------------------------------------------------------------- */

static void set_piece(allocation *a, uint64_t from, uint64_t to, uint64_t piece) {
    for (uint64_t g = from / GRANULE; g <= (to - 1) / GRANULE; g++) a->pieces[g].store(piece);
}

static allocation *divide(uint64_t address, uint64_t *offset, const char *what) {
    allocation *a = find(address, offset);
    if (!a || !a->alive) stop("%s at 0x%llx, which is no device memory", what, (unsigned long long)address);
    if (*offset % GRANULE != 0)
        stop("%s at offset %llu: a piece begins at a multiple of %d", what, (unsigned long long)*offset, GRANULE);
    return a;
}

/* Who asks is the host, outside of any kernel: a fault is noted and the call does nothing. */
template <class F> static void noting_faults(F f) {
    try {
        f();
    } catch (const fault &e) {
        note_fault(e.message);
    }
}

static void begin_piece(allocation *a, uint64_t offset, size_t bytes) {
    std::memset(a->data + offset, 0xFF, bytes);
    for (size_t i = 0; i < bytes; i++) a->written[offset + i].store(0, std::memory_order_relaxed);
    set_piece(a, offset, offset + bytes, offset << 32 | (offset + bytes));
    a->divided = true;
}

void piece_new(uint64_t address, size_t bytes) {
    noting_faults([=] {
        uint64_t offset;
        allocation *a = divide(address, &offset, "a piece");
        if (bytes == 0 || offset + bytes > a->bytes)
            stop("a piece of %zu bytes at offset %llu of an allocation of %zu bytes", bytes,
                 (unsigned long long)offset, a->bytes);
        for (uint64_t g = offset / GRANULE; g <= (offset + bytes - 1) / GRANULE; g++) {
            uint64_t old = a->pieces[g].load();
            if (old != NO_PIECE && old != ENDED)
                stop("a piece at offset %llu, where another one is", (unsigned long long)offset);
        }
        begin_piece(a, offset, bytes);
    });
}

void piece_end(uint64_t address) {
    noting_faults([=] {
        uint64_t offset;
        allocation *a = divide(address, &offset, "the end of a piece");
        uint64_t piece = a->pieces[offset / GRANULE].load();
        if (piece == NO_PIECE || piece == ENDED || piece_begin(piece) != offset)
            stop("the end of a piece at offset %llu, where none begins", (unsigned long long)offset);
        set_piece(a, offset, piece_end_at(piece), ENDED);
    });
}

/* What the piece had beyond bytes is none of it until the next time. */
void piece_again(stream *on, uint64_t address, size_t bytes) {
    enqueue(on, "a piece made anew", [=] {
        uint64_t offset;
        allocation *a = divide(address, &offset, "a piece made anew");
        uint64_t piece = a->pieces[offset / GRANULE].load();
        if (bytes == 0 || piece == NO_PIECE || piece == ENDED || offset + bytes > a->bytes) return;
        set_piece(a, offset, piece_end_at(piece), NO_PIECE);
        begin_piece(a, offset, bytes);
    });
}

/* Whether the access lies within one piece. */
static void check_piece(const allocation *a, uint64_t offset, size_t size, const char *what) {
    uint64_t piece = a->pieces[offset / GRANULE].load(std::memory_order_relaxed);
    if (piece == ENDED)
        stop("%s of %zu bytes at offset %llu of an allocation of %zu bytes, in a piece that was freed", what,
             size, (unsigned long long)offset, a->bytes);
    if (piece == NO_PIECE)
        stop("%s of %zu bytes at offset %llu of an allocation of %zu bytes: out of bounds of all its pieces",
             what, size, (unsigned long long)offset, a->bytes);
    if (offset + size > piece_end_at(piece))
        stop("%s of %zu bytes at offset %llu of a piece of %llu bytes: out of bounds", what, size,
             (unsigned long long)(offset - piece_begin(piece)),
             (unsigned long long)(piece_end_at(piece) - piece_begin(piece)));
}

/* --- the checks of an access --------------------------------------------------------------------- */

static allocation *check_place(uint64_t address, size_t size, uint64_t *offset, const char *what) {
    const actor &me = current_actor();
    allocation *a = find(address, offset);
    if (!a) stop("%s of %zu bytes at 0x%llx, which is no device memory", what, size,
                 (unsigned long long)address);
    if (!a->alive) stop("%s of %zu bytes at 0x%llx, in memory that was freed", what, size,
                        (unsigned long long)address);
    if (*offset + size > a->bytes)
        stop("%s of %zu bytes at offset %llu of an allocation of %zu bytes: out of bounds", what, size,
             (unsigned long long)*offset, a->bytes);
    if (a->divided.load(std::memory_order_relaxed)) check_piece(a, *offset, size, what);
    if (*offset % size != 0 && (size & (size - 1)) == 0)
        stop("%s of %zu bytes at offset %llu: misaligned", what, size, (unsigned long long)*offset);
    if (a->device >= 0 && a->device != me.device && !(me.device >= 0 && peers[me.device][a->device]))
        stop("device %d makes a %s in memory of device %d without peer access", me.device, what,
             a->device);
    return a;
}

static bool is_ordered(const actor &me, uint64_t stamp) {
    unsigned who = (unsigned)(stamp >> 32);
    return stamp == 0 || who == (unsigned)me.number || me.clock.at[who] >= (uint32_t)stamp;
}

static uint64_t my_stamp(const actor &me) {
    return (uint64_t)me.number << 32 | (me.clock.at[me.number] + 1);
}

const void *check_read(uint64_t address, size_t size) {
    uint64_t offset;
    const actor &me = current_actor();
    allocation *a = check_place(address, size, &offset, "read");
    for (size_t i = 0; i < size; i++)
        if (!a->written[offset + i].load(std::memory_order_relaxed))
            stop("read of %zu bytes at offset %llu of an allocation of %zu bytes: byte %zu was never "
                 "written",
                 size, (unsigned long long)offset, a->bytes, i);
    for (uint64_t w = offset / WORD; w <= (offset + size - 1) / WORD; w++) {
        uint64_t write = a->last_write[w].load(std::memory_order_relaxed);
        if (!is_ordered(me, write))
            stop("read at offset %llu of an allocation of %zu bytes on device %d races with a write by "
                 "another stream: no event, flag or synchronisation orders them",
                 (unsigned long long)offset, a->bytes, a->device);
        a->last_read[w].store(my_stamp(me), std::memory_order_relaxed);
    }
    return a->data + offset;
}

void *check_write(uint64_t address, size_t size) {
    uint64_t offset;
    const actor &me = current_actor();
    allocation *a = check_place(address, size, &offset, "write");
    for (uint64_t w = offset / WORD; w <= (offset + size - 1) / WORD; w++) {
        if (!is_ordered(me, a->last_write[w].load(std::memory_order_relaxed)) ||
            !is_ordered(me, a->last_read[w].load(std::memory_order_relaxed)))
            stop("write at offset %llu of an allocation of %zu bytes on device %d races with an access "
                 "by another stream: no event, flag or synchronisation orders them",
                 (unsigned long long)offset, a->bytes, a->device);
        a->last_write[w].store(my_stamp(me), std::memory_order_relaxed);
    }
    static thread_local char nowhere[64];
    if (a->device >= 0 && me.device >= 0 && losing[me.device][a->device]) return nowhere;
    for (size_t i = 0; i < size; i++) a->written[offset + i].store(1, std::memory_order_relaxed);
    return a->data + offset;
}

/* --- flags: words that order what stands around them ---------------------------------------------- */

static std::mutex flags_lock;
static std::unordered_map<uint64_t, std::map<uint32_t, vector_clock>> flags; /* by address and value */

static std::atomic<uint32_t> *flag_at(uint64_t address, bool write) {
    uint64_t offset;
    allocation *a = check_place(address, 4, &offset, write ? "flag write" : "flag read");
    for (int i = 0; i < 4 && !write; i++)
        if (!a->written[offset + i].load(std::memory_order_relaxed))
            stop("a flag is read that was never set");
    for (int i = 0; i < 4 && write; i++)
        a->written[offset + i].store(1, std::memory_order_relaxed);
    return reinterpret_cast<std::atomic<uint32_t> *>(a->data + offset);
}

void flag_release(uint64_t address, uint32_t value) {
    std::atomic<uint32_t> *flag = flag_at(address, true);
    std::lock_guard<std::mutex> hold(flags_lock);
    auto &values = flags[address];
    if (values.size() > 4) values.erase(values.begin());
    values[value] = publish(current_actor());
    flag->store(value, std::memory_order_release);
}

uint32_t flag_acquire(uint64_t address) {
    std::atomic<uint32_t> *flag = flag_at(address, false);
    std::lock_guard<std::mutex> hold(flags_lock);
    uint32_t value = flag->load(std::memory_order_acquire);
    auto at = flags.find(address);
    if (at != flags.end()) {
        auto known = at->second.find(value);
        if (known != at->second.end()) current_actor().clock.join(known->second);
    }
    return value;
}

} // namespace cusim
