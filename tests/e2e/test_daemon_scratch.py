"""A model that begins with us: weights from a seed, trained by a job, and what comes out stands alone."""
import json
import math
import shutil

import pytest

from daemon import TINY, Daemon

FILES = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
SENTENCE = "The daemon learns to say this one sentence, from nothing at all."
JOB = {"name": "new", "data": "text.jsonl", "method": "full", "loss_on": "all", "seq_len": 64,
       "batch_size": 4, "packing": False, "weight_decay": 0}


@pytest.fixture
def fresh(tmp_path):
    """A model directory without weights, and data beside it."""
    model, data = tmp_path / "model", tmp_path / "data"
    model.mkdir()
    data.mkdir()
    for name in FILES:
        shutil.copy(TINY / name, model)
    (data / "text.jsonl").write_text((json.dumps({"text": SENTENCE}) + "\n") * 8)
    return model


def train(folder, model, tp, seed=7, **job):
    daemon = Daemon(folder, model, "--init", seed, "--tp", tp, "--data-dir", model.parent / "data")
    with daemon.client() as client:
        number = client.result(client.send("finetune.submit", {**JOB, **job}))["job"]
        done = client.call("finetune.watch", job=number)
        assert done["state"] == "done", done
        steps = [e for e in client.call("finetune.log", job=number)["events"] if e["event"] == "step"]
    assert daemon.stop() == 0
    return [step["loss"] for step in steps], folder / "state/models/new"


def test_the_seed_alone_says_what_a_model_begins_with(tmp_path, fresh):
    """A step that moves nothing writes the weights as they were drawn: the same bits at every tp."""
    results = [train(tmp_path / f"tp{tp}", fresh, tp, max_steps=1, lr=1e-12) for tp in (1, 2, 3)]
    results.append(train(tmp_path / "other", fresh, 1, seed=8, max_steps=1, lr=1e-12))
    bits = [(out / "model.safetensors").read_bytes() for _, out in results]
    assert bits[0] == bits[1] == bits[2] != bits[3]
    vocabulary = json.loads((fresh / "config.json").read_text())["vocab_size"]
    for losses, _ in results:
        assert abs(losses[0] - math.log(vocabulary)) < 0.1


def test_a_model_that_began_with_us_learns_and_stands_alone(tmp_path, fresh):
    losses, out = train(tmp_path / "a", fresh, 2, epochs=40, lr=0.01)
    assert losses[-1] < 0.2, losses
    daemon = Daemon(tmp_path / "b", out)
    with daemon.client() as client:
        answer = client.call("generate", prompt=SENTENCE[:10], max_tokens=40, temperature=0)
        assert answer["text"] == SENTENCE[10:]
    assert daemon.stop() == 0


def test_a_directory_without_weights_names_the_way_out(tmp_path, fresh):
    daemon = Daemon(tmp_path / "tpd", fresh, wait=False)
    assert daemon.process.wait(timeout=60) == 65
    assert "--init SEED" in daemon.log()
    daemon = Daemon(tmp_path / "weights", TINY, "--init", "1", wait=False)
    assert daemon.process.wait(timeout=60) == 78
    assert "has weights" in daemon.log()
