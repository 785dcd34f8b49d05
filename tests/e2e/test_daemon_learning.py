"""A job from the socket to an answer: it learns, what it leaves is served under its name, becomes the
default and is rolled back; killed at any moment it ends with the same bits; requests go on meanwhile."""
import json
import os
import signal
import subprocess

import pytest

import schema
from daemon import BUILD, TINY, Daemon, RpcError

PROMPT = "Who are you? "
ANSWER = "I am the daemon."
JOB = {"name": "who", "data": "who.jsonl", "epochs": 40, "batch_size": 4, "seq_len": 64, "lr": 0.01,
       "save_every": 5, "packing": False, "lora": {"r": 8, "alpha": 16}}


@pytest.fixture
def data_dir(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    line = json.dumps({"prompt": PROMPT, "completion": ANSWER})
    (folder / "who.jsonl").write_text((line + "\n") * 12)
    return folder


def ask(client, **params):
    return client.call("generate", prompt=PROMPT, max_tokens=24, temperature=0, **params)["text"]


def start(folder, data_dir, tp=2):
    return Daemon(folder, TINY, "--data-dir", data_dir, "--tp", tp)


def run_to_end(daemon):
    with daemon.client() as client:
        job = client.call("finetune.submit", **JOB)["job"]
        return client.call("finetune.watch", job=job)


def test_what_was_learnt_is_served_activated_and_rolled_back(tmp_path, data_dir):
    daemon = start(tmp_path / "tpd", data_dir)
    job = run_to_end(daemon)
    assert job["state"] == "done" and job["loss"] < 0.1, job
    with daemon.client() as client:
        plain = ask(client)
        assert plain != ANSWER
        loaded = client.call("adapter.load", name="who")
        schema.check("adapter.load", loaded)
        assert ask(client, adapter="who") == ANSWER
        assert ask(client) == plain, "loading alone changes no default"
        listing = client.call("adapter.activate", name="who")
        schema.check("adapter.activate", listing)
        assert ask(client) == ANSWER and ask(client, adapter="base") == plain
        with pytest.raises(RpcError) as caught:
            client.call("adapter.unload", name="who")
        assert caught.value.code == -32009
    assert daemon.stop() == 0
    daemon = start(tmp_path / "tpd", data_dir, tp=1)  # the default outlives the daemon, at any tp
    with daemon.client() as client:
        listing = client.call("adapter.list")
        schema.check("adapter.list", listing)
        assert listing["default"] == "who"
        assert ask(client) == ANSWER
        assert client.call("adapter.rollback")["default"] is None
        assert ask(client) == plain
        schema.check("adapter.unload", client.call("adapter.unload", name="who"))
        with pytest.raises(RpcError) as caught:  # now it was the base before, too
            client.call("adapter.rollback")
        assert caught.value.code == -32003 and "nothing to go back to" in str(caught.value)
        with pytest.raises(RpcError) as caught:
            ask(client, adapter="who")
        assert caught.value.code == -32003
    assert daemon.stop() == 0


def test_tpctl_trains_loads_activates_and_rolls_back(tmp_path, data_dir):
    daemon = start(tmp_path / "tpd", data_dir)

    def tpctl(*words):
        run = subprocess.run([BUILD / "tpctl", "--socket", daemon.socket, *words],
                             capture_output=True, text=True, timeout=120)
        assert run.returncode == 0, run.stderr
        return run.stdout

    sets = [f"--set={key}={json.dumps(value)}" for key, value in JOB.items()
            if key not in ("name", "data", "lora")]
    tpctl("finetune", "who.jsonl", "--name", "who", *sets, "--set=lora.r=8", "--set=lora.alpha=16",
          "--wait", "--quiet")
    assert "done" in tpctl("jobs")
    tpctl("adapters", "load", "who")
    assert tpctl("generate", PROMPT, "-t", "0", "-n", "24", "--adapter", "who").strip() == ANSWER
    assert "default: who" in tpctl("adapters", "activate", "who")
    assert tpctl("generate", PROMPT, "-t", "0", "-n", "24").strip() == ANSWER
    assert "default: the base" in tpctl("adapters", "rollback")
    assert daemon.stop() == 0


def test_adapters_that_are_none_are_refused_and_leave_no_trace(tmp_path, data_dir):
    daemon = start(tmp_path / "tpd", data_dir)
    with daemon.client() as client:
        for params, code in [({"name": "a", "path": str(tmp_path)}, -32003),
                             ({"name": "../a"}, -32602), ({"name": "base"}, -32602)]:
            with pytest.raises(RpcError) as caught:
                client.call("adapter.load", **params)
            assert caught.value.code == code, params
        assert client.call("adapter.list")["adapters"] == []
    assert daemon.stop() == 0


def result_bytes(folder):
    return (folder / "state" / "adapters" / "who" / "adapter_model.safetensors").read_bytes()


def test_a_job_killed_at_any_moment_ends_with_the_same_bits(tmp_path, data_dir):
    calm = start(tmp_path / "calm", data_dir)
    assert run_to_end(calm)["state"] == "done"
    assert calm.stop() == 0
    folder = tmp_path / "killed"
    daemon = start(folder, data_dir)
    with daemon.client() as client:
        job = client.call("finetune.submit", **JOB)["job"]
    for step in (3, 17, 40, 77):
        with daemon.client() as client:
            while client.call("finetune.get", job=job)["step"] < step:
                ask(client)  # serving goes on beside it
        os.kill(daemon.process.pid, signal.SIGKILL)
        daemon.process.wait()
        daemon = start(folder, data_dir)
    with daemon.client() as client:
        assert client.call("finetune.watch", job=job)["state"] == "done"
    assert daemon.stop() == 0
    assert result_bytes(folder) == result_bytes(tmp_path / "calm")
