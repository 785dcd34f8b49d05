#!/bin/sh
# Runs parts of the tests on what is built in $B. Parts: layers (who may include whom), unit (every
# C test), threads (the C tests that start threads), alias (the C tests that compute, with device
# memory behind unreadable addresses), e2e (pytest through the socket), cusim (the CUDA sources on simulated devices), gpu (the same on real ones),
# fuzz (the fuzz tests for TPD_FUZZ_SECONDS each).
# Ends with pytest's summary for e2e, else with a line "N passed, N failed".
set -u
cd "$(dirname "$0")/.."
B=${B:-build}
PYTHON=${PYTHON:-/usr/bin/python3}
export TPD_BUILD="$B"
export TPD_SHARED="${TPD_SHARED:-../shared}"
export ASAN_OPTIONS="${ASAN_OPTIONS:-detect_stack_use_after_return=1}"
export TSAN_OPTIONS="${TSAN_OPTIONS:-halt_on_error=1}"
passed=0
failed=0
e2e=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

run_one() { # run_one LABEL COMMAND…
    label=$1
    shift
    began=$(date +%s)
    "$@" >"$log" 2>&1
    status=$?
    seconds=$(($(date +%s) - began))
    if [ "$status" -eq 0 ]; then
        passed=$((passed + 1))
        tests=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$log")
        reason=$(sed -n 's/^skip[a-z]*: //p' "$log" | head -n 1)
        echo "ok   $label (${tests:-1} tests, $seconds s${reason:+, some skipped: $reason})"
    else
        failed=$((failed + 1))
        echo "FAIL $label"
        tail -n 60 "$log" | sed 's/^/     /'
    fi
}

each_test() { # each_test SUFFIX PATTERN
    for test in "$B"/tests/$2; do
        [ -x "$test" ] && run_one "$(basename "$test")$1" "$test"
    done
}
# The tests that start no second thread, which a thread sanitizer has nothing to say about.
one_thread='adapter_cases config daemon_config daemon_json daemon_lines daemon_schema dequant draw fuzz_* gguf
    grammar* guess inspect jinja jobs_nights kv_blocks machine model_open output plan safetensors sampler*
    scheduler store template_shared tokenizer* tool_calls train_border train_job train_plan'

each_threaded() {
    for test in "$B"/tests/test_*; do
        name=${test##*/test_}
        for pattern in $one_thread; do # not expanded to files: none are named so
            # shellcheck disable=SC2254
            case $name in $pattern) continue 2 ;; esac
        done
        [ -x "$test" ] && run_one "${test##*/}" "$test"
    done
}

each_cusim() { # a few orders of everything that has no order; some golden models in one; tpd as a whole
    [ -e "$B/cusim/tpd-cuda.so" ] && run_one "tpd on simulated GPUs" \
        env TPD_TEST_CUDA=simulated "$PYTHON" -m pytest -q -p no:cacheprovider tests/e2e/test_cuda.py
    [ -x "$B/cusim/gpu_bench" ] && run_one "gpu_bench on simulated GPUs" "$B/cusim/gpu_bench" 0,1
    [ -x "$B/cusim/golden_models" ] && run_one "golden models on simulated GPUs, tp 1 to 8" \
        env TPD_TEST_GPUS=8 TPD_TEST_ONLY="${TPD_TEST_ONLY:-granite llama-q4_k}" \
        TPD_TEST_TP="${TPD_TEST_TP:-1 4 8}" \
        timeout 1200 "$B/cusim/golden_models"
    [ -x "$B/cusim/golden_planning" ] && run_one "memory on simulated GPUs is as planned" \
        env TPD_TEST_GPUS=2 TPD_TEST_ONLY=llama-q4_k TPD_TEST_TP=2 TPD_TEST_WAY="0 3" \
        timeout 600 "$B/cusim/golden_planning"
    [ -x "$B/cusim/golden_training" ] && run_one "golden training on simulated GPUs" \
        env TPD_TEST_GPUS=8 TPD_TEST_ONLY="${TPD_TEST_ONLY:-full-llama-8-heads lora-llama-q4_0}" \
        TPD_TEST_TP="${TPD_TEST_TP:-1 2 4 8}" TPD_TEST_WAY="${TPD_TEST_WAY:-0 7}" \
        timeout 1800 "$B/cusim/golden_training"
    for test in "$B"/cusim/test_*; do
        case $test in *.d | *.o) continue ;; esac
        for seed in 1 2 3; do
            [ -x "$test" ] && run_one "$(basename "$test") (seed $seed)" \
                env CUSIM_SEED=$seed timeout 600 "$test"
        done
    done
}

each_gpu() { # what simulated GPUs pass, on real ones; ranks share them where there are few
    # Every kernel is loaded before any runs: loading one would wait for those that wait for it. And each of
    # many ranks' streams is a queue of its own.
    export CUDA_MODULE_LOADING=EAGER CUDA_DEVICE_MAX_CONNECTIONS=32
    if ! gpus=$("$B/gpu/gpu_bench" --count) || [ "$gpus" -eq 0 ]; then
        echo "make gpu-test needs a CUDA device and its driver, and there is none here" >&2
        exit 69
    fi
    run_one "tpd on a GPU" env TPD_TEST_CUDA=real \
        "$PYTHON" -m pytest -q -p no:cacheprovider tests/e2e/test_cuda.py -k says_on_the_cpu
    run_one "golden models on $gpus GPUs, tp 1 to 4" \
        env TPD_TEST_GPUS="$gpus" timeout 1200 "$B/gpu/golden_models"
    run_one "golden training on $gpus GPUs" env TPD_TEST_GPUS="$gpus" timeout 1200 "$B/gpu/golden_training"
    for test in "$B"/gpu/test_*; do
        [ -x "$test" ] && run_one "$(basename "$test")" timeout 600 "$test"
    done
}

for part in "$@"; do
    case $part in
    layers) run_one "layers (who may include whom)" "$PYTHON" tests/check_layers.py ;;
    unit) each_test "" "test_*" ;;
    threads) each_threaded ;;
    cusim) each_cusim ;;
    gpu) each_gpu ;;
    alias)
        export TPD_DEBUG_ALIAS=1
        for t in "$B"/tests/test_model* "$B"/tests/test_engine_model* "$B"/tests/test_kernel* \
            "$B"/tests/test_train_kernel*; do
            [ -x "$t" ] && run_one "$(basename "$t") with unreadable addresses" "$t"
        done
        unset TPD_DEBUG_ALIAS
        ;;
    fuzz) each_test " (fuzz)" "test_fuzz*" ;;
    e2e) e2e=1 ;;
    *)
        echo "tests/run.sh: no part named $part" >&2
        exit 64
        ;;
    esac
done
if [ $((passed + failed)) -gt 0 ]; then
    echo
    echo "C tests: $passed passed, $failed failed"
    echo "$passed passed, $failed failed"
fi
status=0
[ "$failed" -eq 0 ] || status=1
if [ "$e2e" = 1 ]; then
    "$PYTHON" -m pytest -q -rs -p no:cacheprovider tests/e2e || status=1
fi
exit $status
