#!/usr/bin/env python3
"""Writes tests/data/curves/<case>.json: the losses of thirty steps in transformers and PEFT.

{"model": folder of tests/data, "job": keys of a fine-tune job (all but data and name),
 "records": [{"input_ids", "labels"}], "losses": [30], "norms": [30], "lr": [30]}

Model, attention, adapter, cross entropy, clipping and AdamW are theirs. What a job decides is done here
once more, from what tpd promises: which examples are in which step (shuffle and bins of an epoch follow
from seed and number), A's first values, and the learning rate. With packing a bin is one row of a batch,
whose examples do not see each other (a mask of four dimensions, positions from 0); without, a batch is
padded on the right. A step's loss is the mean over its trained tokens."""
import json
import math

import numpy as np
import torch
import transformers
from peft import LoraConfig, get_peft_model

import reference as ref

OUT = ref.DATA / "curves"
STEPS = 30
MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
COMMON = {"max_steps": STEPS, "epochs": 100, "seq_len": 32, "weight_decay": 2.0, "clip": 0.5,
          "warmup_ratio": 0.1, "betas": [0.9, 0.95], "eps": 1e-8, "eval_fraction": 0}
CASES = {
    "full": ("models/tiny-chat", 41, {"method": "full", "lr": 2e-3, "batch_size": 4, "grad_accum": 1,
                                     "packing": False, "schedule": "cosine", "seed": 3}),
    "full-packed": ("models/qwen3", 60, {"method": "full", "lr": 2e-3, "batch_size": 2, "grad_accum": 2,
                                        "packing": True, "schedule": "linear", "seed": 4}),
    "lora": ("models/granite", 41, {"method": "lora", "lr": 1e-2, "batch_size": 2, "grad_accum": 2,
                                   "packing": False, "schedule": "constant", "seed": 5,
                                   "lora": {"r": 4, "alpha": 8, "rslora": True}}),
    "lora-packed": ("models/tiny-chat", 60, {"method": "lora", "lr": 1e-2, "batch_size": 4,
                                            "grad_accum": 1, "packing": True, "schedule": "cosine",
                                            "seed": 6, "lora": {"r": 8, "alpha": 16}}),
}

# --- what a job decides ---------------------------------------------------------------------------


def mix(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def shuffled(n, seed, key):
    order = list(range(n))
    wide = (key ^ seed) * GOLDEN
    stream = (wide & MASK) ^ (wide >> 64)
    for i in range(n - 1, 0, -1):
        j = mix((stream + (i + 1) * GOLDEN) & MASK) * (i + 1) >> 64
        order[i], order[j] = order[j], order[i]
    return order


def bins_of(records, job, epoch):
    """The examples of each bin, in order: first fit, or one each."""
    bins, room = [], []
    for i in shuffled(len(records), job["seed"], epoch):
        rows = len(records[i]["input_ids"]) - 1
        fits = [k for k, left in enumerate(room) if left >= rows] if job["packing"] else []
        if not fits:
            bins.append([])
            room.append(job["seq_len"])
            fits = [len(bins) - 1]
        bins[fits[0]].append(records[i])
        room[fits[0]] -= rows
    return bins


def steps(records, job):
    """The bins of each step; one ends with its epoch."""
    size, epoch = job["batch_size"] * job["grad_accum"], 0
    while True:
        bins = bins_of(records, job, epoch)
        yield from (bins[i:i + size] for i in range(0, len(bins), size))
        epoch += 1


def learning_rate(step, job):
    warmup = math.floor(job["warmup_ratio"] * STEPS + 0.5)
    if step < warmup:
        return job["lr"] * (step + 1) / warmup
    done = (step - warmup) / (STEPS - warmup)
    return job["lr"] * {"cosine": 0.5 * (1 + math.cos(math.pi * done)), "linear": 1 - done,
                        "constant": 1}[job["schedule"]]


def first_a(shape, seed, layer, target):
    """Uniform in the bound of Kaiming's with a = sqrt(5), by counter."""
    key = (layer * len(TARGETS) + TARGETS.index(target) + 1) * GOLDEN & MASK
    rows, cols = shape
    values = np.empty(rows * cols, np.float32)
    for i in range(rows * cols):
        x = ((seed ^ key) * GOLDEN + i * 0xD1342543DE82EF95 + 0x2545F4914F6CDD1D) & MASK
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
        x ^= x >> 31
        values[i] = np.float32(x >> 40) * np.float32(2.0**-23) - 1
    return torch.tensor(values.reshape(shape) * (np.float32(1) / np.sqrt(np.float32(cols))))


# --- what transformers and PEFT do ----------------------------------------------------------------


def make_records(vocab, n, rng):
    """Sequences with a rule (the next id follows from the last, mostly), learnt but for their start."""
    follows = rng.permutation(vocab)
    out = []
    for _ in range(n):
        ids = [int(rng.integers(3, vocab))]
        for _ in range(int(rng.integers(6, 27))):
            ids.append(int(follows[ids[-1]]) if rng.random() < 0.8 else int(rng.integers(3, vocab)))
        start = int(rng.integers(1, 4))
        out.append({"input_ids": ids, "labels": [-100] * start + ids[start:]})
    return out


def packed(bin_):
    """One bin as a batch of one row: ids, positions, mask, labels of the next token."""
    lengths = [len(r["input_ids"]) for r in bin_]
    ids = torch.tensor([sum((r["input_ids"] for r in bin_), [])])
    positions = torch.tensor([sum((list(range(n)) for n in lengths), [])])
    labels = torch.tensor([sum((r["labels"][1:] + [-100] for r in bin_), [])])
    whose = torch.repeat_interleave(torch.arange(len(bin_)), torch.tensor(lengths))
    seen = (whose[:, None] == whose[None]) & torch.ones(len(whose), len(whose)).tril().bool()
    mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None]
    return {"input_ids": ids, "position_ids": positions, "attention_mask": mask}, labels


