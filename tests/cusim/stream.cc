/* Streams: queues with a thread each, so that what is not ordered really runs at once. */
#include "state.h"

#include "include/cuda_runtime.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

namespace cusim {

static int n_devices = 8;
static uint64_t seed = 1;
static std::mutex fault_lock;
static std::string first_fault;
static std::atomic<int> device_error; /* sticky, as CUDA's: 0 or cudaErrorLaunchFailure */
static std::atomic<int> next_actor{1};
static thread_local int host_device = 0;

/* --- who acts ------------------------------------------------------------------------------------ */

/* Threads of the host are one actor: the program orders them by its own locks. */
static std::mutex host_lock;
static actor host_actor;
static thread_local actor *acting;

actor &current_actor() { return acting ? *acting : host_actor; }
void set_current_actor(actor *a) { acting = a; }

vector_clock publish(actor &a) {
    a.clock.at[a.number]++;
    return a.clock;
}

static vector_clock publish_host() {
    if (acting) return publish(*acting);
    std::lock_guard<std::mutex> hold(host_lock);
    return publish(host_actor);
}

static void host_learns(const vector_clock &clock) {
    std::lock_guard<std::mutex> hold(host_lock);
    host_actor.clock.join(clock);
}

uint64_t next_random(uint64_t &state) {
    state += 0x9E3779B97F4A7C15ull;
    uint64_t z = state;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
}

uint64_t seed_of(uint64_t salt) { return seed * 0x2545F4914F6CDD1Dull + salt; }

void setup(int devices, uint64_t s) {
    n_devices = devices;
    seed = s;
}

static bool over_pcie;
static const char *loss_path;

__attribute__((constructor)) static void read_environment() {
    if (const char *text = std::getenv("CUSIM_SEED")) seed = std::strtoull(text, nullptr, 10);
    if (const char *text = std::getenv("CUSIM_DEVICES")) n_devices = std::atoi(text);
    if (const char *text = std::getenv("CUSIM_LINKS")) {
        over_pcie = std::string(text) == "pcie";
        peers_refused(std::string(text) == "none");
    }
    loss_path = std::getenv("CUSIM_LOSS");
}

/* A device is lost, for good, as soon as the file CUSIM_LOSS is there and holds its number: it does nothing
 * more and answers every call with an error. The others go on. */
static std::atomic<bool> lost[MAX_DEVICES];

static bool is_lost(int device) {
    std::FILE *f = loss_path && !lost[device] ? std::fopen(loss_path, "r") : nullptr;
    if (f) {
        int named = -1;
        if (std::fscanf(f, "%d", &named) == 1 && named == device && !lost[device].exchange(true))
            std::fprintf(stderr, "cusim: device %d is lost, as %s asks\n", device, loss_path);
        std::fclose(f);
    }
    return lost[device];
}

static cudaError_t error_of(int device) {
    int error = device_error;
    return error == 0 && is_lost(device) ? cudaErrorLaunchFailure : (cudaError_t)error;
}

void note_fault(const std::string &message) {
    std::lock_guard<std::mutex> hold(fault_lock);
    device_error = cudaErrorLaunchFailure;
    if (!first_fault.empty()) return;
    first_fault = message;
    if (!std::getenv("CUSIM_QUIET"))
        std::fprintf(stderr, "cusim: %s (CUSIM_SEED=%llu)\n", message.c_str(),
                     (unsigned long long)seed);
}

bool has_failed() { return device_error != 0; }

std::string last_fault() {
    std::lock_guard<std::mutex> hold(fault_lock);
    return first_fault;
}

void clear_fault() {
    std::lock_guard<std::mutex> hold(fault_lock);
    first_fault.clear();
    device_error = 0;
}

/* --- a stream's thread --------------------------------------------------------------------------- */

static void work(stream *s) {
    std::unique_lock<std::mutex> hold(s->lock);
    set_current_actor(&s->who);
    for (;;) {
        s->changed.wait(hold, [&] { return s->ending || !s->queue.empty(); });
        if (s->queue.empty()) return;
        operation op = std::move(s->queue.front());
        s->queue.pop_front();
        s->busy = true;
        hold.unlock();
        s->who.clock.join(op.host);
        try {
            /* After a fault nothing computes, but who waits for an event must not wait for ever. */
            if (error_of(s->device) == cudaSuccess || op.name == "event") op.run();
        } catch (const fault &f) {
            note_fault(f.message);
        }
        hold.lock();
        s->busy = false;
        s->changed.notify_all();
    }
}

static stream *stream_new(int device) {
    auto *s = new stream;
    s->device = device;
    s->who.number = next_actor++ % (MAX_ACTORS - 1) + 1;
    s->who.device = device;
    s->worker = std::thread(work, s);
    return s;
}

/* Each device's default stream. */
static stream *default_stream(int device) {
    static std::mutex lock;
    static stream *streams[MAX_DEVICES];
    std::lock_guard<std::mutex> hold(lock);
    if (!streams[device]) streams[device] = stream_new(device);
    return streams[device];
}

static stream *stream_of(cudaStream_t s) {
    return s ? reinterpret_cast<stream *>(s) : default_stream(host_device);
}

static void wait_idle(stream *s) {
    std::unique_lock<std::mutex> hold(s->lock);
    s->changed.wait(hold, [&] { return s->queue.empty() && !s->busy; });
    host_learns(publish(s->who));
}

int enqueue(stream *on, const char *name, std::function<void()> run) {
    stream *s = on ? on : default_stream(host_device);
    if (error_of(s->device) != cudaSuccess) return error_of(s->device);
    operation op{name, std::move(run), publish_host()};
    std::lock_guard<std::mutex> hold(s->lock);
    if (s->capturing) s->captured.push_back(std::move(op));
    else s->queue.push_back(std::move(op));
    s->changed.notify_all();
    return 0;
}

int launch(const char *name, const launch_shape &shape, stream *on, std::function<void()> kernel) {
    uint64_t threads = (uint64_t)shape.block.x * shape.block.y * shape.block.z;
    if (threads == 0 || threads > MAX_BLOCK || shape.grid.x == 0 || shape.grid.y == 0 ||
        shape.grid.z == 0 || shape.grid.y > 65535 || shape.grid.z > 65535 ||
        shape.shared_bytes > 227 * 1024) {
        note_fault(std::string("kernel ") + name + ": a launch of no possible shape");
        return cudaErrorInvalidConfiguration;
    }
    std::string kept = name;
    return enqueue(on, name, [=] { run_kernel(kept.c_str(), shape, kernel); });
}

static void copy_bytes(void *to, bool to_host, const void *from, bool from_host, size_t n) {
    /* In pieces, so that each is checked as what is aligned. */
    auto t = (uint64_t)to, f = (uint64_t)from;
    for (size_t i = 0; i < n;) {
        size_t step = (t + i) % 4 == 0 && (f + i) % 4 == 0 && n - i >= 4 ? 4 : 1;
        const void *source = from_host ? (const void *)(f + i) : check_read(f + i, step);
        std::memcpy(to_host ? (void *)(t + i) : check_write(t + i, step), source, step);
        i += step;
    }
}

/* A device copies for whoever asks: peers need no access for it, as with CUDA. */
static void copy_as_device(void *to, const void *from, size_t n) {
    actor &me = current_actor();
    int kept = me.device;
    bool to_host = !memory_knows((uint64_t)to), from_host = !memory_knows((uint64_t)from);
    int a = to_host ? kept : memory_device((uint64_t)to);
    int b = from_host ? kept : memory_device((uint64_t)from);
    std::vector<char> middle(n);
    if (b >= 0) me.device = b;
    copy_bytes(middle.data(), true, from, from_host, n);
    if (a >= 0) me.device = a;
    copy_bytes(to, to_host, middle.data(), true, n);
    me.device = kept;
}

extern uint64_t pinned_address(void *host);

} // namespace cusim

