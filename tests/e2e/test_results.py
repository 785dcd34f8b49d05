"""What jobs leave on disk goes when it is asked for, and never while it is in use."""
import json
import pathlib
import subprocess

import pytest

from daemon import BUILD, RpcError

JOB = {"data": "a.jsonl", "name": "who", "max_steps": 1, "batch_size": 1, "seq_len": 32, "eval_fraction": 0}


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data"
    path.mkdir()
    (path / "a.jsonl").write_text(json.dumps({"text": "a b c d e f"}) + "\n")
    return path


def run_job(client, seed=0, **more):
    """seed: equal weights would be the same result."""
    job = client.call("finetune.submit", **dict(JOB, seed=seed, **more))["job"]
    job = client.call("finetune.watch", job=job)
    assert job["state"] == "done", job
    return job["job"], pathlib.Path(job["result"])


def test_the_newest_results_and_those_in_use_stay(start, data):
    daemon = start("--data-dir", data, "--keep-results", 2)
    with daemon.client() as client:
        first = run_job(client)[1]
        client.call("adapter.load", name="who")
        other = run_job(client, 1, name="other")[1]
        second, third, fourth = (run_job(client, seed)[1] for seed in (2, 3, 4))
        assert len({first, second, third, fourth}) == 4
        assert first.is_dir() and second.is_dir() and third.is_dir()
        fifth = run_job(client, 5)[1]
        there = [path for path in (first, second, third, fourth, fifth, other) if path.is_dir()]
        assert there == [first, third, fourth, fifth, other], "the first is loaded; two were kept of the rest"
        assert str(second) in daemon.log()
        assert client.call("generate", prompt="a", max_tokens=2, adapter="who")["tokens"]


def test_a_job_is_deleted_with_its_result_unless_that_is_in_use(start, data):
    daemon = start("--data-dir", data)
    tpctl = [BUILD / "tpctl", "--socket", daemon.socket, "jobs", "rm"]
    with daemon.client() as client:
        first, result = run_job(client)
        client.call("adapter.load", name="who")
        with pytest.raises(RpcError) as e:
            client.call("finetune.delete", job=first, result=True)
        assert e.value.code == -32009 and "who" in e.value.message and result.is_dir()
        assert client.call("finetune.get", job=first)["state"] == "done", "nothing of it is gone"
        client.call("adapter.unload", name="who")
        again, same = run_job(client)
        assert same == result, "the same weights: the same directory"
        with pytest.raises(RpcError) as e:
            client.call("finetune.delete", job=first, result=True)
        assert e.value.code == -32009 and f"job {again}" in e.value.message and result.is_dir()
        client.call("finetune.delete", job=again)
        subprocess.run([*tpctl, "--result", str(first)], check=True)
        assert not result.exists()
        second, kept = run_job(client)
        subprocess.run([*tpctl, str(second)], check=True)
        assert kept.is_dir()
