"""tpd beside llama.cpp on the same files, machine and minute, and what was aimed at.

Each round measures every server once, one after the other, so that a machine that slows down slows
both; figures are medians of the rounds, "±" is half of what lies between the extremes in percent.
Ratios are medians of the rounds' ratios. Without llama.cpp its columns are empty.

Reads B, BENCH (quick: fewer models, shorter; full), BENCH_RUNS, BENCH_MODELS, LLAMA_BENCH,
LLAMA_BATCHED_BENCH, LLAMA_SERVER. Writes all samples to $B/bench-results.json."""
import json
import os
import re
import subprocess
import time

import llama
from common import (BUILD, CORES, FULL, RUNS, SHAPES, TYPES, Daemon, median, models, peak_mib, spread)

PREFILL, DECODE = 512, 128
BATCHES, BATCH_DECODE, BATCH_PROMPT = (8, 16), 128 if FULL else 48, 8
MEMORY_CTX = 640
MIB = 1 << 20
QUICK = [("smollm2-135m", t) for t in TYPES] + [("llama-1.1b", "q4_0")]


def bandwidth():
    """GB/s that all cores together read from memory, the best over 1 to 16 streams a core."""
    out = subprocess.run([BUILD / "bench/bench_kernels", "bandwidth"], check=True,
                         capture_output=True, text=True).stdout
    lines = [line for line in out.splitlines() if line.startswith("read bandwidth")]
    return max(float(speed) for line in lines for speed in re.findall(r"([0-9.]+) GB/s", line))


class File:
    """What a model file holds."""

    def __init__(self, path):
        self.path = path
        out = subprocess.run([BUILD / "tpd", "inspect", path, "--json"], check=True,
                             capture_output=True, text=True).stdout
        facts = json.loads(out)
        shape = facts["model"]
        self.hidden, self.bytes = shape["hidden"], facts["bytes"]
        # One row of an embedding is read for a token, but all of it where it is the head too.
        table = 0 if shape["tied_head"] else next(
            t["bytes"] for t in facts["tensors"] if t["name"] == "model.embed_tokens.weight")
        self.bytes_a_token = self.bytes - table
        self.is_smollm2, self.is_1b = self.hidden == 576, self.hidden == 2048


# --- measuring ------------------------------------------------------------------------------------

def tpctl_bench(daemon, prompt, gen, batches):
    """{batch: tokens a second}, measured once."""
    out = subprocess.run([BUILD / "tpctl", "--socket", daemon.socket, "--json", "bench", "-p",
                          str(prompt), "-n", str(gen), "-b", ",".join(map(str, batches)), "-r", "1"],
                         check=True, capture_output=True, text=True).stdout
    return {r["batch"]: r["mean"] for r in json.loads(out)["results"]}


def our_round(daemon):
    figures = {"prefill": tpctl_bench(daemon, PREFILL, 0, [1])[1],
               "decode 1": tpctl_bench(daemon, 0, DECODE, [1])[1]}
    for batch, speed in tpctl_bench(daemon, 0, BATCH_DECODE, BATCHES).items():
        figures[f"decode {batch}"] = speed
    return figures


def their_round(path):
    figures = {}
    if llama.BENCH:
        (figures["prefill"],), (figures["decode 1"],) = llama.bench(path, PREFILL, DECODE, 1)
    if llama.BATCHED_BENCH:
        speeds = llama.batched_bench(path, BATCH_PROMPT, BATCH_DECODE, BATCHES, 1)
        figures.update({f"decode {b}": s[0] for b, s in speeds.items()})
    return figures


def one_token(client):
    for _ in client.generate([1, 2, 3, 4, 5], max_tokens=1, temperature=0, ignore_eos=True,
                             stream=True):
        pass


def our_first_ms(path, tp):
    """From exec to the first streamed token; the file is in the page cache."""
    with Daemon(path, "--tp", tp, "--ctx", MEMORY_CTX, "--slots", 1) as d:
        one_token(d.client)
        return (time.monotonic() - d.started) * 1000


