/* All-reduce between ranks on GPUs: our ways, and NCCL's where its library is there. */
#include "bench/gpu_bench.h"

extern "C" {
#include "ranks/ranks.h"
}

#include <dlfcn.h>

#include <cstdio>
#include <vector>

#ifdef TPD_CUSIM
enum { SMALLEST = 1024, LARGEST = 4096, CALLS = 2 };
#else
enum { SMALLEST = 4096, LARGEST = 256 << 20, CALLS = 20 };
#endif
static const enum comm_algorithm ways[] = {COMM_ONE_SHOT, COMM_TWO_SHOT, COMM_RING, COMM_AUTO};
enum { WAYS = sizeof ways / sizeof *ways };

struct figures {
    size_t bytes;
    double us[WAYS];
};

/* --- NCCL, as far as it is needed --------------------------------------------------------------------- */

struct nccl {
    int (*init_all)(void **comms, int n, const int *devices);
    int (*all_reduce)(const void *from, void *to, size_t n, int type, int op, void *comm, cudaStream_t on);
    int (*group_start)();
    int (*group_end)();
    int (*destroy)(void *comm);
    std::vector<void *> comms, x;
    std::vector<cudaStream_t> streams;
};
enum { NCCL_FLOAT = 7, NCCL_SUM = 0 };

static bool load_nccl(struct nccl *n) {
    void *library = dlopen("libnccl.so.2", RTLD_NOW);
    if (!library) return false;
    auto find = [&](auto &fn, const char *name) {
        fn = reinterpret_cast<std::remove_reference_t<decltype(fn)>>(dlsym(library, name));
        return fn != nullptr;
    };
    return find(n->init_all, "ncclCommInitAll") && find(n->all_reduce, "ncclAllReduce") &&
           find(n->group_start, "ncclGroupStart") && find(n->group_end, "ncclGroupEnd") &&
           find(n->destroy, "ncclCommDestroy");
}

/* False, with a word, where there is nothing to compare with. */
static bool open_nccl(struct nccl *n, const int *gpus, int count) {
#ifdef TPD_CUSIM
    (void)n, (void)gpus, (void)count, (void)load_nccl;
    printf("NCCL knows no simulated devices\n");
    return false;
#else
    for (int i = 0; i < count; i++)
        for (int j = 0; j < i; j++)
            if (gpus[i] == gpus[j]) {
                printf("NCCL has no two ranks on one device: it is not measured\n");
                return false;
            }
    if (!load_nccl(n)) {
        printf("libnccl.so.2 is not there: it is not measured\n");
        return false;
    }
    n->comms.resize(count);
    n->x.resize(count);
    n->streams.resize(count);
    if (n->init_all(n->comms.data(), count, gpus) != 0) {
        printf("NCCL cannot connect these devices: it is not measured\n");
        return false;
    }
    for (int i = 0; i < count; i++) {
        bench_check_cuda(cudaSetDevice(gpus[i]), "choosing a device");
        bench_check_cuda(cudaMalloc(&n->x[i], LARGEST), "allocating");
        bench_check_cuda(cudaStreamCreateWithFlags(&n->streams[i], cudaStreamNonBlocking), "a stream");
    }
    return true;
#endif
}

static double nccl_us(struct nccl *n, size_t bytes) {
    double seconds = bench_best([&] {
        for (int call = 0; call < CALLS; call++) {
            n->group_start();
            for (size_t i = 0; i < n->comms.size(); i++)
                n->all_reduce(n->x[i], n->x[i], bytes / 4, NCCL_FLOAT, NCCL_SUM, n->comms[i], n->streams[i]);
            n->group_end();
        }
        for (cudaStream_t s : n->streams) bench_check_cuda(cudaStreamSynchronize(s), "NCCL");
    });
    return seconds / CALLS * 1e6;
}

static void close_nccl(struct nccl *n) {
    for (size_t i = 0; i < n->comms.size(); i++) {
        n->destroy(n->comms[i]);
        cudaFree(n->x[i]);
        cudaStreamDestroy(n->streams[i]);
    }
}

/* --- ours --------------------------------------------------------------------------------------------- */

static int measure_unit(struct rank *rank, void *arg, struct error *e) {
    auto *f = static_cast<struct figures *>(arg);
    const struct kernels *k = rank->ctx->ops;
    dev_addr x;
    int code = k->mem_alloc(rank->ctx, MEM_BUFFERS, f->bytes, &x, e);
    for (int way = 0; way < WAYS && code == 0; way++) {
        comm_force(rank->comm, ways[way]);
        double seconds = bench_best([&] {
            for (int call = 0; call < CALLS; call++)
                comm_all_reduce(rank->comm, x, 1, (int32_t)(f->bytes / 4), DTYPE_F32);
            if (code == 0) code = k->wait(rank->ctx, e);
        });
        if (rank->index == 0) f->us[way] = seconds / CALLS * 1e6;
    }
    if (code == 0) k->mem_free(rank->ctx, x);
    return code;
}

struct job {
    struct nccl *nccl; /* or NULL */
};

static void measure_all(struct ranks *ranks, void *arg) {
    const auto *job = static_cast<struct job *>(arg);
    struct error e;
    printf("%10s %10s %10s %10s %10s %10s   microseconds\n", "bytes", "one-shot", "two-shot", "ring", "auto",
           job->nccl ? "nccl" : "");
    for (size_t bytes = SMALLEST; bytes <= LARGEST; bytes *= 4) {
        struct figures f = {};
        f.bytes = bytes;
        bench_check(ranks_run(ranks, measure_unit, &f, &e), &e);
        printf("%10zu", bytes);
        for (double us : f.us) printf(" %10.1f", us);
        if (job->nccl) printf(" %10.1f", nccl_us(job->nccl, bytes));
        printf("\n");
    }
}

void bench_all_reduce(const int *gpus, int n) {
    struct ranks_options options = {};
    struct nccl nccl = {};
    struct ranks *ranks;
    struct error e;
    options.device = RANK_CUDA;
    options.n = options.n_gpus = n;
    printf("all-reduce of f32 between %d ranks on cuda:", n);
    for (int i = 0; i < n; i++) {
        options.gpus[i] = gpus[i];
        printf("%s%d", i ? "," : "", gpus[i]);
    }
    printf("\n");
    struct job job = {open_nccl(&nccl, gpus, n) ? &nccl : nullptr};
    bench_check(ranks_start(&ranks, &options, measure_all, &job, &e), &e);
    ranks_join(ranks);
    if (job.nccl) close_nccl(&nccl);
}
