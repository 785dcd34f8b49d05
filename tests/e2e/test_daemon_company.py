"""A request's answer is its own: alone, among 32 others, from a cold or a warm cache, beside a job."""
import json
import random
import shutil
import struct
import subprocess

import pytest

from daemon import BUILD, TINY, Daemon, eventually

N = 33


def asks(seed):
    """Prompts that begin alike by threes, greedy and sampled, streamed and not, some with choices."""
    numbers = random.Random(seed)
    result = []
    for i in range(N):
        family = random.Random(i % 3)
        prompt = [family.randrange(10, 300) for _ in range(numbers.randrange(1, 150))]
        ask = {"prompt": prompt, "max_tokens": numbers.randrange(1, 60), "ignore_eos": True,
               "stream": i % 4 == 0, "logprobs": 2, "seed": i,
               "temperature": 1.3 if i % 2 else 0, "top_p": 0.9}
        if i % 5 == 4:
            ask["n"] = 3
        result.append(ask)
    return result


def own(result):
    choices = result.get("choices", [result])
    return [{k: c[k] for k in ("tokens", "text", "logprobs", "finish_reason")} for c in choices]


def in_bf16(source, to):
    """A copy of a model whose weights in F32 are cut to BF16."""
    shutil.copytree(source, to)
    data = (to / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    for name, tensor in header.items():
        if name != "__metadata__":
            assert tensor["dtype"] == "F32"
            tensor.update(dtype="BF16", data_offsets=[at // 2 for at in tensor["data_offsets"]])
    new = json.dumps(header).encode()
    new += b" " * (-len(new) % 8)
    values = data[8 + size:]
    halves = b"".join(values[i + 2:i + 4] for i in range(0, len(values), 4))
    (to / "model.safetensors").write_bytes(struct.pack("<Q", len(new)) + new + halves)
    return to


@pytest.fixture(scope="module", params=["f32", "bf16", "q8", "q4"])
def alone(request, tmp_path_factory):
    """How weights are held (all but f32 are multiplied with what is rounded): a model and flags, and each
    answer of a daemon that does nothing else."""
    directory, held = tmp_path_factory.mktemp("alone"), request.param
    model = in_bf16(TINY, directory / "model") if held == "bf16" else TINY
    flags = ["--quant", held] if held in ("q8", "q4") else []
    daemon = Daemon(directory, model, "--slots", 4, "--step-tokens", 512, *flags)
    with daemon.client() as client:
        answers = [own(client.call("generate", **ask)) for ask in asks(1)]
    assert daemon.stop() == 0
    return model, flags, answers


def answers_together(client):
    ids = [client.send("generate", ask) for ask in asks(1)]
    return [own(client.result(id)) for id in ids]


def idle(client):
    kv = client.call("status")["kv"]
    return kv["used"] == 0 and kv["cached"] + kv["free"] == kv["blocks"]


@pytest.mark.parametrize("flags", [
    ["--slots", 32],
    ["--slots", 6, "--step-tokens", 16],
    ["--slots", 16, "--kv-memory", "100K", "--debug-alias"],
    ["--slots", 1],
])
def test_the_same_among_32_others_whatever_the_cache_holds(start, alone, flags):
    model, held, answers = alone
    daemon = start(*flags, *held, model=model)
    with daemon.client() as client:
        for _ in range(2):
            assert answers_together(client) == answers
        eventually(lambda: idle(client))


def test_the_same_beside_a_job(start, tmp_path, alone):
    model, held, answers = alone
    data = tmp_path / "data"
    data.mkdir()
    (data / "d.jsonl").write_text("".join(json.dumps({"text": f"so {i} it was " * 9}) + "\n"
                                          for i in range(40)))
    daemon = start("--data-dir", data, "--slots", 32, *held, model=model)
    with daemon.client() as client:
        job = client.call("finetune.submit", data="d.jsonl", epochs=1000, seq_len=64, batch_size=4,
                          eval_fraction=0)["job"]
        eventually(lambda: client.call("finetune.get", job=job)["step"] > 0)
        assert answers_together(client) == answers
        assert client.call("finetune.get", job=job)["state"] == "running"
        client.call("finetune.cancel", job=job)


def test_choices_read_their_prompt_once_and_usage_tells_what_was_cached(start):
    with start("--slots", 8).client() as client:
        ask = {"prompt": [9 + i % 200 for i in range(150)], "max_tokens": 1, "temperature": 0}
        first = client.call("generate", **ask, n=8)
        assert first["usage"]["cached_tokens"] == 0
        computed = client.call("status")["tokens"]["prompt"]
        assert computed == 150 + 7 * (150 - 128)
        again = client.call("generate", **ask)
        assert again["usage"] == {**again["usage"], "prompt_tokens": 150, "cached_tokens": 128}
        assert again["tokens"] == first["tokens"]
        metrics = client.call("metrics")["text"]
        assert "tpd:prefix_cache_hits_total " in metrics


def test_a_q8_cache_is_refused_in_words_where_heads_are_too_small(tmp_path):
    run = subprocess.run([BUILD / "tpd", "--model", str(TINY), "--kv-type", "q8", "--socket",
                          tmp_path / "s", "--state-dir", tmp_path / "state"],
                         capture_output=True, text=True, timeout=60)
    assert run.returncode == 78 and "f16 or bf16" in run.stderr
