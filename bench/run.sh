#!/bin/sh
# make bench: tpd beside llama.cpp (side_by_side.py), requests as strangers send them (bench_load.py),
# what rounding costs (bench_perplexity.py), what guessing ahead brings (bench_speculative.py),
# and with BENCH=full kernels, collectives and learning too. docs/performance.md says how to use it.
#
# BENCH=quick (default, a quarter of an hour) or full (over an hour); BENCH_MODELS: a list of files (default:
# random models of real shapes, made here once in $B/bench-models); LLAMA_BENCH, LLAMA_BATCHED_BENCH
# and LLAMA_SERVER: paths of llama.cpp's programs, whose columns stay empty without.
set -eu
cd "$(dirname "$0")/.."
B=${B:-build}
BENCH=${BENCH:-quick}
PYTHON=${PYTHON:-/usr/bin/python3}
export B BENCH
"$PYTHON" bench/side_by_side.py
"$PYTHON" bench/bench_load.py
"$PYTHON" bench/bench_perplexity.py
echo
"$PYTHON" bench/bench_speculative.py
[ "$BENCH" = full ] || exit 0
"$B/bench/bench_kernels"
echo
"$B/bench/bench_comm"
echo
"$B/bench/bench_train_kernels"
echo
exec "$PYTHON" bench/bench_learning.py
