#!/usr/bin/env python3
"""Writes a GGUF file of a real model's shape with random weights, so that speed can be measured
without a download: make_model.py SHAPE TYPE PATH.

The same arguments give the same bytes. Weights are drawn from a pool of random numbers, repeated:
speed does not depend on them, and a file of 1.1 billion is made in seconds. Needs python3-numpy."""
import argparse
import os
import struct
import sys

import numpy as np

SHAPES = {
    "smollm2-135m": dict(hidden=576, layers=30, heads=9, kv_heads=3, ffn=1536, vocab=49152,
                         context=8192, rope_base=100000.0, tied=True),
    "llama-1.1b": dict(hidden=2048, layers=22, heads=32, kv_heads=4, ffn=5632, vocab=32000,
                       context=2048, rope_base=10000.0, tied=False),
    # a draft model's, for llama-1.1b
    "llama-68m": dict(hidden=768, layers=2, heads=12, kv_heads=12, ffn=3072, vocab=32000,
                      context=2048, rope_base=10000.0, tied=False),
}
# name: (GGUF's number, elements in a block, its bytes, file type number)
TYPES = {"f32": (0, 1, 4, 0), "q4_0": (2, 32, 18, 2), "q5_0": (6, 32, 22, 8),
         "q8_0": (8, 32, 34, 7), "q4_k": (12, 256, 144, 14), "q6_k": (14, 256, 210, 18),
         "bf16": (30, 1, 2, 32)}
# Files of several types, as llama-quantize makes them: what most matrices are, and the file type.
MIXES = {"q4_k_m": ("q4_k", 15)}
# For rows that are no whole number of blocks of 256, as llama.cpp chooses.
FALLBACK = {"q4_k": "q5_0", "q6_k": "q8_0"}
STD = 0.02
# d such that random codes give numbers of about STD, as (byte offset in the block, value)
SCALES = {"q8_0": [(0, STD / 74)], "q4_0": [(0, STD / 4.6)], "q5_0": [(0, STD / 9.2)],
          "q4_k": [(0, STD / 220), (2, 7.5 * STD / 220)], "q6_k": [(208, STD / 1370)]}
ALIGNMENT = 32
POOL_BLOCKS = 1 << 16


def pool(kind, rng):
    """Bytes of many random blocks."""
    if kind == "bf16":
        values = (rng.standard_normal(1 << 20) * STD).astype(np.float32)
        return (values.view(np.uint32) >> 16).astype("<u2").view(np.uint8)
    blocks = rng.integers(0, 256, (POOL_BLOCKS, TYPES[kind][2]), np.uint8)
    for offset, value in SCALES[kind]:
        blocks[:, offset:offset + 2] = np.array([value], "<f2").view(np.uint8)
    return blocks.ravel()


def tensors(shape):
    """(name, rows or None for a vector, cols) in file order."""
    hidden, ffn = shape["hidden"], shape["ffn"]
    kv = hidden // shape["heads"] * shape["kv_heads"]
    yield "token_embd.weight", shape["vocab"], hidden
    for i in range(shape["layers"]):
        for name, rows, cols in [
                ("attn_norm", None, hidden), ("attn_q", hidden, hidden), ("attn_k", kv, hidden),
                ("attn_v", kv, hidden), ("attn_output", hidden, hidden), ("ffn_norm", None, hidden),
                ("ffn_gate", ffn, hidden), ("ffn_up", ffn, hidden), ("ffn_down", hidden, ffn)]:
            yield f"blk.{i}.{name}.weight", rows, cols
    yield "output_norm.weight", None, hidden
    if not shape["tied"]:
        yield "output.weight", shape["vocab"], hidden


def more_bits(name, shape):
    """What Q4_K_M keeps in Q6_K: the head, and v and down of an eighth of the layers at either end
    and of every third between."""
    if name == ("token_embd.weight" if shape["tied"] else "output.weight"):
        return True
    parts = name.split(".")
    if len(parts) != 4 or parts[2] not in ("attn_v", "ffn_down"):
        return False
    layer, n = int(parts[1]), shape["layers"]
    return layer < n // 8 or layer >= 7 * n // 8 or (layer - n // 8) % 3 == 2


def tensor_type(kind, name, shape, rows, cols):
    if rows is None:
        return "f32"
    if kind in MIXES:
        kind = "q6_k" if more_bits(name, shape) else MIXES[kind][0]
    return FALLBACK[kind] if cols % TYPES[kind][1] else kind


def file_type(kind):
    return MIXES[kind][1] if kind in MIXES else TYPES[kind][3]


def tensor_bytes(kind, rows, cols):
    _, block, block_bytes, _ = TYPES[kind]
    return (rows or 1) * cols // block * block_bytes