using namespace cusim;

/* --- the runtime's functions --------------------------------------------------------------------- */

static bool good_device(int device) { return device >= 0 && device < n_devices; }

cudaError_t cudaGetDeviceCount(int *n) {
    *n = n_devices;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    if (!good_device(device)) return cudaErrorInvalidDevice;
    host_device = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
    *device = host_device;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device) {
    if (!good_device(device)) return cudaErrorInvalidDevice;
    *p = cudaDeviceProp{};
    std::snprintf(p->name, sizeof p->name, "simulated device");
    p->totalGlobalMem = (size_t)8 << 30;
    p->multiProcessorCount = 4;
    p->major = 9;
    p->sharedMemPerBlockOptin = 227 * 1024;
    p->cooperativeLaunch = 1;
    return cudaSuccess;
}

static std::atomic<size_t> used[MAX_DEVICES];
static std::mutex sizes_lock;
static std::unordered_map<uint64_t, size_t> sizes;

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    *total = (size_t)8 << 30;
    *free_bytes = *total - used[host_device];
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **out, size_t bytes) {
    if (used[host_device] + bytes > (size_t)8 << 30) return cudaErrorMemoryAllocation;
    uint64_t address = memory_new(host_device, bytes);
    std::lock_guard<std::mutex> hold(sizes_lock);
    sizes[address] = bytes;
    used[host_device] += bytes;
    *out = reinterpret_cast<void *>(address);
    return cudaSuccess;
}

