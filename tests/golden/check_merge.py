#!/usr/bin/env python3
"""A developer's check, which needs PyTorch, transformers and PEFT: what `tpd merge` writes loads in
transformers and says what PEFT's base + adapter say (the logits of make_training.py's LoRA cases).

usage: check_merge.py [path of tpd]"""
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file

import reference as ref

TPD = sys.argv[1] if len(sys.argv) > 1 else "build/tpd"


@torch.no_grad()
def check(case):
    facts = json.loads((case / "train.json").read_text())
    base = ref.DATA / facts["model"]
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "merged"
        subprocess.run([TPD, "merge", base, case / "adapter", out], check=True,
                       stdout=subprocess.DEVNULL)
        model = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32,
                                                                  attn_implementation="eager")
    logits = model(torch.tensor([facts["prompt"]])).logits[0]
    want = load_file(case / "logits.safetensors")["logits"]
    off = float((logits - want).abs().max())
    allowed = 1e-4 if base.is_dir() else 0.15  # a quantised base is rounded to bf16
    print(f"{case.name}: {off:.2g}")
    return off <= allowed


cases = sorted((ref.DATA / "training").glob("lora-*"))
sys.exit(0 if all([check(case) for case in cases]) else 1)
