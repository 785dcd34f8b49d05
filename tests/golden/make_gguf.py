#!/usr/bin/env python3
"""Writes tests/data/gguf: GGUF files of every element type, and what their exact weights compute.

Every tensor is quantised, dequantised by the gguf package and given to transformers in fp32, so the
expected logits are those of the very numbers in the file. README.md beside this script has the
formats."""
import json
import math

import numpy as np
import tokenizers
import torch
import transformers
from gguf import GGUFWriter, RopeScalingType, TokenType
from gguf.quants import dequantize

import reference as ref
from blocks import Q, TYPES, encode
from chat_text import LINES
from make_models import LENGTHS, LENGTHS_SCALED, MODELS, OUT as MODELS_DIR, config

OUT = ref.DATA / "gguf"

PLAIN = config("llama", hidden_size=64, intermediate_size=64, num_hidden_layers=1)
K_QUANT = config("llama", hidden_size=256, intermediate_size=256, num_attention_heads=8,
                 num_key_value_heads=1, num_hidden_layers=1, vocab_size=48)

GGUF_NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
TOP_NAMES = {"model.embed_tokens.weight": "token_embd.weight",
             "model.norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}


def gguf_name(name):
    """model.layers.0.mlp.up_proj.weight -> blk.0.ffn_up.weight"""
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    module, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{GGUF_NAMES[module]}.{kind}"


def row_order(name, settings):
    """Where row i of the file comes from. llama and granite files keep the two halves of a q or k
    head interleaved: 0, e/2, 1, e/2 + 1, …"""
    for part, heads in [("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")]:
        if part in name and settings["model_type"] in ("llama", "mistral", "granite"):
            n, e = settings[heads], ref.head_dim(settings)
            return np.arange(n * e).reshape(n, 2, e // 2).swapaxes(1, 2).ravel()
    return None


def add_tensors(writer, settings, weights, qtype, rng):
    """Puts every tensor into the file; returns what they are worth, in transformers' order."""
    worth = {}
    for name, values in weights.items():
        order = row_order(name, settings)
        values = values if order is None else values[order]
        if values.ndim == 1:  # norms and biases are always f32
            writer.add_tensor(gguf_name(name), values)
        else:
            data = encode(rng, qtype, values)
            writer.add_tensor(gguf_name(name), data, raw_dtype=qtype)
            values = dequantize(data, qtype).astype(np.float32)
        worth[name] = values
        if order is not None:
            worth[name] = np.empty_like(values)
            worth[name][order] = values
    return worth


def llama3_factors(settings):
    """What frequency i is divided by, as the converter of llama.cpp stores it."""
    rope, e = settings["rope_scaling"], ref.head_dim(settings)
    old, low, high = (rope["original_max_position_embeddings"], rope["low_freq_factor"],
                      rope["high_freq_factor"])
    factors = []
    for i in range(0, e, 2):
        wavelength = 2 * math.pi * settings["rope_theta"] ** (i / e)
        smooth = min(max((old / wavelength - low) / (high - low), 0), 1)
        factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, np.float32)


def add_settings(writer, settings):
    arch = settings["model_type"]
    writer.add_context_length(settings["max_position_embeddings"])
    writer.add_embedding_length(settings["hidden_size"])
    writer.add_block_count(settings["num_hidden_layers"])
    writer.add_feed_forward_length(settings["intermediate_size"])
    writer.add_head_count(settings["num_attention_heads"])
    writer.add_head_count_kv(settings["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(settings["rms_norm_eps"])
    writer.add_rope_freq_base(settings["rope_theta"])
    writer.add_vocab_size(settings["vocab_size"])
    if arch in ("llama", "granite"):
        writer.add_rope_dimension_count(ref.head_dim(settings))
    if "head_dim" in settings:
        writer.add_key_length(settings["head_dim"])
        writer.add_value_length(settings["head_dim"])
    if arch == "granite":
        writer.add_attention_scale(settings["attention_multiplier"])
        writer.add_embedding_scale(settings["embedding_multiplier"])
        writer.add_residual_scale(settings["residual_multiplier"])
        writer.add_logit_scale(settings["logits_scaling"])
    rope = settings.get("rope_scaling", {})
    kind = rope.get("rope_type", rope.get("type"))
    if kind == "linear":
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif kind == "yarn":
        writer.add_rope_scaling_type(RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    elif kind == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(settings))


def tokenizer(name):
    return json.loads((MODELS_DIR / name / "tokenizer.json").read_text())


def spm_tokens():
    """Pieces, scores and kinds of tiny-spm; a merged piece scores less the later it was learnt."""
    model = tokenizer("tiny-spm")["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].get)
    scores = [0.0] * len(pieces)
    for rank, (left, right) in enumerate(model["merges"]):
        scores[model["vocab"][left + right]] = -1.0 - rank
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL] + [TokenType.BYTE] * 256
    kinds += [TokenType.NORMAL] * (len(pieces) - len(kinds))
    return pieces, scores, kinds


def spm_encode(text, pieces, scores):
    """How a `llama` tokenizer of GGUF merges: the best-scoring pair first, leftmost on a tie."""
    ids = {p: i for i, p in enumerate(pieces)}
    parts = list("▁" + text.replace(" ", "▁"))
    while True:
        pairs = [(scores[ids[a + b]], -i) for i, (a, b) in enumerate(zip(parts, parts[1:]))
                 if a + b in ids]
        if not pairs:
            break
        i = -max(pairs)[1]
        parts[i:i + 2] = [parts[i] + parts[i + 1]]
    return [t for p in parts for t in
            ([ids[p]] if p in ids else [ids[f"<0x{b:02X}>"] for b in p.encode()])]


def add_spm_tokenizer(writer, size):
    """The first size tokens of tiny-spm."""
    pieces, scores, kinds = spm_tokens()
    writer.add_tokenizer_model("llama")
    writer.add_token_list(pieces[:size])
    writer.add_token_scores(scores[:size])
    writer.add_token_types(kinds[:size])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(True)


def add_chat_tokenizer(writer):
    """tiny-chat's: its pre-tokenizer (digits one by one, then bytes) goes by the name of smollm."""
    whole = tokenizer("tiny-chat")
    vocab = whole["model"]["vocab"]
    special = {t["content"] for t in whole["added_tokens"]}
    pieces = sorted(vocab, key=vocab.get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(pieces)
    writer.add_token_types(
        [TokenType.CONTROL if p in special else TokenType.NORMAL for p in pieces])
    writer.add_token_merges([" ".join(m) for m in whole["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(vocab["<|im_end|>"])
    writer.add_eot_token_id(vocab["<|im_end|>"])
    writer.add_add_bos_token(True)
    writer.add_chat_template(json.loads(
        (MODELS_DIR / "tiny-chat" / "tokenizer_config.json").read_text())["chat_template"])


def make(name, settings, weights, qtype, prompts, alignment=None):
    where = OUT / name
    where.mkdir(parents=True, exist_ok=True)
    file = where / "model.gguf"
    arch = settings["model_type"]
    writer = GGUFWriter(file, "llama" if arch == "mistral" else arch)
    writer.add_name(name)
    if alignment:
        writer.add_custom_alignment(alignment)
    if qtype not in (Q.F32, Q.F16, Q.BF16):
        writer.add_quantization_version(2)
    add_settings(writer, settings)
    if name.startswith("tiny-chat"):
        add_chat_tokenizer(writer)
    else:
        add_spm_tokenizer(writer, settings["vocab_size"])
    worth = add_tensors(writer, settings, weights, qtype, ref.rng_for(name + " blocks"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    model = ref.model_from_weights(settings, worth)
    expected, logits, summary = ref.expect(model, prompts)
    ref.write_expected(where, expected, logits)
    print(f"{name}: {file.stat().st_size // 1000} kB, {summary}")


def make_random(name, settings, qtype, seed=None, **more):
    lengths = LENGTHS_SCALED if "-rope-" in name else LENGTHS
    make(name, settings, ref.random_weights(seed or name, settings), qtype,
         ref.standard_prompts(name, settings["vocab_size"], lengths), **more)


def make_talking(name, qtype):
    """tiny-chat or tiny-spm as GGUF, with the prompts of its own expected.json."""
    where = MODELS_DIR / name
    settings = json.loads((where / "config.json").read_text())
    model = transformers.AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32)
    weights = {k: model.state_dict()[k].numpy() for k in ref.tensor_shapes(settings)}
    old = json.loads((where / "expected.json").read_text())["prompts"]
    make(f"{name}-{qtype.name.lower()}", settings, weights, qtype,
         [(p["ids"], p["rows"]) for p in old])


def check_spm_scores():
    tok = tokenizers.Tokenizer.from_file(str(MODELS_DIR / "tiny-spm" / "tokenizer.json"))
    pieces, scores, _ = spm_tokens()
    for line in LINES:
        assert spm_encode(line, pieces, scores) == tok.encode(line, add_special_tokens=False).ids


def main():
    check_spm_scores()
    for kind, qtype in TYPES.items():
        settings = K_QUANT if kind.endswith("_k") else PLAIN
        make_random(f"llama-{kind}", settings, qtype, seed="gguf")
    for name in ("llama-biases", "llama-uneven", "granite", "qwen2", "qwen3", "llama-rope-linear",
                 "llama-rope-llama3", "llama-rope-yarn"):
        make_random(f"{name}-f16", MODELS[name], Q.F16, alignment=64 if name == "granite" else None)
    make_talking("tiny-chat", Q.Q8_0)
    make_talking("tiny-spm", Q.F16)


if __name__ == "__main__":
    main()