cudaError_t cudaFree(void *at) {
    if (!at) return cudaPeekAtLastError();
    uint64_t address = (uint64_t)at;
    int device = memory_device(address);
    if (device < 0) return cudaErrorInvalidValue;
    cudaDeviceSynchronize();
    if (!memory_delete(address, device)) return cudaErrorInvalidValue;
    std::lock_guard<std::mutex> hold(sizes_lock);
    used[device] -= sizes[address];
    sizes.erase(address);
    return cudaSuccess;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *at) {
    uint64_t address = (uint64_t)at;
    std::lock_guard<std::mutex> hold(sizes_lock);
    if (!sizes.count(address)) return cudaErrorInvalidValue; /* not an allocation's beginning */
    *handle = {};
    std::memcpy(handle, &address, sizeof address);
    return cudaSuccess;
}

static std::mutex pinned_lock;
struct pinned_block {
    uint64_t address;
    size_t bytes;
};
static std::unordered_map<void *, pinned_block> pinned_blocks;

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned) {
    uint64_t address = memory_new(-1, bytes);
    *out = memory_pinned(address);
    for (size_t i = 0; i < bytes; i++) *static_cast<char *>(check_write(address + i, 1)) = 0;
    std::lock_guard<std::mutex> hold(pinned_lock);
    pinned_blocks[*out] = {address, bytes};
    return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void **out, void *host, unsigned) {
    uint64_t address = pinned_address(host);
    *out = reinterpret_cast<void *>(address);
    return address ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaFreeHost(void *host) {
    std::lock_guard<std::mutex> hold(pinned_lock);
    auto at = pinned_blocks.find(host);
    if (at == pinned_blocks.end()) return cudaErrorInvalidValue;
    memory_delete(at->second.address, -1);
    pinned_blocks.erase(at);
    return cudaSuccess;
}

static bool is_pinned(const void *host) {
    std::lock_guard<std::mutex> hold(pinned_lock);
    for (auto &b : pinned_blocks) {
        auto from = static_cast<const char *>(b.first);
        if (host >= from && host < from + b.second.bytes) return true;
    }
    return false;
}

static std::atomic<size_t> brought;
namespace cusim {
size_t bytes_to_host() { return brought; }
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, cudaMemcpyKind, cudaStream_t on) {
    if (n == 0) return cudaSuccess;
    bool to_device = memory_knows((uint64_t)to), from_device = memory_knows((uint64_t)from);
    if (from_device && !to_device) brought += n;
    stream *s = stream_of(on);
    if (!from_device && !is_pinned(from)) { /* staged: the caller may reuse its memory at once */
        auto staged = std::make_shared<std::vector<char>>((const char *)from, (const char *)from + n);
        return (cudaError_t)enqueue(s, "copy", [=] { copy_as_device(to, staged->data(), n); });
    }
    int rc = enqueue(s, "copy", [=] { copy_as_device(to, from, n); });
    if (rc == 0 && !to_device && !is_pinned(to)) return cudaStreamSynchronize(on);
    return (cudaError_t)rc;
}

cudaError_t cudaMemcpyPeerAsync(void *to, int, const void *from, int, size_t n, cudaStream_t on) {
    return cudaMemcpyAsync(to, from, n, cudaMemcpyDeviceToDevice, on);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t n, cudaMemcpyKind kind) {
    cudaError_t rc = cudaMemcpyAsync(to, from, n, kind, nullptr);
    return rc ? rc : cudaStreamSynchronize(nullptr);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t on) {
    for (size_t i = 0; i < height; i++) {
        cudaError_t rc = cudaMemcpyAsync((char *)to + i * to_pitch, (const char *)from + i * from_pitch,
                                         width, kind, on);
        if (rc) return rc;
    }
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t n, cudaStream_t on) {
    return (cudaError_t)enqueue(stream_of(on), "memset", [=] {
        char word[4] = {(char)value, (char)value, (char)value, (char)value};
        for (size_t i = 0; i < n;) {
            size_t step = ((uint64_t)to + i) % 4 == 0 && n - i >= 4 ? 4 : 1;
            std::memcpy(check_write((uint64_t)to + i, step), word, step);
            i += step;
        }
    });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned) {
    *out = reinterpret_cast<cudaStream_t>(stream_new(host_device));
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t on) {
    stream *s = stream_of(on);
    wait_idle(s);
    {
        std::lock_guard<std::mutex> hold(s->lock);
        s->ending = true;
        s->changed.notify_all();
    }
    s->worker.join();
    delete s;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t on) {
    wait_idle(stream_of(on));
    return error_of(stream_of(on)->device);
}

cudaError_t cudaStreamQuery(cudaStream_t on) {
    stream *s = stream_of(on);
    std::lock_guard<std::mutex> hold(s->lock);
    if (!s->queue.empty() || s->busy) return cudaErrorNotReady;
    return cudaPeekAtLastError();
}

/* All streams of all devices: more than CUDA waits for, which hides no fault that it would show. */
cudaError_t cudaDeviceSynchronize() {
    wait_idle(default_stream(host_device));
    return cudaPeekAtLastError();
}

cudaError_t cudaGetLastError() { return error_of(host_device); }
cudaError_t cudaPeekAtLastError() { return error_of(host_device); }

const char *cudaGetErrorString(cudaError_t error) {
    switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorPeerAccessAlreadyEnabled: return "peer access is already enabled";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorLaunchFailure: return "unspecified launch failure";
    default: return "unknown error";
    }
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int from, int to) {
    *can = good_device(from) && good_device(to) && from != to && peer_possible();
    return cudaSuccess;
}

