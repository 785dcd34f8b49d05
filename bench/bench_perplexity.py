"""What rounding costs: perplexity of a text under each way to hold weights and activations.

bench_perplexity.py [MODEL [TEXT…]]: without a model the bundled one, on new stories of the kind that it
learnt; else MODEL on TEXT (README.md and docs/architecture.md). Reads B."""
import json
import math
import subprocess
import sys

from common import BUILD, ROOT, Daemon

QUANTS, ACTIVATIONS = ("none", "q8", "q4"), ("f32", "auto")
CONTEXT = 256
PIECE = 1500  # bytes; what is over the context is left out
STORIES, SEED = "40", "2027"  # another seed than etc/models/alder/make.sh has


def stories():
    made = subprocess.run([sys.executable, ROOT / "etc/models/alder/make_text.py", STORIES, SEED],
                          check=True, capture_output=True, text=True).stdout
    return [json.loads(line)["text"] for line in made.splitlines()]


def is_quantised(model):
    facts = subprocess.run([BUILD / "tpd", "inspect", model, "--json"], check=True,
                           capture_output=True, text=True).stdout
    return any(t["dtype"] not in ("F32", "F16", "BF16") for t in json.loads(facts)["tensors"])


def perplexity(client, texts):
    """(perplexity, tokens scored)."""
    total = count = 0
    for text in texts:
        ids = client.call("tokenize", text=text)["tokens"][:CONTEXT - 1]
        scored = [t["logprob"] for t in client.call("score", completion=ids)["tokens"]]
        scored = [p for p in scored if p is not None]
        total, count = total + sum(scored), count + len(scored)
    return math.exp(-total / count), count


def main():
    model, texts = str(ROOT / "etc/models/alder"), None
    if len(sys.argv) > 1:
        model = sys.argv[1]
        names = sys.argv[2:] or [ROOT / "README.md", ROOT / "docs/architecture.md"]
        text = "\n".join(open(name).read() for name in names)
        texts = [text[i:i + PIECE] for i in range(0, len(text), PIECE)]
    print("perplexity of %s\n\n| weights | activations | perplexity | tokens |\n|---|---|---|---|" % model)
    for quant in ("none",) if is_quantised(model) else QUANTS:
        for activations in ACTIVATIONS:
            with Daemon(model, "--quant", quant, "--activations", activations, "--ctx", CONTEXT) as daemon:
                value, count = perplexity(daemon.client, texts or stories())
            print("| %s | %s | %.4f | %d |" % (quant, activations, value, count), flush=True)


main()
