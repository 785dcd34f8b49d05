/* tests/cusim/sim.h: simulated CUDA devices, on which the project's own .cu sources run without a GPU.
 *
 * What a kernel may do goes through the types and functions here (kernels/cuda/port.h gives them their
 * device meaning under nvcc), so that the simulator sees every access:
 *   - device addresses are numbers that no host memory has: following one on the host faults at once;
 *   - every access is checked: bounds, life, peer access, reads of what was never written, and, by vector
 *     clocks, whether it is ordered against what other streams did to the same word;
 *   - every shared-memory access is checked for a race between barriers;
 *   - a block's threads are fibers, resumed in an order drawn from CUSIM_SEED (printed with a fault).
 * A fault ends its kernel and is reported by the next synchronising call as cudaErrorLaunchFailure;
 * cusim::last_fault() has the sentence.
 */
#ifndef TPD_CUSIM_SIM_H
#define TPD_CUSIM_SIM_H

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>

#ifndef TPD_CUSIM
/* `make gpu-test` runs the tests on real devices, which find no faults. */
namespace cusim {
static inline std::string last_fault() { return ""; }
static inline void clear_fault() {}
} // namespace cusim
#else

namespace cusim {

enum { MAX_DEVICES = 8, WARP = 32, MAX_BLOCK = 1024 };

struct index3 {
    unsigned x, y, z;
};

/* --- faults ------------------------------------------------------------------------------------ */

/* Thrown inside a kernel (or a stream's operation); ends it. */
struct fault {
    std::string message;
};
[[noreturn]] void stop(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The first fault since the last clear_fault, or "". */
std::string last_fault();
void clear_fault();

/* --- threads of a kernel ------------------------------------------------------------------------- */

struct lane; /* a simulated thread */
lane *self();
const index3 &thread_index();
const index3 &block_index();
const index3 &block_size();
const index3 &grid_size();
void sync_threads();
void sync_warp(unsigned mask);
/* All lanes of mask give a value; each gets that of the lane it asks for (itself when that one is
 * outside). */
uint64_t shuffle(unsigned mask, uint64_t value, int from);
unsigned ballot(unsigned mask, bool predicate);
/* A wait for another block or device; only in kernels that were launched as resident. */
void spin_pause();
uint64_t nanoseconds();

/* --- device memory ------------------------------------------------------------------------------- */

/* The host bytes behind [address, address + size) for the running thread, after all checks. */
const void *check_read(uint64_t address, size_t size);
void *check_write(uint64_t address, size_t size);
void flag_release(uint64_t address, uint32_t value);
uint32_t flag_acquire(uint64_t address);

/* An allocation that is carved up (kernels/cuda/memory.cu): from its first piece on an access must lie within
 * one piece, and a new piece was never written. Pieces begin at multiples of 256. */
void piece_new(uint64_t address, size_t bytes);
void piece_end(uint64_t address);
struct stream;
/* A piece made anew, in the stream's order. */
void piece_again(stream *on, uint64_t address, size_t bytes);

template <class T> struct ref {
    uint64_t address;
    using value = std::remove_const_t<T>;
    operator value() const {
        value v;
        std::memcpy(static_cast<void *>(&v), check_read(address, sizeof v), sizeof v);
        return v;
    }
    const ref &operator=(const value &v) const {
        static_assert(!std::is_const_v<T>, "memory that is read only");
        std::memcpy(check_write(address, sizeof v), static_cast<const void *>(&v), sizeof v);
        return *this;
    }
    const ref &operator=(const ref &other) const { return *this = static_cast<value>(other); }
    const ref &operator+=(const value &v) const { return *this = static_cast<value>(*this) + v; }
    const ref &operator-=(const value &v) const { return *this = static_cast<value>(*this) - v; }
    const ref &operator*=(const value &v) const { return *this = static_cast<value>(*this) * v; }
};

/* A pointer into device memory. */
template <class T> struct ptr {
    uint64_t address = 0;
    ptr() = default;
    explicit ptr(uint64_t a) : address(a) {}
    template <class U, class = std::enable_if_t<std::is_same_v<T, const U>>>
    ptr(const ptr<U> &other) : address(other.address) {}
    ref<T> operator[](int64_t i) const { return {address + (uint64_t)(i * (int64_t)sizeof(T))}; }
    ref<T> operator*() const { return {address}; }
    ptr operator+(int64_t i) const { return ptr(address + (uint64_t)(i * (int64_t)sizeof(T))); }
    ptr operator-(int64_t i) const { return *this + -i; }
    ptr &operator+=(int64_t i) { return *this = *this + i; }
    ptr &operator++() { return *this += 1; }
    explicit operator bool() const { return address != 0; }
    bool operator==(const ptr &other) const { return address == other.address; }
    bool operator!=(const ptr &other) const { return address != other.address; }
};

/* --- shared memory ------------------------------------------------------------------------------- */

struct shared_block; /* storage with the accesses to each element since the last barriers */
shared_block *shared_static(const void *key, size_t element, size_t n);
shared_block *shared_dynamic(size_t element);
void *check_shared(shared_block *block, int64_t index, bool write);

template <class T> struct shared_ref {
    shared_block *block;
    int64_t index;
    operator T() const {
        T v;
        std::memcpy(static_cast<void *>(&v), check_shared(block, index, false), sizeof v);
        return v;
    }
    const shared_ref &operator=(const T &v) const {
        std::memcpy(check_shared(block, index, true), static_cast<const void *>(&v), sizeof v);
        return *this;
    }
    const shared_ref &operator=(const shared_ref &o) const { return *this = static_cast<T>(o); }
    const shared_ref &operator+=(const T &v) const { return *this = static_cast<T>(*this) + v; }
    const shared_ref &operator*=(const T &v) const { return *this = static_cast<T>(*this) * v; }
};

/* A pointer into shared memory. */
template <class T> struct sptr {
    shared_block *block = nullptr;
    int64_t index = 0;
    shared_ref<T> operator[](int64_t i) const { return {block, index + i}; }
    sptr operator+(int64_t i) const { return {block, index + i}; }
};

/* --- launches ------------------------------------------------------------------------------------ */

struct launch_shape {
    index3 grid, block;
    size_t shared_bytes;
    bool resident; /* all blocks live at once: they may wait for each other and for other devices */
};
/* Enqueues; returns a cudaError_t. */
int launch(const char *name, const launch_shape &shape, stream *on, std::function<void()> kernel);
/* Enqueues work of the host that stands for the device's: a product, a copy. */
int enqueue(stream *on, const char *name, std::function<void()> work);

/* How many devices there are (default 8), and the seed of all orders; before anything else. */
void setup(int n_devices, uint64_t seed);
/* Peer access that no driver gives, and one that it claims but that loses what device from writes. */
void peers_refused(bool refused);
void peers_lose_writes(int from, int to, bool lost);
/* Allocations that are still there, all devices. */
size_t live_allocations();
/* Bytes that copies have brought from devices to the host so far. */
size_t bytes_to_host();

} // namespace cusim

#endif
#endif