cudaError_t cudaDeviceGetP2PAttribute(int *value, cudaDeviceP2PAttr which, int from, int to) {
    if (!good_device(from) || !good_device(to) || from == to) return cudaErrorInvalidDevice;
    *value = which == cudaDevP2PAttrNativeAtomicSupported && peer_possible() && !over_pcie;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
    if (!good_device(peer) || peer == host_device) return cudaErrorInvalidDevice;
    if (!peer_possible()) return cudaErrorPeerAccessUnsupported;
    if (peer_enabled(host_device, peer)) return cudaErrorPeerAccessAlreadyEnabled;
    peer_enable(host_device, peer, true);
    return cudaSuccess;
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
    if (!good_device(peer)) return cudaErrorInvalidDevice;
    peer_enable(host_device, peer, false);
    return cudaSuccess;
}

/* --- events -------------------------------------------------------------------------------------- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned) {
    *out = reinterpret_cast<cudaEvent_t>(new event);
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t e) {
    cudaEventSynchronize(e);
    delete reinterpret_cast<event *>(e);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t which, cudaStream_t on) {
    auto *e = reinterpret_cast<event *>(which);
    uint64_t number;
    {
        std::lock_guard<std::mutex> hold(e->lock);
        number = ++e->recorded;
    }
    return (cudaError_t)enqueue(stream_of(on), "event", [=] {
        std::lock_guard<std::mutex> hold(e->lock);
        e->reached = number;
        e->clock = publish(current_actor());
        e->time_ns = nanoseconds();
        e->changed.notify_all();
    });
}

static void wait_event(event *e, uint64_t number, actor &who) {
    std::unique_lock<std::mutex> hold(e->lock);
    /* What failed before never reaches its events. */
    while (e->reached < number && device_error == 0)
        e->changed.wait_for(hold, std::chrono::milliseconds(5));
    who.clock.join(e->clock);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t on, cudaEvent_t which, unsigned) {
    auto *e = reinterpret_cast<event *>(which);
    uint64_t number;
    {
        std::lock_guard<std::mutex> hold(e->lock);
        number = e->recorded;
    }
    return (cudaError_t)enqueue(stream_of(on), "wait",
                                [=] { wait_event(e, number, current_actor()); });
}

