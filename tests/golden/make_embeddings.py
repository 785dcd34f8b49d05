"""tests/data/embeddings.json: what transformers gives for the vectors of a few texts.

Run with an interpreter that has torch and transformers; tpd's tokenizer makes the ids (TPD, default
build/tpd), since they are held to others elsewhere."""
import json
import os
import pathlib
import subprocess

import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MODEL = ROOT / "tests/data/models/tiny-chat"
TEXTS = ["hello", "the cat sat on the mat. " * 6, "a"]

model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
asked = "".join(json.dumps({"text": t}) + "\n" for t in TEXTS)
lines = subprocess.run([os.environ.get("TPD", ROOT / "build/tpd"), "tokenize", MODEL, "--special"],
                       input=asked, capture_output=True, text=True, check=True).stdout
cases = []
for text, line in zip(TEXTS, lines.splitlines()):
    ids = json.loads(line)["ids"]
    with torch.no_grad():
        states = model.model(torch.tensor([ids])).last_hidden_state[0].double()
    unit = lambda v: [round(x, 7) for x in (v / v.norm()).tolist()]
    cases.append({"input": text, "mean": unit(states.mean(0)), "last": unit(states[-1])})
(ROOT / "tests/data/embeddings.json").write_text(json.dumps(cases, indent=0) + "\n")
