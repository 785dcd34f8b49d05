"""tpctl model merge and tpd merge: a trained adapter becomes part of a model that a daemon serves alone."""
import json
import subprocess

import schema
from daemon import BUILD, TINY, Daemon, RpcError

PROMPT = "Who are you? "
ANSWER = "I am the daemon."
JOB = {"name": "who", "data": "who.jsonl", "epochs": 40, "batch_size": 4, "seq_len": 64, "lr": 0.01,
       "packing": False, "sequence_parallel": True, "lora": {"r": 8, "alpha": 16}}


def ask(client, **params):
    return client.call("generate", prompt=PROMPT, max_tokens=24, temperature=0, **params)["text"]


def refusal(client, **params):
    try:
        client.call("model.merge", **params)
    except RpcError as error:
        return error
    raise AssertionError(f"{params} was not refused")


def tpd_merge(*words):
    return subprocess.run([BUILD / "tpd", "merge", *words], capture_output=True, text=True, timeout=60)


def serve_alone(tmp_path, model):
    daemon = Daemon(tmp_path / "again", model)
    with daemon.client() as client:
        text = ask(client)
    assert daemon.stop() == 0
    return text


def test_a_trained_adapter_becomes_part_of_a_model(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    line = json.dumps({"prompt": PROMPT, "completion": ANSWER})
    (data / "who.jsonl").write_text((line + "\n") * 12)
    state = tmp_path / "tpd"
    daemon = Daemon(state, TINY, "--data-dir", data, "--tp", 2)
    with daemon.client() as client:
        job = client.call("finetune.watch", job=client.call("finetune.submit", **JOB)["job"])
        assert job["state"] == "done" and job["loss"] < 0.1, job
        listing = client.call("adapter.load", name="who")
        result = client.call("model.merge", adapter="who", out="models/who")
        schema.check("model.merge", result)
        assert result["merged"] > 0 and result["files"] == 1 and result["notes"] == []
        run = subprocess.run([BUILD / "tpctl", "--socket", daemon.socket, "model", "merge", "who",
                              "models/two"], capture_output=True, text=True, timeout=60)
        assert run.returncode == 0 and "models/two: " in run.stdout, run

        assert refusal(client, adapter="who", out="models/who").code == -32009, "it is there"
        assert refusal(client, adapter="who", out="../elsewhere").code == -32007, "outside state_dir"
        assert refusal(client, adapter="who", out="jobs/1").code == -32007, "the daemon's own"
        assert refusal(client, adapter="nobody", out="models/x").code == -32003
        assert not (tmp_path / "elsewhere").exists()
        assert ask(client, adapter="who") == ANSWER, "serving went on"
    assert daemon.stop() == 0

    whole = result["path"]
    assert tpd_merge(TINY, listing["path"], tmp_path / "off").returncode == 0
    names = ("config.json", "model.safetensors", "tokenizer.json")
    for name in names:  # with a daemon or without one: the same bytes
        one, two = (tmp_path / "off" / name).read_bytes(), open(f"{whole}/{name}", "rb").read()
        assert one == two, name
    assert serve_alone(tmp_path, whole) == ANSWER


def test_tpd_merge_says_what_is_wrong(tmp_path):
    assert tpd_merge(TINY).returncode == 64
    assert tpd_merge(TINY, tmp_path / "no", tmp_path / "out").returncode == 66
    assert tpd_merge(tmp_path / "no", tmp_path / "no", tmp_path / "out").returncode == 66
    assert tpd_merge("--help").returncode == 0