cudaError_t cudaEventSynchronize(cudaEvent_t which) {
    auto *e = reinterpret_cast<event *>(which);
    actor learnt;
    wait_event(e, e->recorded, learnt);
    host_learns(learnt.clock);
    return cudaPeekAtLastError();
}

cudaError_t cudaEventQuery(cudaEvent_t which) {
    auto *e = reinterpret_cast<event *>(which);
    std::lock_guard<std::mutex> hold(e->lock);
    return e->reached < e->recorded && device_error == 0 ? cudaErrorNotReady : cudaPeekAtLastError();
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    auto *a = reinterpret_cast<event *>(from), *b = reinterpret_cast<event *>(to);
    *ms = (float)((double)(b->time_ns - a->time_ns) / 1e6);
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t on, cudaHostFn_t fn, void *arg) {
    return (cudaError_t)enqueue(stream_of(on), "host function", [=] { fn(arg); });
}

/* --- graphs -------------------------------------------------------------------------------------- */

struct graph {
    std::vector<operation> operations;
};

cudaError_t cudaStreamBeginCapture(cudaStream_t on, cudaStreamCaptureMode) {
    stream *s = stream_of(on);
    std::lock_guard<std::mutex> hold(s->lock);
    s->capturing = true;
    s->captured.clear();
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t on, cudaGraph_t *out) {
    stream *s = stream_of(on);
    std::lock_guard<std::mutex> hold(s->lock);
    auto *g = new graph{std::move(s->captured)};
    s->capturing = false;
    *out = reinterpret_cast<cudaGraph_t>(g);
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t from, unsigned long long) {
    *out = reinterpret_cast<cudaGraphExec_t>(new graph(*reinterpret_cast<graph *>(from)));
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t which, cudaStream_t on) {
    for (const operation &op : reinterpret_cast<graph *>(which)->operations) {
        int rc = enqueue(stream_of(on), op.name.c_str(), op.run);
        if (rc) return (cudaError_t)rc;
    }
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t g) {
    delete reinterpret_cast<graph *>(g);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t g) {
    delete reinterpret_cast<graph *>(g);
    return cudaSuccess;
}
