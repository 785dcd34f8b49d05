#!/usr/bin/env python3
"""Writes tests/data/models/<name>: config.json, weights, and what transformers computes of them.

Models are tiny and random. transformers reads the very files that tpd reads; what it makes of them
in fp32 (eager attention) is the truth. README.md beside this script has the formats."""
import json
import shutil
import sys

import torch
import transformers
from safetensors.torch import save_file

import reference as ref

OUT = ref.DATA / "models"
LENGTHS = (7, 1, 40)          # prompts of a plain model: longer than a window of 8
LENGTHS_SCALED = (7, 24, 70)  # within, across and beyond an original length of 32

BASE = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 96, "hidden_act": "silu", "rms_norm_eps": 1e-5,
    "max_position_embeddings": 256, "rope_theta": 10000.0, "tie_word_embeddings": True,
    "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32",
}
CLASSES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM",
           "granite": "GraniteForCausalLM", "qwen2": "Qwen2ForCausalLM",
           "qwen3": "Qwen3ForCausalLM"}


def config(arch, **changes):
    return {"architectures": [CLASSES[arch]], "model_type": arch, **BASE, **changes}


def new_style(rope, **changes):
    """As transformers 5 writes it: rope_theta inside rope_parameters, dtype for torch_dtype."""
    c = config("llama", **changes)
    c["rope_parameters"] = {"rope_theta": c.pop("rope_theta"), **rope}
    c["dtype"] = c.pop("torch_dtype")
    return c


ROPE_HEADS = {"head_dim": 16}  # eight frequencies, so that the ramps have somewhere to go

MODELS = {
    "llama-gqa-tied": config("llama"),
    "llama-untied": config("llama", tie_word_embeddings=False, rms_norm_eps=1e-2),
    "llama-biases": config("llama", attention_bias=True, mlp_bias=True,
                           tie_word_embeddings=False),
    "llama-head-dim": config("llama", head_dim=20),
    "llama-uneven": config("llama", hidden_size=36, num_attention_heads=9, num_key_value_heads=3,
                           head_dim=8, intermediate_size=52, vocab_size=97),
    "llama-mqa": config("llama", num_key_value_heads=1),
    "llama-8-heads": config("llama", num_attention_heads=8, num_key_value_heads=4, head_dim=8),
    "llama-mha-3-layers": config("llama", num_key_value_heads=4, num_hidden_layers=3,
                                 intermediate_size=40, rope_theta=500.0),
    "llama-bf16": config("llama", torch_dtype="bfloat16", tie_word_embeddings=False),
    "llama-f16": config("llama", torch_dtype="float16", tie_word_embeddings=False),
    "llama-sharded": config("llama", tie_word_embeddings=False),
    "llama-rope-linear": config(
        "llama", max_position_embeddings=128, rope_scaling={"type": "linear", "factor": 4.0}),
    "llama-rope-dynamic": config(
        "llama", max_position_embeddings=32, rope_scaling={"type": "dynamic", "factor": 2.0}),
    "llama-rope-llama3": config(
        "llama", **ROPE_HEADS, rope_scaling={
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32}),
    # 1024, for the default beta_fast to matter; the frequencies don't depend on the prompt.
    "llama-rope-yarn": config(
        "llama", **ROPE_HEADS, rope_theta=100.0, max_position_embeddings=4096, rope_scaling={
            "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}),
    "llama-rope-yarn-attention-factor": config(
        "llama", **ROPE_HEADS, rope_theta=500.0, max_position_embeddings=256, rope_scaling={
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
            "attention_factor": 0.8, "beta_fast": 4.0, "beta_slow": 0.5}),
    "llama-rope-yarn-mscale": new_style(
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32,
         "mscale": 1.4, "mscale_all_dim": 0.6, "beta_fast": 4.0, "truncate": False},
        **ROPE_HEADS, rope_theta=500.0, max_position_embeddings=128),
    "mistral-window": config("mistral", sliding_window=8, tie_word_embeddings=False),
    "granite": config("granite", embedding_multiplier=1.5, attention_multiplier=0.6,
                      residual_multiplier=0.8, logits_scaling=1.25),
    "qwen2": config("qwen2", use_sliding_window=False, sliding_window=8, max_window_layers=1),
    "qwen2-window": config("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=1,
                           num_hidden_layers=3, tie_word_embeddings=False),
    "qwen3": config("qwen3", head_dim=16),
    "qwen3-biases-window": config("qwen3", head_dim=8, attention_bias=True, use_sliding_window=True,
                                  sliding_window=8, max_window_layers=1),
}

GENERATION = {"llama-untied": {"bos_token_id": 1, "eos_token_id": [2, 5, 9]}}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def save_weights(where, name, tensors):
    if name != "llama-sharded":
        save_file(tensors, where / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(tensors)
    shards = [names[:9], names[9:]]  # the cut goes through the first layer
    index = {"metadata": {"total_size": sum(t.nbytes for t in tensors.values())}, "weight_map": {}}
    for i, part in enumerate(shards):
        file = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        save_file({k: tensors[k] for k in part}, where / file, metadata={"format": "pt"})
        index["weight_map"] |= {k: file for k in part}
    (where / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def make(name, config):
    where = OUT / name
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir(parents=True)
    (where / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    if name in GENERATION:
        (where / "generation_config.json").write_text(json.dumps(GENERATION[name], indent=1) + "\n")
    dtype = DTYPES[config.get("torch_dtype") or config["dtype"]]
    weights = ref.random_weights(name, config)
    save_weights(where, name, {k: torch.from_numpy(v).to(dtype) for k, v in weights.items()})

    model = transformers.AutoModelForCausalLM.from_pretrained(
        where, attn_implementation="eager", dtype=torch.float32).eval()
    lengths = LENGTHS_SCALED if "-rope-" in name else LENGTHS
    prompts = ref.standard_prompts(name, config["vocab_size"], lengths)
    expected, logits, summary = ref.expect(model, prompts, dynamic="dynamic" in name)
    ref.write_expected(where, expected, logits)
    size = sum(f.stat().st_size for f in where.iterdir())
    print(f"{name}: {size // 1000} kB, {summary}")


def main():
    for name in sys.argv[1:] or MODELS:
        make(name, MODELS[name])


if __name__ == "__main__":
    main()