def vocabulary(size):
    """Byte-level BPE: the 256 bytes in their printable form, then all pairs of letters, then pairs
    with a letter, each with the merge that makes it."""
    printable = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b]
    hidden = [b for b in range(256) if b not in printable]
    tokens = [chr(b) for b in printable] + [chr(256 + i) for i in range(len(hidden))]
    letters = ["Ġ"] + [chr(c) for c in range(ord("a"), ord("z") + 1)]
    letters += [c.upper() for c in letters[1:]]
    merges, stems = [], letters
    while len(tokens) < size - 2:
        pairs = [(a, b) for a in stems for b in letters[1:]][:size - 2 - len(tokens)]
        merges += [f"{a} {b}" for a, b in pairs]
        stems = [a + b for a, b in pairs]
        tokens += stems
    return tokens + ["<s>", "</s>"], merges


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def entry(key, value):
    """One metadata entry: int is u32, float f32; lists are of strings or i32."""
    if isinstance(value, bool):
        return string(key) + struct.pack("<IB", 7, value)
    if isinstance(value, int):
        return string(key) + struct.pack("<II", 4, value)
    if isinstance(value, float):
        return string(key) + struct.pack("<If", 6, value)
    if isinstance(value, str):
        return string(key) + struct.pack("<I", 8) + string(value)
    if isinstance(value[0], str):
        return (string(key) + struct.pack("<IIQ", 9, 8, len(value)) +
                b"".join(string(v) for v in value))
    return string(key) + struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)


def metadata(name, shape, kind):
    tokens, merges = vocabulary(shape["vocab"])
    kinds = [1] * (len(tokens) - 2) + [3, 3]  # the last two are control tokens
    return {
        "general.architecture": "llama", "general.name": f"{name} shape, random {kind}",
        "general.file_type": file_type(kind), "general.quantization_version": 2,
        "llama.context_length": shape["context"], "llama.embedding_length": shape["hidden"],
        "llama.block_count": shape["layers"], "llama.feed_forward_length": shape["ffn"],
        "llama.attention.head_count": shape["heads"],
        "llama.attention.head_count_kv": shape["kv_heads"],
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": shape["hidden"] // shape["heads"],
        "llama.rope.freq_base": shape["rope_base"], "llama.vocab_size": shape["vocab"],
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": len(tokens) - 2,
        "tokenizer.ggml.eos_token_id": len(tokens) - 1, "tokenizer.ggml.add_bos_token": False,
    }


def padding(n):
    return b"\0" * (-n % ALIGNMENT)


def header(name, shape, kind):
    entries = metadata(name, shape, kind)
    infos, offset = [], 0
    for tensor, rows, cols in tensors(shape):
        own = tensor_type(kind, tensor, shape, rows, cols)
        dims = (cols,) if rows is None else (cols, rows)
        infos.append(string(tensor) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims,
                                                  TYPES[own][0], offset))
        size = tensor_bytes(own, rows, cols)
        offset += size + -size % ALIGNMENT
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(infos), len(entries))
    head += b"".join(entry(k, v) for k, v in entries.items()) + b"".join(infos)
    return head + padding(len(head))


def write_repeated(out, data, start, size):
    """size bytes of data, over and over, from start on."""
    while size:
        part = data[start:start + size]
        out.write(part)
        size -= part.size
        start = 0


def write_model(out, name, shape, kind):
    rng = np.random.default_rng(135)
    pools = {}
    out.write(header(name, shape, kind))
    for tensor, rows, cols in tensors(shape):
        own = tensor_type(kind, tensor, shape, rows, cols)
        size = tensor_bytes(own, rows, cols)
        if rows is None:
            out.write((1 + 0.1 * rng.standard_normal(cols)).astype("<f4").tobytes())
        else:
            if own not in pools:
                pools[own] = pool(own, rng)
            unit = TYPES[own][2]
            start = int(rng.integers(0, pools[own].size // unit)) * unit
            write_repeated(out, pools[own], start, size)
        out.write(padding(size))


def main():
    parser = argparse.ArgumentParser(description="Writes a random model of a real shape as GGUF.")
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("type", choices=["bf16", "q8_0", "q4_0", "q4_k", *MIXES])
    parser.add_argument("path")
    args = parser.parse_args()
    part = args.path + ".part"
    try:
        with open(part, "wb") as out:
            write_model(out, args.shape, SHAPES[args.shape], args.type)
        os.rename(part, args.path)
    except OSError as e:
        sys.exit(f"make_model.py: cannot write {args.path}: {e.strerror}")


if __name__ == "__main__":
    main()