def their_first_ms(path):
    with llama.Server(path, 1, MEMORY_CTX) as s:
        s.complete([1, 2, 3, 4, 5], 1)
        return (time.monotonic() - s.started) * 1000


def our_memory(file, tp):
    """(peak MiB, that over file and KV cache), with every position of the cache in use."""
    with Daemon(file.path, "--tp", tp, "--ctx", MEMORY_CTX, "--slots", 1) as d:
        d.client.generate([i % 1000 for i in range(PREFILL)], max_tokens=MEMORY_CTX - PREFILL - 1,
                          temperature=0, ignore_eos=True)
        kv = sum(r["kv"] for r in d.client.model_info()["ranks"])
        peak = peak_mib(d.process.pid)
        return peak, peak * MIB / (file.path.stat().st_size + kv), kv


def their_memory(file, kv):
    with llama.Server(file.path, 1, MEMORY_CTX) as s:
        s.complete([i % 1000 for i in range(PREFILL)], MEMORY_CTX - PREFILL - 1)
        peak = peak_mib(s.process.pid)
        return peak, peak * MIB / (file.path.stat().st_size + kv)


def rounds_of(path):
    """{server: {figure: samples}}"""
    samples = {"tp 1": {}, "tp 2": {}, "llama.cpp": {}}
    slots = ["--slots", max(BATCHES), "--ctx", 1024]
    with Daemon(path, "--tp", 1, *slots) as tp1, Daemon(path, "--tp", 2, *slots) as tp2:
        for daemon in (tp1, tp2):
            tpctl_bench(daemon, PREFILL, 0, [1])  # warm up
        for _ in range(RUNS):
            for name, figures in (("tp 1", our_round(tp1)), ("llama.cpp", their_round(path)),
                                  ("tp 2", our_round(tp2))):
                for figure, value in figures.items():
                    samples[name].setdefault(figure, []).append(value)
    return samples


def starts_of(path):
    firsts = {"tp 1": [], "tp 2": [], "llama.cpp": []}
    for _ in range(RUNS):
        for tp in (1, 2):
            firsts[f"tp {tp}"].append(our_first_ms(path, tp))
        if llama.SERVER:
            firsts["llama.cpp"].append(their_first_ms(path))
    return firsts


