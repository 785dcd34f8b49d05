"""Random quantised blocks whose every bit is legal and whose values are of a wanted size.

The gguf package quantises the simple types but only dequantises the K-quants, so blocks of those
are drawn at random: any bits in the codes, scales chosen so that the values have a standard
deviation of about `std`.
"""
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Q
from gguf.quants import dequantize, quantize

TYPES = {  # the name that tpd and the file names use
    "f32": Q.F32, "f16": Q.F16, "bf16": Q.BF16, "q8_0": Q.Q8_0, "q4_0": Q.Q4_0, "q4_1": Q.Q4_1,
    "q5_0": Q.Q5_0, "q5_1": Q.Q5_1, "q2_k": Q.Q2_K, "q3_k": Q.Q3_K, "q4_k": Q.Q4_K,
    "q5_k": Q.Q5_K, "q6_k": Q.Q6_K,
}

# Where a block keeps its half-precision numbers: (scale, minimum or None), in bytes.
HALVES = {
    Q.Q8_0: (0, None), Q.Q4_0: (0, None), Q.Q5_0: (0, None), Q.Q4_1: (0, 2), Q.Q5_1: (0, 2),
    Q.Q2_K: (80, 82), Q.Q3_K: (108, None), Q.Q4_K: (0, 2), Q.Q5_K: (0, 2), Q.Q6_K: (208, None),
}


def put_half(blocks, offset, values):
    """Writes values [n] as f16 at a byte offset of every block [n, bytes]."""
    blocks[:, offset:offset + 2] = np.asarray(values, np.float16).view(np.uint8).reshape(-1, 2)


def random_blocks(rng, qtype, n, std):
    """n random blocks [n, block bytes] of a quantised type, with values of about std."""
    scale_at, min_at = HALVES[qtype]
    blocks = rng.integers(0, 256, (n, GGML_QUANT_SIZES[qtype][1]), np.uint8)
    spread = rng.uniform(0.5, 1.5, n)
    put_half(blocks, scale_at, np.ones(n))
    if min_at is not None:  # a minimum that centres the block
        put_half(blocks, min_at, np.zeros(n))
        above = dequantize(blocks, qtype).mean()
        put_half(blocks, scale_at, np.zeros(n))
        put_half(blocks, min_at, np.ones(n))
        below = dequantize(blocks, qtype).mean()
        put_half(blocks, scale_at, spread)
        put_half(blocks, min_at, -above / below * spread)
    unit = std / dequantize(blocks, qtype).std()
    put_half(blocks, scale_at, spread * unit)
    if min_at is not None:
        put_half(blocks, min_at, -above / below * spread * unit)
    return blocks


def encode(rng, qtype, values):
    """A matrix in the type's own bytes [rows, row bytes]: values [rows, cols] quantised, or, in a
    K-quant, random blocks of about their spread."""
    rows, cols = values.shape
    if qtype.name.endswith("_K"):
        n = rows * cols // GGML_QUANT_SIZES[qtype][0]
        return random_blocks(rng, qtype, n, values.std()).reshape(rows, -1)
    return quantize(values, qtype).view(np.uint8).reshape(rows, -1)
