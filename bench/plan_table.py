#!/usr/bin/env python3
"""Prints the tables of docs/memory.md: what fine-tuning two published models takes of each of four
ranks, by `tpd plan` from their configurations. plan_table.py [TPD]"""
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TPD = sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/tpd"
GIB = 1 << 30
# GiB a GPU of transformers' tensor parallelism at tp 4, batch 1, full fine-tuning with bf16 states;
# None: out of memory on 80 GB.
PUBLISHED = {
    ("granite-8b-code-base-128k", 8192, False): 52.4, ("granite-8b-code-base-128k", 8192, True): 26.5,
    ("granite-8b-code-base-128k", 16384, False): None, ("granite-8b-code-base-128k", 16384, True): 33.5,
    ("CodeLlama-7b-hf", 8192, False): 42.8, ("CodeLlama-7b-hf", 8192, True): 21.4,
    ("CodeLlama-7b-hf", 16384, False): None, ("CodeLlama-7b-hf", 16384, True): 26.6,
}
KINDS = ["weights", "kv", "activations", "parameters", "gradients", "optimizer", "scratch"]


def plan(model, ctx, method, checkpointing, *more):
    words = [TPD, "plan", ROOT / f"bench/configs/{model}.json", "--tp", 4, "--ctx", ctx, "--train",
             method, f"--grad-checkpointing={checkpointing}", "--memory", "80GB", "--bandwidth", "2T",
             "--flops", "312T", "--device", "cuda", "--set", "compute=bf16", "--json", *more]
    run = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=True)
    return json.loads(run.stdout)


def worst(report):
    return max(report["ranks"], key=lambda rank: rank["total"])


def gib(n):
    return f"{n / GIB:.1f}"


def table(method):
    print("| model | context | checkpointing | " + " | ".join(KINDS) +
          " | total | with sequence_parallel | published |")
    print("|---|---|---|" + "---|" * (len(KINDS) + 3))
    for (model, ctx, checkpointing), published in PUBLISHED.items():
        word = str(checkpointing).lower()
        rank = worst(plan(model, ctx, method, word))
        split = worst(plan(model, ctx, method, word, "--set", "sequence_parallel=true"))
        print(f"| {model} | {ctx} | {'on' if checkpointing else 'off'} | " +
              " | ".join(gib(rank[k]) for k in KINDS) +
              f" | **{gib(rank['total'])}** | {gib(split['total'])} | {published or 'out of memory'} |")


def auto_table():
    print("| model | context | layers computed again | total |")
    print("|---|---|---|---|")
    for (model, ctx, checkpointing) in PUBLISHED:
        if not checkpointing:
            report = plan(model, ctx, "full", "auto")
            train = report["train"]
            print(f"| {model} | {ctx} | {train['checkpointed_layers']} of {train['layers']} | "
                  f"{gib(worst(report)['total'])} |")


for method in ("lora", "full"):
    print(f"\n{method}:\n")
    table(method)
print("\nfull, auto on 80 GB:\n")
auto_table()
