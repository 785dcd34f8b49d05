"""Requests as strangers send them (bench/load), to tpd and, when LLAMA_SERVER names one, to
llama-server: the same plan, on the same file, one server after the other, both over HTTP.

Reads B, BENCH_MODELS, LLAMA_SERVER, LOAD_RATES (requests a second, by commas), LOAD_SECONDS,
LOAD_PROMPT and LOAD_OUTPUT (mixes, see bench/load), LOAD_SLOTS."""
import json
import os
import subprocess

import llama
from common import BUILD, CORES, Daemon, models

RATES = [float(r) for r in os.environ.get("LOAD_RATES", "1,3").split(",")]
SECONDS = os.environ.get("LOAD_SECONDS", "30")
PROMPT = os.environ.get("LOAD_PROMPT", "64:4,256:4,512:2")
OUTPUT = os.environ.get("LOAD_OUTPUT", "32:5,128:4,256:1")
SLOTS = int(os.environ.get("LOAD_SLOTS", "16"))
CTX = 1024


def load(where, rate, vocab, seed):
    out = subprocess.run([BUILD / "bench/load", *where, "--rate", str(rate), "--seconds", SECONDS,
                          "--prompt", PROMPT, "--output", OUTPUT, "--vocab", str(vocab), "--seed",
                          str(seed), "--patience", "300", "--json"],
                         capture_output=True, text=True).stdout
    return json.loads(out)


def put(name, rate, r):
    first, between = r["first_token_ms"], r["between_ms"]
    numbers = [t[p] if t else float("nan") for t in (first, between) for p in ("p50", "p95", "p99")]
    lost = r["failed"] + r["unfinished"]
    print(f"| {rate:g}/s | {name} | {r['done']}{f' ({lost} lost)' if lost else ''} | "
          f"{r['requests_per_s']:.2f} | {r['output_tokens_per_s']:.0f} | " +
          " | ".join(f"{n:.0f}" if n >= 100 else f"{n:.1f}" for n in numbers) + " | "
          f"{r['generator_cpu_share'] * 100:.1f} % |", flush=True)


def put_ratio(rate, ours, theirs):
    def ratio(key, percent):
        ok = ours[key] and theirs[key]
        return f"{theirs[key][percent] / ours[key][percent]:.2f}" if ok else "-"
    print(f"| {rate:g}/s | ratio | | {ours['requests_per_s'] / theirs['requests_per_s']:.2f} | "
          f"{ours['output_tokens_per_s'] / theirs['output_tokens_per_s']:.2f} | " +
          " | ".join(ratio(k, p) for k in ("first_token_ms", "between_ms")
                     for p in ("p50", "p95", "p99")) + " | |", flush=True)


def measure(name, where, vocab):
    """{rate: report}; a row each."""
    reports = {}
    for seed, rate in enumerate(RATES):
        reports[rate] = load(where, rate, vocab, seed)
        put(name, rate, reports[rate])
    return reports


def main():
    for model in models([("smollm2-135m", "q8_0")]):
        print(f"{model.name}, {CORES} cores, {SLOTS} slots, Poisson arrivals for {SECONDS} s, prompts "
              f"{PROMPT}, answers {OUTPUT}, times in ms; ratios: above 1 tpd is the better\n")
        print("| arrivals | server | done | requests/s | tokens/s | first token p50 | p95 | p99 | "
              "between tokens p50 | p95 | p99 | generator's core |")
        print("|---|---|---|---|---|---|---|---|---|---|---|---|")
        with Daemon(model, "--ctx", CTX, "--slots", SLOTS, "--tp", 1) as d:
            vocab = d.client.model_info()["shape"]["vocab"]
            ours = measure("tpd", ["--socket", d.socket, "--http"], vocab)
        if llama.SERVER:
            with llama.Server(model, SLOTS, CTX) as s:
                theirs = measure("llama-server", ["--tcp", f"127.0.0.1:{s.port}"], vocab)
            for rate in RATES:
                put_ratio(rate, ours[rate], theirs[rate])
        print()


if __name__ == "__main__":
    main()
