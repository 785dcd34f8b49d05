#!/bin/sh
# make bench: kernels, collectives, then models through the daemon. LLAMA_BENCH=path to a llama-bench
# binary puts llama.cpp beside it, on the same file and threads, in the same run. BENCH_MODELS: a
# list of files (default: random models of SmolLM2-135M's shape, made here once in $B/bench-models).
set -eu
cd "$(dirname "$0")/.."
B=${B:-build}
PYTHON=${PYTHON:-/usr/bin/python3}
export B
"$B/bench/bench_kernels" bandwidth
echo
"$B/bench/bench_comm"
echo
"$B/bench/bench_train_kernels"
echo
"$PYTHON" bench/bench_models.py
echo
exec "$PYTHON" bench/bench_learning.py
