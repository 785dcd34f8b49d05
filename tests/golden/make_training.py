#!/usr/bin/env python3
"""Writes tests/data/training/<case>: what PyTorch and PEFT make of three training steps.

train.json:
{"model": folder of tests/data, "method": "full" | "lora", "r", "alpha", "rslora",
 "sequences": [{"ids": […], "labels": […]}], "losses": [3], "norms": [3],
 "lr", "beta1", "beta2", "eps", "weight_decay", "clip"}
labels[t] is the token that should follow row t, -1 where nothing is trained. The loss of a step is the
mean over all trained rows of both sequences, which do not see each other; the norm is that of the
whole gradient before it is clipped.
grads.safetensors: the first step's gradients before clipping; init.safetensors (lora): A and B before;
final.safetensors: the trained parameters after three steps. Names as Hugging Face and PEFT write them.
adapter/ (lora): the same adapter as PEFT's save_pretrained writes it; logits.safetensors (lora): what
base and adapter together make of "prompt", [ids, vocabulary]."""
import json
import shutil
import sys

import numpy as np
import torch
import transformers
from gguf import GGUFReader
from gguf.quants import dequantize
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file

import make_gguf
import reference as ref

OUT = ref.DATA / "training"
STEP = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0}
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CASES = {
    "full-llama-gqa-tied": ("models/llama-gqa-tied", None),
    "full-llama-biases": ("models/llama-biases", None),
    "full-llama-uneven": ("models/llama-uneven", None),
    "full-llama-8-heads": ("models/llama-8-heads", None),
    "full-granite": ("models/granite", None),
    "full-qwen2": ("models/qwen2", None),
    "full-qwen3": ("models/qwen3", None),
    "full-mistral-window": ("models/mistral-window", None),
    "lora-llama-gqa-tied": ("models/llama-gqa-tied", {"r": 4, "alpha": 8, "rslora": False}),
    "lora-llama-biases": ("models/llama-biases", {"r": 4, "alpha": 8, "rslora": False}),
    "lora-llama-uneven": ("models/llama-uneven", {"r": 3, "alpha": 6, "rslora": True}),
    "lora-llama-8-heads": ("models/llama-8-heads", {"r": 4, "alpha": 8, "rslora": False}),
    "lora-granite": ("models/granite", {"r": 4, "alpha": 8, "rslora": False}),
    "lora-llama-q4_0": ("gguf/llama-q4_0/model.gguf", {"r": 4, "alpha": 8, "rslora": False}),
}


def sequences(vocab, rng):
    out = []
    for length in (21, 12):
        ids = rng.integers(3, vocab, length).tolist()
        labels = ids[1:] + [-1]
        for t in range(length):
            if rng.random() < 0.25:
                labels[t] = -1
        out.append({"ids": ids, "labels": labels})
    return out


def step_loss(model, batch):
    total, rows = 0, 0
    for s in batch:
        logits = model(torch.tensor([s["ids"]])).logits[0]
        labels = torch.tensor(s["labels"])
        mask = labels >= 0
        total = total + torch.nn.functional.cross_entropy(logits[mask], labels[mask],
                                                          reduction="sum")
        rows += int(mask.sum())
    return total / rows


def adapt(model, lora, rng):
    config = LoraConfig(r=lora["r"], lora_alpha=lora["alpha"], use_rslora=lora["rslora"],
                        target_modules=TARGETS, lora_dropout=0.0, bias="none",
                        task_type="CAUSAL_LM")
    model = get_peft_model(model, config)
    for name, p in model.named_parameters():
        if "lora_" in name:
            with torch.no_grad():
                p.copy_(torch.tensor(rng.normal(0, 0.1, p.shape), dtype=torch.float32))
    return model


def file_name(name):
    return name.replace(".default.", ".")


def tensors(named):
    return {file_name(n): p.detach().clone().contiguous() for n, p in named}


def open_gguf(path):
    """A model of the exact numbers that a file of make_gguf.PLAIN's shape holds."""
    settings = make_gguf.PLAIN
    held = {t.name: t for t in GGUFReader(path).tensors}
    weights = {}
    for name, shape in ref.tensor_shapes(settings).items():
        t = held[make_gguf.gguf_name(name)]
        values = dequantize(t.data, t.tensor_type).astype(np.float32).reshape(shape)
        order = make_gguf.row_order(name, settings)
        weights[name] = values
        if order is not None:
            weights[name] = np.empty_like(values)
            weights[name][order] = values
    return ref.model_from_weights(settings, weights)


def open_model(source):
    if source.endswith(".gguf"):
        return open_gguf(ref.DATA / source)
    return transformers.AutoModelForCausalLM.from_pretrained(
        ref.DATA / source, dtype=torch.float32, attn_implementation="eager")


def save_adapter(model, source, out):
    for config in model.peft_config.values():
        config.base_model_name_or_path = source  # not a path of this machine
    model.save_pretrained(out / "adapter")
    (out / "adapter" / "README.md").unlink()
    file = out / "adapter" / "adapter_config.json"
    written = json.loads(file.read_text())
    written["target_modules"].sort()  # a set: its order differs from run to run
    file.write_text(json.dumps(written, indent=2))


@torch.no_grad()
def save_logits(model, prompt, out):
    logits = model(torch.tensor([prompt])).logits[0]
    save_file({"logits": logits.contiguous()}, out / "logits.safetensors")


def make(case, source, lora):
    rng = ref.rng_for(case)
    model = open_model(source)
    vocab = model.config.vocab_size
    if lora:
        model = adapt(model, lora, rng)
    model.train()
    batch = sequences(vocab, rng)
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    decay = [p for n, p in named if p.dim() == 2]
    plain = [p for n, p in named if p.dim() != 2]
    adam = torch.optim.AdamW([{"params": decay, "weight_decay": STEP["weight_decay"]},
                              {"params": plain, "weight_decay": 0.0}], lr=STEP["lr"],
                             betas=(STEP["beta1"], STEP["beta2"]), eps=STEP["eps"])
    out = OUT / case
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    if lora:
        save_file(tensors(named), out / "init.safetensors")
    losses, norms = [], []
    for step in range(3):
        adam.zero_grad()
        loss = step_loss(model, batch)
        loss.backward()
        if step == 0:
            save_file(tensors((n, p.grad) for n, p in named), out / "grads.safetensors")
        norms.append(float(torch.nn.utils.clip_grad_norm_([p for _, p in named], STEP["clip"])))
        losses.append(float(loss))
        adam.step()
    save_file(tensors(named), out / "final.safetensors")
    facts = {"model": source, "method": "lora" if lora else "full", **(lora or {}), **STEP,
             "sequences": batch, "losses": losses, "norms": norms}
    if lora:
        facts["prompt"] = batch[1]["ids"]
        save_adapter(model, source, out)
        save_logits(model.eval(), facts["prompt"], out)
    (out / "train.json").write_text(json.dumps(facts) + "\n")
    print(case, [round(x, 4) for x in losses], [round(x, 3) for x in norms])


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        make(case, *CASES[case])
