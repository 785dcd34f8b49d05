/* The simulator finds what it is there to find. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

extern "C" {
#include <cmocka.h>
}

#include "planted.h"

#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <csignal>
#include <cstdio>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

static uint64_t device_new(int device, size_t bytes) {
    void *at;
    assert_int_equal(cudaSetDevice(device), cudaSuccess);
    assert_int_equal(cudaMalloc(&at, bytes), cudaSuccess);
    return (uint64_t)at;
}

static uint64_t device_put(int device, const std::vector<float> &values) {
    uint64_t at = device_new(device, values.size() * 4);
    assert_int_equal(cudaMemcpy((void *)at, values.data(), values.size() * 4, cudaMemcpyDefault), 0);
    return at;
}

static std::vector<float> device_get(uint64_t at, size_t n) {
    std::vector<float> values(n);
    cudaMemcpy(values.data(), (void *)at, n * 4, cudaMemcpyDefault);
    return values;
}

static cudaStream_t stream_new(int device) {
    cudaStream_t s;
    cudaSetDevice(device);
    cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    return s;
}

/* The stream's work ends in a fault whose sentence has these words. */
static void expect_fault(cudaStream_t s, const char *words) {
    assert_int_equal(cudaStreamSynchronize(s), cudaErrorLaunchFailure);
    std::string fault = cusim::last_fault();
    if (fault.find(words) == std::string::npos) fail_msg("\"%s\" has no \"%s\"", fault.c_str(), words);
    cusim::clear_fault();
}

static int clean(void **) {
    cusim::clear_fault();
    cudaSetDevice(0);
    return 0;
}

static void sum_with(int fault, const char *words) {
    std::vector<float> x(4 * 100);
    for (size_t i = 0; i < x.size(); i++) x[i] = (float)i;
    cudaStream_t s = stream_new(0);
    uint64_t in = device_put(0, x), out = device_new(0, 4 * 4);
    planted_sum_rows(out, in, 4, 100, fault, s);
    if (words) expect_fault(s, words);
    else {
        assert_int_equal(cudaStreamSynchronize(s), cudaSuccess);
        std::vector<float> got = device_get(out, 4);
        for (int r = 0; r < 4; r++) assert_true(got[r] == (float)(100 * (100 * r) + 99 * 50));
    }
    cudaStreamDestroy(s);
    cudaFree((void *)in);
    cudaFree((void *)out);
}

static void a_right_kernel_gives_right_sums(void **) { sum_with(PLANT_NONE, nullptr); }
static void a_missing_barrier_is_found(void **) { sum_with(PLANT_NO_BARRIER, "shared memory: element"); }
static void a_write_out_of_bounds_is_found(void **) {
    sum_with(PLANT_OUT_OF_BOUNDS, "out of bounds");
}
static void a_barrier_that_not_all_reach_is_found(void **) {
    sum_with(PLANT_LOST_BARRIER, "__syncthreads");
}

static void shuffle_with(int fault, const char *words) {
    cudaStream_t s = stream_new(0);
    uint64_t out = device_new(0, 32 * 4);
    planted_shuffle(out, fault, s);
    if (words) expect_fault(s, words);
    else {
        assert_int_equal(cudaStreamSynchronize(s), cudaSuccess);
        std::vector<float> got = device_get(out, 32);
        for (int i = 0; i < 32; i++) assert_true(got[i] == (float)(i ^ 1));
    }
    cudaStreamDestroy(s);
    cudaFree((void *)out);
}

static void a_shuffle_exchanges_values(void **) { shuffle_with(PLANT_NONE, nullptr); }
static void a_wrong_mask_is_found(void **) { shuffle_with(PLANT_WRONG_MASK, "mask"); }
static void a_shuffle_that_not_all_reach_is_found(void **) {
    shuffle_with(PLANT_LOST_SHUFFLE, "not all");
}

static void memory_that_was_never_written_is_not_read(void **) {
    cudaStream_t s = stream_new(0);
    uint64_t in = device_new(0, 400), out = device_new(0, 4);
    planted_sum_rows(out, in, 1, 100, PLANT_NONE, s);
    expect_fault(s, "never written");
    cudaStreamDestroy(s);
    cudaFree((void *)in);
    cudaFree((void *)out);
}

