"""Weights as model files have them, read without tpd: GGUF's blocks taken apart, safetensors' elements."""
import json
import struct

import numpy as np

NAMES = {0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 10: "q2_k", 11: "q3_k",
         12: "q4_k", 13: "q5_k", 14: "q6_k", 30: "bf16"}
# Of a block: elements, bytes, where its scale is, its minimum, its packed sub-scales and how many bytes.
BLOCKS = {"q8_0": (32, 34, 0, None, 0, 0), "q4_0": (32, 18, 0, None, 0, 0), "q4_1": (32, 20, 0, 2, 0, 0),
          "q5_0": (32, 22, 0, None, 0, 0), "q5_1": (32, 24, 0, 2, 0, 0), "q2_k": (256, 84, 80, 82, 0, 16),
          "q3_k": (256, 110, 108, None, 96, 12), "q4_k": (256, 144, 0, 2, 4, 12),
          "q5_k": (256, 176, 0, 2, 4, 12), "q6_k": (256, 210, 208, None, 192, 16)}
PLAIN = {"f32": "<f4", "f16": "<f2", "bf16": "<u2"}


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        value, = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return value

    def text(self):
        size = self.take("Q")
        self.at += size
        return self.data[self.at - size:self.at].decode()

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            inner, n = self.take("I"), self.take("Q")
            return [self.value(inner) for _ in range(n)]
        return self.take({0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q",
                          11: "q", 12: "d"}[kind])


def read_gguf(path):
    """{name: (dtype, shape, its bytes)}"""
    data = path.read_bytes()
    r = Reader(data)
    assert r.take("I") == 0x46554747
    r.take("I")
    n_tensors, n_keys = r.take("Q"), r.take("Q")
    keys = {}
    for _ in range(n_keys):
        key = r.text()
        keys[key] = r.value(r.take("I"))
    found = []
    for _ in range(n_tensors):
        name = r.text()
        dims = [r.take("Q") for _ in range(r.take("I"))]
        found.append((name, NAMES[r.take("I")], tuple(reversed(dims)), r.take("Q")))
    align = keys.get("general.alignment", 32)
    start = (r.at + align - 1) // align * align
    out = {}
    for name, dtype, shape, at in found:
        n = int(np.prod(shape))
        size = (n * np.dtype(PLAIN[dtype]).itemsize if dtype in PLAIN
                else n // BLOCKS[dtype][0] * BLOCKS[dtype][1])
        out[name] = dtype, shape, data[start + at:start + at + size]
    return out


def read_safetensors(path):
    data = path.read_bytes()
    size, = struct.unpack_from("<Q", data)
    return {name: (t["dtype"].lower(), tuple(t["shape"]),
                   data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]])
            for name, t in json.loads(data[8:8 + size]).items() if name != "__metadata__"}


def _nibbles(q, n):
    q = q.reshape(*q.shape[:2], -1, n)
    return np.stack([q & 15, q >> 4], -2).reshape(*q.shape[:2], -1)


def _crumbs(q):
    q = q.reshape(*q.shape[:2], -1, 1, 32)
    return (q >> np.array([0, 2, 4, 6], "u1")[:, None] & 3).reshape(*q.shape[:2], -1)


def _bits_by_byte(q):
    return np.unpackbits(q, axis=-1, bitorder="little")


def _bits_by_place(q):
    return (q[..., None, :] >> np.arange(8, dtype="u1")[:, None] & 1).reshape(*q.shape[:2], -1)


CODES = {"q8_0": lambda b: b[..., 2:] ^ 0x80,
         "q4_0": lambda b: _nibbles(b[..., 2:], 16),
         "q4_1": lambda b: _nibbles(b[..., 4:], 16),
         "q5_0": lambda b: _nibbles(b[..., 6:], 16) | _bits_by_byte(b[..., 2:6]) << 4,
         "q5_1": lambda b: _nibbles(b[..., 8:], 16) | _bits_by_byte(b[..., 4:8]) << 4,
         "q2_k": lambda b: _crumbs(b[..., 16:80]),
         "q3_k": lambda b: _crumbs(b[..., 32:96]) | _bits_by_place(b[..., :32]) << 2,
         "q4_k": lambda b: _nibbles(b[..., 16:], 32),
         "q5_k": lambda b: _nibbles(b[..., 48:], 32) | _bits_by_place(b[..., 16:48]) << 4,
         "q6_k": lambda b: _nibbles(b[..., :128], 64) | _crumbs(b[..., 128:192]) << 4}


def rows_in_order(array, permuted_head_dim):
    """Rows as Hugging Face has them, of an array in the file's order."""
    if not permuted_head_dim:
        return array
    split = array.reshape(-1, permuted_head_dim // 2, 2, *array.shape[1:])
    return split.swapaxes(1, 2).reshape(array.shape)


def fields(dtype, shape, data):
    """A matrix's fields by name, each [row, block, …]; of a plain type its values [row, column]."""
    rows = shape[0]
    if dtype in PLAIN:
        return {"values": np.frombuffer(data, PLAIN[dtype]).reshape(rows, -1)}
    columns, size, d, m, sub, n_sub = BLOCKS[dtype]
    b = np.frombuffer(data, "u1").reshape(rows, shape[1] // columns, size)
    half = lambda at: b[..., at:at + 2].copy().view("<u2")
    out = {"scale": half(d), "codes": CODES[dtype](b)}
    if m is not None:
        out["minimum"] = half(m)
    if n_sub:
        out["sub_scales"] = b[..., sub:sub + n_sub]
    return out