def one_thread_a_rank(path):
    """{figure: ratios of tp 2 with two threads to tp 1 with one}"""
    ratios = {"prefill": [], "decode 1": []}
    with Daemon(path, "--tp", 1, "--threads", 1, "--slots", 1, "--ctx", 1024) as one, \
            Daemon(path, "--tp", 2, "--threads", 2, "--slots", 1, "--ctx", 1024) as two:
        for _ in range(RUNS):
            for figure, ask in (("prefill", (PREFILL, 0)), ("decode 1", (0, DECODE // 2))):
                speeds = [tpctl_bench(d, *ask, [1])[1] for d in (one, two)]
                ratios[figure].append(speeds[1] / speeds[0])
    return ratios


# --- the table ------------------------------------------------------------------------------------

def goal_of(file, figure):
    if figure == "prefill":
        return 3.0
    if figure != "decode 1":
        return 2.5
    return 2.0 if file.is_smollm2 and "q4_k_m" in file.path.name.lower() else 1.3


def shown(values, digits=0):
    return f"{median(values):.{digits}f} ±{spread(values):.0f} %" if values else ""


def verdict(best, goal, more_is_better=True):
    """best: {name: figure}."""
    if not best:
        return ""
    name = (max if more_is_better else min)(best, key=best.get)
    kept = best[name] >= goal if more_is_better else best[name] <= goal
    return f"kept ({name})" if kept else f"missed ({best[name] / goal:.2f} of the goal)"


def row(what, tp1="", tp2="", theirs="", ratio1="", ratio2="", goal="", said=""):
    print(f"| {what} | {tp1} | {tp2} | {theirs} | {ratio1} | {ratio2} | {goal} | {said} |",
          flush=True)


def put_speeds(file, samples):
    for figure in ("prefill", "decode 1", *(f"decode {b}" for b in BATCHES)):
        theirs = samples["llama.cpp"].get(figure)
        ratios = {name: [a / b for a, b in zip(samples[name][figure], theirs)]
                  for name in ("tp 1", "tp 2")} if theirs else {"tp 1": [], "tp 2": []}
        best = {name: median(r) for name, r in ratios.items() if r}
        goal = goal_of(file, figure)
        what = f"prefill {PREFILL}, tokens/s" if figure == "prefill" else f"{figure}, tokens/s"
        row(what, shown(samples["tp 1"][figure]), shown(samples["tp 2"][figure]), shown(theirs),
            shown(ratios["tp 1"], 2), shown(ratios["tp 2"], 2), f"≥ {goal} x", verdict(best, goal))


def put_share(file, samples, gb_per_s):
    """How much of the memory's speed decode at batch 1 takes."""
    def share(name):
        values = samples[name].get("decode 1")
        return median(values) * file.bytes_a_token / 1e9 / gb_per_s if values else None
    shares = {name: share(name) for name in samples}
    ours = {name: shares[name] for name in ("tp 1", "tp 2")}
    cells = [f"{s * 100:.0f} %" if s else "" for s in shares.values()]
    row("decode 1, share of memory reads", *cells, goal="≥ 95 %" if file.is_1b else "",
        said=verdict(ours, 0.95) if file.is_1b else "")


def put_start(file, firsts):
    goal = 150 if file.is_smollm2 else None
    ours = {name: median(firsts[name]) for name in ("tp 1", "tp 2")}
    theirs = firsts["llama.cpp"]
    ratio = [f"{median(theirs) / ms:.2f}" if theirs else "" for ms in ours.values()]
    row("start to first token, ms", shown(firsts["tp 1"]), shown(firsts["tp 2"]), shown(theirs),
        *ratio, goal=f"≤ {goal}" if goal else "", said=verdict(ours, goal, False) if goal else "")


def put_memory(file):
    ours = {f"tp {tp}": our_memory(file, tp) for tp in (1, 2)}
    theirs = their_memory(file, ours["tp 1"][2]) if llama.SERVER else None
    cells = [f"{m[1]:.2f} ({m[0]:.0f} MiB)" if m else "" for m in (*ours.values(), theirs)]
    row("peak memory / (file + KV)", *cells, goal="≤ 1.1",
        said=verdict({name: m[1] for name, m in ours.items()}, 1.1, False))
    return {name: m[0] for name, m in ours.items()}


def put_scaling(ratios):
    for figure, values in ratios.items():
        row(f"tp 2 / tp 1, one thread a rank: {figure}", tp2=shown(values, 2), goal="≥ 1.85",
            said=verdict({"tp 2": median(values)}, 1.85))


def main():
    memory = bandwidth()
    print(f"{CORES} cores; memory reads at {memory:.1f} GB/s at best; medians of {RUNS} rounds; "
          f"prefill {PREFILL}, decode {DECODE} ({BATCH_DECODE} in batches), llama.cpp with {CORES} "
          f"threads, tp 1 with a team of {CORES}\n")
    kept = {}
    for path in models([(s, t) for s in SHAPES for t in TYPES] if FULL else QUICK):
        file = File(path)
        print(f"**{path.name}**, {path.stat().st_size / MIB:.0f} MiB\n")
        row("", "tpd, tp 1", "tpd, tp 2", "llama.cpp", "ratio, tp 1", "ratio, tp 2", "goal", "")
        print("|---|---|---|---|---|---|---|---|")
        memory = max(memory, bandwidth())
        samples = rounds_of(path)
        put_speeds(file, samples)
        put_share(file, samples, memory)
        firsts = starts_of(path)
        put_start(file, firsts)
        peaks = put_memory(file)
        ratios = one_thread_a_rank(path)
        put_scaling(ratios)
        print()
        kept[path.name] = {"speeds": samples, "first_token_ms": firsts, "peak_mib": peaks,
                           "tp2_over_tp1": ratios, "memory_gb_per_s": memory}
    with open(BUILD / "bench-results.json", "w") as out:
        json.dump(kept, out, indent=1)


if __name__ == "__main__":
    main()