static void freed_memory_is_not_read(void **) {
    cudaStream_t s = stream_new(0);
    uint64_t in = device_put(0, std::vector<float>(100)), out = device_new(0, 4);
    cudaFree((void *)in);
    planted_sum_rows(out, in, 1, 100, PLANT_NONE, s);
    expect_fault(s, "freed");
    cudaStreamDestroy(s);
    cudaFree((void *)out);
}

/* A stretch of 1 KiB, carved into x (100 floats at 0) and out (4 bytes at 512): nothing between them, nor
 * behind, is anybody's. */
static void carved(size_t x_bytes, int fault, bool freed, const char *words) {
    cudaStream_t s = stream_new(0);
    uint64_t at = device_new(0, 1024);
    cusim::piece_new(at, x_bytes);
    cusim::piece_new(at + 512, 4);
    std::vector<float> ones(x_bytes / 4, 1);
    cudaMemcpy((void *)at, ones.data(), x_bytes, cudaMemcpyDefault);
    if (freed) cusim::piece_end(at);
    planted_sum_rows(at + 512, at, 1, 100, fault, s);
    if (words) expect_fault(s, words);
    else {
        assert_int_equal(cudaStreamSynchronize(s), cudaSuccess);
        assert_true(device_get(at + 512, 1)[0] == 100);
    }
    cudaStreamDestroy(s);
    cudaFree((void *)at);
}

static void pieces_of_an_allocation_are_used(void **) { carved(400, PLANT_NONE, false, nullptr); }
static void an_access_behind_a_piece_is_found(void **) {
    carved(396, PLANT_NONE, false, "of a piece of 396 bytes: out of bounds");
    carved(400, PLANT_OUT_OF_BOUNDS, false, "of a piece of 4 bytes: out of bounds");
}
static void an_access_between_pieces_is_found(void **) {
    carved(200, PLANT_NONE, false, "out of bounds");
}
static void a_piece_that_was_freed_is_not_read(void **) {
    carved(400, PLANT_NONE, true, "in a piece that was freed");
}

static void a_piece_that_is_taken_anew_was_never_written(void **) {
    cudaStream_t s = stream_new(0);
    uint64_t at = device_put(0, std::vector<float>(256, 1));
    for (int way = 0; way < 2; way++) { /* given back and taken; made anew in the stream's order */
        cusim::piece_new(at, 400);
        cusim::piece_new(at + 512, 4);
        planted_fill(at, 100, 1, s);
        if (way == 0) {
            assert_int_equal(cudaStreamSynchronize(s), cudaSuccess);
            cusim::piece_end(at);
            cusim::piece_new(at, 400);
        } else cusim::piece_again(reinterpret_cast<cusim::stream *>(s), at, 400);
        planted_sum_rows(at + 512, at, 1, 100, PLANT_NONE, s);
        expect_fault(s, "never written");
        cusim::piece_end(at);
        cusim::piece_end(at + 512);
    }
    cudaStreamDestroy(s);
    cudaFree((void *)at);
}

static void pieces_that_overlap_are_refused(void **) {
    uint64_t at = device_new(0, 1024);
    cusim::piece_new(at, 300);
    for (uint64_t other : {at, at + 256, at + 100, at + 1024}) {
        cusim::piece_new(other, 4);
        assert_string_not_equal(cusim::last_fault().c_str(), "");
        cusim::clear_fault();
    }
    cusim::piece_end(at + 256);
    assert_string_not_equal(cusim::last_fault().c_str(), "");
    cusim::clear_fault();
    cudaFree((void *)at);
}

static void the_host_cannot_follow_a_device_address(void **) {
    uint64_t at = device_put(0, {1, 2});
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        signal(SIGBUS, SIG_DFL);
        _exit((int)*(volatile float *)at);
    }
    int status;
    waitpid(child, &status, 0);
    assert_true(WIFSIGNALED(status));
    cudaFree((void *)at);
}