def padded(bins):
    """Bins of one example each as one batch, padded on the right."""
    longest = max(len(b[0]["input_ids"]) for b in bins)
    ids = torch.zeros(len(bins), longest, dtype=torch.long)
    labels = torch.full((len(bins), longest), -100)
    mask = torch.zeros(len(bins), longest, dtype=torch.long)
    for i, (r,) in enumerate(bins):
        n = len(r["input_ids"])
        ids[i, :n] = torch.tensor(r["input_ids"])
        labels[i, :n] = torch.tensor(r["labels"][1:] + [-100])
        mask[i, :n] = 1
    return {"input_ids": ids, "attention_mask": mask}, labels


def step_loss(model, bins, job):
    batches = [packed(b) for b in bins] if job["packing"] else [padded(bins)]
    total, count = 0, 0
    for inputs, labels in batches:
        logits = model(**inputs).logits
        total = total + torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
        count += int((labels != -100).sum())
    return total / count


def adapt(model, job):
    lora = job["lora"]
    model = get_peft_model(model, LoraConfig(
        r=lora["r"], lora_alpha=lora["alpha"], use_rslora=lora.get("rslora", False),
        target_modules=TARGETS, lora_dropout=0.0, bias="none", task_type="CAUSAL_LM"))
    for name, p in model.named_parameters():
        if "lora_A" in name:
            parts = name.split(".")
            layer, target = int(parts[parts.index("layers") + 1]), parts[parts.index("lora_A") - 1]
            with torch.no_grad():
                p.copy_(first_a(tuple(p.shape), job["seed"], layer, target))
    return model


def make(case, source, n_records, own):
    rng = ref.rng_for(case)
    job = {**COMMON, **own}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        ref.DATA / source, dtype=torch.float32, attn_implementation="eager")
    records = make_records(model.config.vocab_size, n_records, rng)
    if job["method"] == "lora":
        model = adapt(model, job)
    model.train()
    learnt = [p for p in model.parameters() if p.requires_grad]
    adam = torch.optim.AdamW(
        [{"params": [p for p in learnt if p.dim() == 2], "weight_decay": job["weight_decay"]},
         {"params": [p for p in learnt if p.dim() != 2], "weight_decay": 0.0}],
        betas=tuple(job["betas"]), eps=job["eps"])
    out = {"model": source, "job": job, "records": records, "losses": [], "norms": [], "lr": []}
    for step, bins in zip(range(STEPS), steps(records, job)):
        for group in adam.param_groups:
            group["lr"] = learning_rate(step, job)
        adam.zero_grad()
        loss = step_loss(model, bins, job)
        loss.backward()
        out["norms"].append(float(torch.nn.utils.clip_grad_norm_(learnt, job["clip"])))
        out["losses"].append(float(loss.detach()))
        out["lr"].append(learning_rate(step, job))
        adam.step()
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"{case}.json").write_text(json.dumps(out) + "\n")
    print(case, *(round(out["losses"][i], 4) for i in (0, 9, 19, 29)))


if __name__ == "__main__":
    for case, (source, n_records, own) in CASES.items():
        make(case, source, n_records, own)
