"""What --quant keeps on disk under bad luck: killed while it is written, two who make it at once, a full disk, files
that were cut short or have another byte. The text is the same each time, and nothing is left lying about."""
import json
import os
import random
import resource
import struct
import subprocess
import time

import pytest

from daemon import BUILD, TINY, Daemon, eventually
from test_daemon_crash import small_disk  # noqa: F401  (a fixture)
from test_plan import tensor_shapes, VOCAB

KILLS = 8
PROMPT = list(range(100, 108))


def make_model(folder, vocab):
    """Random weights in bf16, none of them large."""
    config = json.loads((TINY / "config.json").read_text())
    config.update(hidden_size=512, intermediate_size=1536, num_hidden_layers=3, head_dim=64, num_attention_heads=8,
                  num_key_value_heads=4, vocab_size=vocab, max_position_embeddings=512, tie_word_embeddings=True,
                  torch_dtype="bfloat16")
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (TINY / name).exists():
            (folder / name).write_bytes((TINY / name).read_bytes())
    chance, header, end = random.Random(5), {}, 0
    for name, shape in tensor_shapes():
        shape = (vocab, 512) if shape == (VOCAB, 512) else shape
        begin, end = end, end + 2 * shape[0] * (shape[1] if len(shape) == 2 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    data = bytearray(end)
    data[0::2] = chance.randbytes(end // 2)
    data[1::2] = chance.randbytes(end // 2).translate(bytes(0x3D if i % 2 else 0xBD for i in range(256)))
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """11 million weights: quantising them takes a while."""
    return make_model(tmp_path_factory.mktemp("weights"), VOCAB)


def start(path, model, *flags, **more):
    (path / "log").unlink(missing_ok=True)
    return Daemon(path, model, "--quant", "q4", "--ctx", 256, "--slots", 2, *flags, **more)


def tokens(daemon):
    with daemon.client() as client:
        return client.call("generate", prompt=PROMPT, max_tokens=12, temperature=0, ignore_eos=True)["tokens"]


def told(path, model, *flags, **more):
    daemon = start(path, model, *flags, **more)
    got = tokens(daemon)
    assert daemon.stop() == 0, daemon.log()
    return got, daemon.log()


def kept(path):
    return sorted(p.name for p in (path / "state/quant").iterdir() if p.name != "lock")


@pytest.fixture(scope="module")
def calm(tmp_path_factory, model):
    """(tokens, name and bytes of what is kept, seconds) of an undisturbed start."""
    path = tmp_path_factory.mktemp("calm") / "tpd"
    began = time.monotonic()
    got, log = told(path, model)
    length = time.monotonic() - began
    [name] = kept(path)
    assert "quantised to" in log
    return got, name, (path / "state/quant" / name).read_bytes(), length


def test_kill_9_at_random_moments_leaves_nothing_that_is_believed(tmp_path, model, calm):
    want, name, whole, length = calm
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    path, found = tmp_path / "tpd", set()
    for _ in range(KILLS):
        daemon = start(path, model, wait=False)
        time.sleep(chance.uniform(0, length))
        daemon.process.kill()
        daemon.wait()
        if (path / "state/quant").exists():
            left = kept(path)
            assert len(left) <= 1, left
            found |= {n.split(".", 1)[1] for n in left}
            if name in left:
                assert (path / "state/quant" / name).read_bytes() == whole
                (path / "state/quant" / name).unlink()
    print("found", found)
    got, log = told(path, model)
    assert got == want and kept(path) == [name] and "quantised to" in log
    assert (path / "state/quant" / name).read_bytes() == whole


def test_two_at_once_make_it_once(tmp_path, model, calm):
    want, name, whole, _ = calm
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o700)
    paths = [tmp_path / "one", tmp_path / "two"]
    for path in paths:
        (path / "state").mkdir(0o700, parents=True)
        path.chmod(0o700)
        (path / "state/quant").symlink_to(shared)
    daemons = [start(path, model, wait=False) for path in paths]
    # The same state directory has room for one, who comes first.
    eventually(lambda: (paths[0] / "state/tpd.db").exists())
    third = start(paths[0], model, "--socket", tmp_path / "s", wait=False)
    assert third.wait() == 75
    for daemon in daemons:
        daemon.wait_ready()
        assert tokens(daemon) == want
    for daemon in daemons:
        assert daemon.stop() == 0
    assert kept(paths[0]) == [name] and (shared / name).read_bytes() == whole
    assert not list(shared.glob("*.part"))


def flipped(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << at % 8
    path.write_bytes(data)


@pytest.mark.parametrize("harm", [
    lambda p, n: flipped(p, 1), lambda p, n: flipped(p, 200), lambda p, n: flipped(p, n // 2),
    lambda p, n: flipped(p, n - 1), lambda p, n: os.truncate(p, n - 1), lambda p, n: os.truncate(p, 0),
    lambda p, n: os.truncate(p, n + 32), lambda p, n: p.rename(p.with_name(p.name.replace("-q4-", "-q4-0", 1)))],
    ids=["magic", "header", "middle", "last", "cut", "empty", "long", "other name"])
def test_a_file_that_is_not_as_it_was_written_is_made_again(tmp_path, model, calm, harm):
    want, name, whole, _ = calm
    folder = tmp_path / "tpd/state/quant"
    folder.mkdir(0o700, parents=True)
    (tmp_path / "tpd").chmod(0o700)
    (tmp_path / "tpd/state").chmod(0o700)
    (folder / name).write_bytes(whole)
    mapped, log = told(tmp_path / "tpd", model)
    assert mapped == want and "mapped from" in log
    harm(folder / name, len(whole))
    got, log = told(tmp_path / "tpd", model)
    assert got == want and "quantised to" in log
    assert ("are made again" in log) == (harm.__code__.co_names[0] != "rename")
    assert kept(tmp_path / "tpd") == [name] and (folder / name).read_bytes() == whole


def test_a_full_disk_keeps_nothing_and_serves(small_disk, model, calm):  # noqa: F811
    got, log = told(small_disk / "tpd", model)
    assert got == calm[0] and "cannot be kept" in log and "are free" in log
    assert kept(small_disk / "tpd") == []


def test_a_disk_that_fails_in_the_middle_keeps_nothing_and_serves(tmp_path, model, calm):
    limit = 3 << 20
    got, log = told(tmp_path / "tpd", model,
                    before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    assert got == calm[0] and "cannot be kept" in log
    assert kept(tmp_path / "tpd") == []
    assert told(tmp_path / "tpd", model)[0] == calm[0] and kept(tmp_path / "tpd") == [calm[1]]


def test_lora_learns_on_it_as_on_the_same_weights_from_a_file(tmp_path, model):
    subprocess.run([BUILD / "tpd", "quantize", model, tmp_path / "q4", "q4"], check=True, capture_output=True)
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.jsonl").write_text(json.dumps({"text": "Once upon a time a small boat left the harbour."}) + "\n")
    results = []
    for path, base, flags in ((tmp_path / "kept", model, ["--quant", "q4"]), (tmp_path / "file", tmp_path / "q4", [])):
        daemon = Daemon(path, base, "--data-dir", data, "--ctx", 256, "--slots", 2, *flags)
        with daemon.client() as client:
            job = client.call("finetune.submit", name="a", data="a.jsonl", max_steps=3, batch_size=1, seq_len=64, lr=0.01,
                              packing=False, lora={"r": 4})["job"]
            ended = client.call("finetune.watch", job=job)
            assert ended["state"] == "done", ended
        assert daemon.stop() == 0
        weights = (path / "state/adapters/a/adapter_model.safetensors").read_bytes()
        results.append((ended["loss"], weights))
    assert results[0] == results[1]


def test_memory_does_not_grow_with_the_model(tmp_path):
    (tmp_path / "large").mkdir()
    model = make_model(tmp_path / "large", 1 << 16)
    assert (model / "model.safetensors").stat().st_size > 64 << 20
    process = subprocess.Popen([BUILD / "tpd", "quantize", model, tmp_path / "out", "q8"], stdout=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        with open(f"/proc/{process.pid}/status") as status:
            peak = max([peak] + [int(line.split()[1]) for line in status if line.startswith("VmHWM:")])
        time.sleep(0.001)
    assert process.returncode == 0
    assert 0 < peak < 48 << 10  # KiB; 15 to 25 MiB where it was measured