/* Two streams of one device write and read one buffer. */
static void two_streams(bool with_event) {
    cudaStream_t a = stream_new(0), b = stream_new(0);
    cudaEvent_t done;
    cudaEventCreateWithFlags(&done, cudaEventDisableTiming);
    uint64_t x = device_put(0, std::vector<float>(256)), y = device_put(0, std::vector<float>(256));
    planted_fill(x, 256, 3, a);
    cudaEventRecord(done, a);
    if (with_event) cudaStreamWaitEvent(b, done, 0);
    planted_add(y, x, 256, b);
    if (with_event) {
        assert_int_equal(cudaStreamSynchronize(b), cudaSuccess);
        std::vector<float> got = device_get(y, 256);
        for (float v : got) assert_true(v == 3);
    } else {
        cudaStreamSynchronize(a);
        expect_fault(b, "races");
    }
    cudaStreamDestroy(a);
    cudaStreamDestroy(b);
    cudaEventDestroy(done);
    cudaFree((void *)x);
    cudaFree((void *)y);
}

static void an_event_orders_two_streams(void **) { two_streams(true); }
static void a_missing_event_is_found(void **) { two_streams(false); }

/* Rounds of an all-reduce over n devices, each round's input the last one's sums. */
static void all_reduce(int n, int fault, bool resident, bool peers, const char *words) {
    enum { COUNT = 100, ROUNDS = 4 };
    planted_peers p{};
    std::vector<cudaStream_t> streams(n);
    for (int r = 0; r < n; r++) {
        std::vector<float> x(COUNT);
        for (int i = 0; i < COUNT; i++) x[i] = (float)(r + i);
        streams[r] = stream_new(r);
        p.data[r] = device_put(r, x);
        p.out[r] = device_new(r, COUNT * 4);
        p.flags[r] = device_put(r, std::vector<float>(n)); /* zero bits */
        for (int other = 0; other < n; other++) {
            cudaSetDevice(r);
            if (other != r && peers) cudaDeviceEnablePeerAccess(other, 0);
            if (other != r && !peers) cudaDeviceDisablePeerAccess(other);
        }
    }
    for (int r = 0; r < n; r++) {
        cudaSetDevice(r);
        /* Not yet synchronised data: what the flags must order. */
        planted_add(p.data[r], p.data[r], COUNT, streams[r]);
        planted_all_reduce(&p, r, n, COUNT, 1, fault, resident, streams[r]);
    }
    if (words) {
        for (int r = 0; r < n; r++) cudaStreamSynchronize(streams[r]);
        expect_fault(streams[0], words);
    } else
        for (int r = 0; r < n; r++) {
            assert_int_equal(cudaStreamSynchronize(streams[r]), cudaSuccess);
            std::vector<float> got = device_get(p.out[r], COUNT);
            for (int i = 0; i < COUNT; i++) assert_true(got[i] == (float)(n * (n - 1) + 2 * n * i));
        }
    for (int r = 0; r < n; r++) {
        cudaStreamDestroy(streams[r]);
        cudaFree((void *)p.data[r]);
        cudaFree((void *)p.out[r]);
        cudaFree((void *)p.flags[r]);
    }
}

static void devices_reduce_over_peer_memory(void **) {
    for (int n = 1; n <= 8; n *= 2) all_reduce(n, PLANT_NONE, true, true, nullptr);
}
static void a_missing_flag_wait_is_found(void **) {
    all_reduce(4, PLANT_NO_FLAG_WAIT, true, true, "races");
}
static void peer_access_that_is_not_enabled_is_found(void **) {
    all_reduce(2, PLANT_NONE, true, false, "without peer access");
}
static void a_spin_in_a_kernel_that_is_not_resident_is_found(void **) {
    all_reduce(2, PLANT_NONE, false, true, "not launched as resident");
}

static void graphs_replay_what_was_captured(void **) {
    cudaStream_t s = stream_new(0);
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    uint64_t x = device_put(0, std::vector<float>(64, 1)), y = device_put(0, std::vector<float>(64));
    cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal);
    planted_add(y, x, 64, s);
    cudaStreamEndCapture(s, &graph);
    cudaGraphInstantiate(&ready, graph, 0);
    assert_true(device_get(y, 1)[0] == 0);
    for (int i = 0; i < 3; i++) cudaGraphLaunch(ready, s);
    assert_int_equal(cudaStreamSynchronize(s), cudaSuccess);
    assert_true(device_get(y, 64)[63] == 3);
    cudaGraphExecDestroy(ready);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(s);
    cudaFree((void *)x);
    cudaFree((void *)y);
}

