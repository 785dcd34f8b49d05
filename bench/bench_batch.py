"""Requests together, through the daemon: decoded tokens a second of 1, 8 and 16 generations at once,
each with a prompt of its own; beside llama-batched-bench when LLAMA_BATCHED_BENCH names one.
Medians of RUNS.

Reads B (build folder), BENCH_MODELS (files, separated by spaces), LLAMA_BATCHED_BENCH, BENCH_RUNS."""
import concurrent.futures
import json
import os
import pathlib
import random
import statistics
import subprocess

from bench_models import CORES, RUNS, Daemon, default_models

PROMPT, DECODE, BATCHES = 64, 128, (1, 8, 16)


def together(daemon, batch, vocab):
    """The sum of the speeds of `batch` requests that are sent at once."""
    def one(_):
        prompt = [random.randrange(vocab) for _ in range(PROMPT)]
        r = daemon.client.generate(prompt, max_tokens=DECODE, temperature=0, ignore_eos=True)
        return (DECODE - 1) / r["timings"]["decode_ms"] * 1000

    with concurrent.futures.ThreadPoolExecutor(batch) as pool:
        return sum(pool.map(one, range(batch)))


def measure(model, tp):
    daemon = Daemon(model, tp, "--slots", str(max(BATCHES)))
    vocab = daemon.client.model_info()["shape"]["vocab"]
    together(daemon, max(BATCHES), vocab)  # warm up
    speeds = {b: statistics.median(together(daemon, b, vocab) for _ in range(RUNS))
              for b in BATCHES}
    daemon.stop()
    return speeds


def peer(binary, model):
    batches = ",".join(map(str, BATCHES))
    speeds = {b: [] for b in BATCHES}
    for _ in range(RUNS):
        out = subprocess.run([binary, "-m", str(model), "-t", str(CORES), "-c", "4096", "-npp",
                              str(PROMPT), "-ntg", str(DECODE), "-npl", batches,
                              "--output-format", "jsonl"],
                             check=True, capture_output=True, text=True).stdout
        for line in out.splitlines():
            if line.startswith("{"):
                row = json.loads(line)
                speeds[row["pl"]].append(row["speed_tg"])
    return {b: statistics.median(v) for b, v in speeds.items()}


def main():
    models = [pathlib.Path(p) for p in os.environ.get("BENCH_MODELS", "").split()]
    binary = os.environ.get("LLAMA_BATCHED_BENCH")
    print(f"generations at once: prompts of {PROMPT}, {DECODE} tokens, {CORES} cores, "
          f"medians of {RUNS}, tokens/s")
    print(f"{'file':28} {'tp':>2} " + " ".join(f"{f'batch {b}':>10}" for b in BATCHES) +
          ("   llama.cpp, ratio" if binary else ""))
    for model in models or default_models():
        theirs = peer(binary, model) if binary else None
        for tp in (1, 2):
            ours = measure(model, tp)
            beside = "   " + "  ".join(f"{theirs[b]:.0f} {ours[b] / theirs[b]:.2f}"
                                       for b in BATCHES) if theirs else ""
            print(f"{model.name:28} {tp:2} " + " ".join(f"{ours[b]:10.0f}" for b in BATCHES) + beside,
                  flush=True)


if __name__ == "__main__":
    main()
