#!/usr/bin/env python3
"""Writes tests/data/dequant: 8 rows of 512 elements of every type, as bytes and as fp32.

The fp32 values are what the gguf package makes of the bytes. Every row of a quantised type has
random codes; the scales of some blocks are zero, negative, subnormal or large, so that no special
case goes unseen. All values are finite.
"""
import pathlib

import numpy as np
from gguf.quants import dequantize

from blocks import HALVES, Q, TYPES, put_half, random_blocks

ROWS, COLS = 8, 512
OUT = pathlib.Path(__file__).resolve().parent.parent / "data" / "dequant"
ODD_SCALES = [0.0, -0.0, -0.0371, 5.96e-8, -3.1e-5, 12.5]


def plain_bits(rng, qtype):
    """Finite f16 or bf16 numbers: half of any size, half of a weight's size, and the extremes."""
    n = ROWS * COLS
    infinity = 0x7C00 if qtype == Q.F16 else 0x7F80
    largest = infinity - 1
    any_size = rng.integers(0, infinity, n // 2) | rng.integers(0, 2, n // 2) << 15
    weights = (rng.standard_normal(n - n // 2) * 0.05).astype(np.float32)
    if qtype == Q.F16:
        weights = weights.astype(np.float16).view(np.uint16)
    else:
        weights = (weights.view(np.uint32) >> 16).astype(np.uint16)
    bits = np.concatenate([any_size.astype(np.uint16), weights])
    bits[:8] = [0, 0x8000, 1, 0x8001, largest, largest | 0x8000, 0x3FF, 0x400]
    return bits.view(np.uint8).reshape(ROWS, -1)


def quantised(rng, qtype):
    blocks = random_blocks(rng, qtype, ROWS * COLS // (256 if "_K" in qtype.name else 32), 0.05)
    scale_at, min_at = HALVES[qtype]
    odd = len(ODD_SCALES)
    put_half(blocks[:odd], scale_at, ODD_SCALES)
    if min_at is not None:
        put_half(blocks[2:2 + odd], min_at, ODD_SCALES)
    return blocks.reshape(ROWS, -1)


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    for number, (name, qtype) in enumerate(TYPES.items()):
        if qtype == Q.F32:
            continue
        rng = np.random.default_rng([2024, number])
        raw = plain_bits(rng, qtype) if qtype in (Q.F16, Q.BF16) else quantised(rng, qtype)
        values = dequantize(raw, qtype).astype(np.float32)
        assert values.shape == (ROWS, COLS) and np.isfinite(values).all()
        (OUT / f"{name}.bin").write_bytes(raw.tobytes())
        (OUT / f"{name}.f32").write_bytes(values.astype("<f4").tobytes())
        print(f"{name}: {raw.nbytes} bytes, std {values[-1].std():.4f}")


if __name__ == "__main__":
    main()