static void products_are_column_major_and_checked(void **) {
    /* c[2x2] = a[2x3] b[3x2], column-major. */
    uint64_t a = device_put(0, {1, 4, 2, 5, 3, 6}), b = device_put(0, {7, 9, 11, 8, 10, 12});
    uint64_t c = device_new(0, 16);
    float one = 1, zero = 0;
    cublasHandle_t h;
    cublasCreate(&h);
    auto multiply = [&](int lda, int ldb, cublasOperation_t ta) {
        return cublasGemmEx(h, ta, CUBLAS_OP_N, 2, 2, 3, &one, (void *)a, CUDA_R_32F, lda, (void *)b,
                            CUDA_R_32F, ldb, &zero, (void *)c, CUDA_R_32F, 2, CUBLAS_COMPUTE_32F,
                            CUBLAS_GEMM_DEFAULT);
    };
    assert_int_equal(multiply(2, 3, CUBLAS_OP_N), CUBLAS_STATUS_SUCCESS);
    std::vector<float> got = device_get(c, 4), want = {58, 139, 64, 154};
    assert_true(got == want);
    assert_int_equal(multiply(1, 3, CUBLAS_OP_N), CUBLAS_STATUS_INVALID_VALUE);
    assert_int_equal(multiply(2, 3, CUBLAS_OP_T), CUBLAS_STATUS_INVALID_VALUE);
    cublasDestroy(h);
    for (uint64_t at : {a, b, c}) cudaFree((void *)at);
}

static void narrow_floats_round_as_the_hardware_does(void **) {
    for (unsigned i = 0; i < 65536; i++) {
        __half h{(uint16_t)i};
        float f = __half2float(h);
        if (f == f) assert_int_equal(__float2half(f).bits, i);
        __nv_bfloat16 b{(uint16_t)i};
        float g = __bfloat162float(b);
        if (g == g) assert_int_equal(__float2bfloat16(g).bits, i);
    }
    assert_int_equal(__float2half(65519.9f).bits, 0x7BFF);
    assert_int_equal(__float2half(65520.0f).bits, 0x7C00);
    assert_int_equal(__float2half(0x1p-25f).bits, 0);
    assert_int_equal(__float2half(0x1.8p-25f).bits, 1);
    assert_int_equal(__float2half(1.00048828125f).bits, 0x3C00);    /* a tie: to even */
    assert_int_equal(__float2bfloat16(1.00390625f).bits, 0x3F80);   /* likewise */
    assert_int_equal(__float2bfloat16(1.01171875f).bits, 0x3F82);
}

static void nothing_is_left(void **) { assert_int_equal(cusim::live_allocations(), 0); }

#define T(f) cmocka_unit_test_setup(f, clean)
int main() {
    setenv("CUSIM_QUIET", "1", 0);
    const struct CMUnitTest tests[] = {
        T(a_right_kernel_gives_right_sums),
        T(a_missing_barrier_is_found),
        T(a_write_out_of_bounds_is_found),
        T(a_barrier_that_not_all_reach_is_found),
        T(a_shuffle_exchanges_values),
        T(a_wrong_mask_is_found),
        T(a_shuffle_that_not_all_reach_is_found),
        T(memory_that_was_never_written_is_not_read),
        T(freed_memory_is_not_read),
        T(pieces_of_an_allocation_are_used),
        T(an_access_behind_a_piece_is_found),
        T(an_access_between_pieces_is_found),
        T(a_piece_that_was_freed_is_not_read),
        T(a_piece_that_is_taken_anew_was_never_written),
        T(pieces_that_overlap_are_refused),
        T(the_host_cannot_follow_a_device_address),
        T(an_event_orders_two_streams),
        T(a_missing_event_is_found),
        T(devices_reduce_over_peer_memory),
        T(a_missing_flag_wait_is_found),
        T(peer_access_that_is_not_enabled_is_found),
        T(a_spin_in_a_kernel_that_is_not_resident_is_found),
        T(graphs_replay_what_was_captured),
        T(products_are_column_major_and_checked),
        T(narrow_floats_round_as_the_hardware_does),
        T(nothing_is_left),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
