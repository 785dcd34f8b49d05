"""The methods of fine-tune jobs over the raw socket: the queue, the log, watching, and what a job may
touch. What a job learns is another matter."""
import json
import os

import pytest

import schema
from daemon import TINY, Daemon, RpcError, eventually

# Long enough to be met while it runs; ended by cancel.
LONG = {"epochs": 100000, "batch_size": 2, "seq_len": 32, "lora": {"r": 2}, "save_every": 0,
        "eval_every": 0}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    lines = [json.dumps({"prompt": "Once upon", "completion": f" a time {i}"}) for i in range(40)]
    (folder / "tickets.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "broken.jsonl").write_text('{"text": "good"}\n{"text": 5}\n')
    (folder / "inner").mkdir()
    return folder


@pytest.fixture(scope="module")
def tpd(tmp_path_factory, data_dir):
    daemon = Daemon(tmp_path_factory.mktemp("tpd"), TINY, "--data-dir", data_dir)
    yield daemon
    assert daemon.process.poll() is None, daemon.log()
    assert daemon.stop() == 0, daemon.log()


def refused(client, method, **params):
    with pytest.raises(RpcError) as caught:
        client.call(method, **params)
    return caught.value


def submit(client, **params):
    job = client.call("finetune.submit", data="tickets.jsonl", **params)
    schema.check("finetune.submit", job)
    return job


def end(client, job):
    """Cancels it and waits until the daemon says so."""
    try:
        client.call("finetune.cancel", job=job)
    except RpcError as error:
        assert error.code == -32009
    return client.call("finetune.watch", job=job)


def test_a_job_is_queued_told_watched_cancelled_and_deleted(client):
    job = submit(client, name="first", **LONG)
    assert job["name"] == "first" and job["existing"] is False
    got = client.call("finetune.get", job=job["job"])
    schema.check("finetune.get", got)
    assert got["spec"]["lora"]["r"] == 2 and os.path.isabs(got["spec"]["data"])
    assert client.call("finetune.get", job="first")["job"] == job["job"]
    listed = client.call("finetune.list")
    schema.check("finetune.list", listed)
    assert job["job"] in [j["job"] for j in listed["jobs"]]
    assert refused(client, "finetune.delete", job=job["job"]).code == -32009
    watch = client.send("finetune.watch", {"job": "first"})
    cancelled = client.call("finetune.cancel", job=job["job"])
    schema.check("finetune.cancel", cancelled)
    assert cancelled["state"] == "cancelled"
    result = client.result(watch)
    schema.check("finetune.watch", result)
    assert result["state"] == "cancelled" and result["ended"] >= result["created"]
    events = [m["params"] for m in client.notifications(watch)]
    cursors = [e["cursor"] for e in events]
    assert cursors == sorted(set(cursors))
    states = [e["state"] for e in events if e["event"] == "state"]
    assert states[0] == "queued" and states[-1] == "cancelled"
    log = client.call("finetune.log", job=job["job"])
    schema.check("finetune.log", log)
    assert [e["cursor"] for e in log["events"]][:len(cursors)] == cursors
    deleted = client.call("finetune.delete", job=job["job"])
    schema.check("finetune.delete", deleted)
    assert refused(client, "finetune.get", job=job["job"]).code == -32003
    assert refused(client, "finetune.get", job="first").code == -32003


def test_the_log_goes_on_from_a_cursor(client):
    job = submit(client, name="log", **LONG)["job"]
    end(client, job)
    whole = client.call("finetune.log", job=job)["events"]
    after, pieces = 0, []
    while True:
        log = client.call("finetune.log", job=job, after=after, limit=1)
        pieces += log["events"]
        after = log["after"]
        if not log["more"]:
            break
    assert pieces[:len(whole)] == whole
    watch = client.send("finetune.watch", {"job": job, "after": whole[0]["cursor"]})
    client.result(watch)
    assert [m["params"]["cursor"] for m in client.notifications(watch)][0] == whole[1]["cursor"]


def test_pause_and_resume(client):
    job = submit(client, **LONG)["job"]
    paused = client.call("finetune.pause", job=job)
    schema.check("finetune.pause", paused)
    assert paused["state"] == "paused"
    assert refused(client, "finetune.pause", job=job).code == -32009
    resumed = client.call("finetune.resume", job=job)
    schema.check("finetune.resume", resumed)
    assert refused(client, "finetune.resume", job=job).code == -32009
    assert end(client, job)["state"] == "cancelled"
    for method in ("pause", "resume", "cancel"):
        error = refused(client, "finetune." + method, job=job)
        assert error.code == -32009 and "cancelled" in error.message


def test_status_tells_the_job_that_runs(client):
    assert client.call("status")["job"] is None
    job = submit(client, **LONG)["job"]
    eventually(lambda: client.call("finetune.get", job=job)["step"] > 2)
    status = client.call("status")
    schema.check("status", status)
    assert status["cpu"] in ("amx", "avx512bf16", "avx512", "avxvnni", "avx2", "portable")
    assert status["job"]["job"] == job and status["tokens_per_s"]["train"] > 0
    end(client, job)
    eventually(lambda: client.call("status")["job"] is None)


def test_a_key_makes_a_second_submit_a_success_that_does_nothing(client):
    job = submit(client, once="nightly", **LONG)
    again = submit(client, once="nightly", name="other", **LONG)
    assert (again["job"], again["existing"]) == (job["job"], True)
    end(client, job["job"])
    new = submit(client, once="nightly", **LONG)
    assert new["job"] != job["job"] and not new["existing"]
    end(client, new["job"])


@pytest.mark.parametrize("params, field", [
    ({}, "data"), ({"data": 5}, "data"), ({"data": "tickets.jsonl", "epoch": 1}, "epoch"),
    ({"data": "tickets.jsonl", "lora": {"r": 0}}, "lora.r"),
    ({"data": "tickets.jsonl", "lr": "fast"}, "lr"), ({"data": "inner"}, "data"),
    ({"data": "tickets.jsonl", "name": "../x"}, "name"),
])
def test_a_wrong_job_is_refused_by_field(client, params, field):
    error = refused(client, "finetune.submit", **params)
    assert (error.code, error.data["field"]) == (-32602, field)


def test_nothing_outside_data_dir_is_read(client, data_dir, tmp_path):
    secret = tmp_path / "secret.jsonl"
    secret.write_text('{"text": "x"}\n')
    link, dir_link = data_dir / "link.jsonl", data_dir / "dirlink"
    link.symlink_to(secret)
    dir_link.symlink_to(tmp_path)
    beside = data_dir.parent / (data_dir.name + "-more")
    beside.mkdir()
    (beside / "x.jsonl").write_text('{"text": "x"}\n')
    for path in (str(secret), "link.jsonl", "dirlink/secret.jsonl", "/etc/passwd", "..", ".",
                 f"../{beside.name}/x.jsonl", str(beside / "x.jsonl"),
                 os.path.relpath("/etc/passwd", data_dir)):
        error = refused(client, "finetune.submit", data=path)
        assert (error.code, error.data["field"]) == (-32007, "data"), path
        error = refused(client, "finetune.submit", data="tickets.jsonl", eval_data=path)
        assert (error.code, error.data["field"]) == (-32007, "eval_data"), path
    assert refused(client, "finetune.submit", data="none.jsonl").code == -32003
    inside = client.call("finetune.submit", data=str(data_dir / "inner/../tickets.jsonl"), **LONG)
    end(client, inside["job"])


def test_nothing_outside_state_dir_is_written(client, tpd, tmp_path):
    state = tpd.directory / "state"
    (state / "link").symlink_to(tmp_path)
    for path in (str(tmp_path / "x"), "../x", "link/x", ".", "jobs/1", "jobs", "data/x", "tpd.db",
                 "tpd.db-wal", "new/../../x", "new/../jobs/x", "/"):
        error = refused(client, "finetune.submit", data="tickets.jsonl", out=path)
        assert error.code == -32007, path
    job = submit(client, out="adapters/a/b", **LONG)
    spec = client.call("finetune.get", job=job["job"])["spec"]
    assert spec["out"] == os.path.realpath(state / "adapters/a/b")
    end(client, job["job"])
    assert not os.listdir(tmp_path)


def test_broken_data_fails_the_job_with_its_line_and_serving_goes_on(client):
    job = client.call("finetune.submit", data="broken.jsonl")
    result = client.call("finetune.watch", job=job["job"])
    assert result["state"] == "failed" and "2" in result["error"], result
    assert client.call("generate", prompt="Once", max_tokens=2)["finish_reason"] == "length"


def test_a_watch_that_is_cancelled_leaves_the_job_alone(client):
    job = submit(client, **LONG)["job"]
    watch = client.send("finetune.watch", {"job": job})
    assert client.call("cancel", id=watch)["cancelled"] is True
    assert client.result(watch)["state"] in ("queued", "running")
    assert client.call("finetune.get", job=job)["state"] in ("queued", "running")
    end(client, job)


def test_a_watcher_that_leaves_harms_nobody(tpd, client):
    job = submit(client, **LONG)["job"]
    for _ in range(10):
        with tpd.client() as other:
            other.send("finetune.watch", {"job": job})
    assert end(client, job)["state"] == "cancelled"


@pytest.mark.parametrize("job", [0, -1, 10**18, "no such job", ""])
def test_a_job_that_is_not_there(client, job):
    for method in ("get", "log", "watch", "cancel", "pause", "resume", "delete"):
        assert refused(client, "finetune." + method, job=job).code == -32003


def test_jobs_outlive_the_daemon(start, data_dir):
    daemon = start("--data-dir", data_dir)
    with daemon.client() as client:
        job = submit(client, name="long", **LONG)["job"]
        held = submit(client, name="held", **LONG)["job"]
        client.call("finetune.pause", job=held)
        watch = client.send("finetune.watch", {"job": job})
        daemon.signal()
        answer = client.wait(watch)  # the drain does not wait for a job
        assert answer["error"]["code"] == -32008
    assert daemon.wait() == 0, daemon.log()
    again = Daemon(daemon.directory, TINY, "--data-dir", data_dir)
    try:
        with again.client() as client:
            states = {j["job"]: j["state"] for j in client.call("finetune.list")["jobs"]}
            assert states[held] == "paused" and states[job] in ("queued", "running")
            assert end(client, job)["state"] == "cancelled"
    finally:
        assert again.stop() == 0


def test_a_job_goes_on_after_kill_9(start, data_dir):
    daemon = start("--data-dir", data_dir)
    with daemon.client() as client:
        job = submit(client, **{**LONG, "save_every": 5})["job"]
        eventually(lambda: client.call("finetune.get", job=job)["step"] > 20)
    daemon.process.kill()
    daemon.wait()
    again = Daemon(daemon.directory, TINY, "--data-dir", data_dir)
    try:
        with again.client() as client:
            def events():
                return client.call("finetune.log", job=job, limit=10000)["events"]
            eventually(lambda: any(e["event"] == "resume" for e in events()))
            step = next(e["step"] for e in events() if e["event"] == "resume")
            assert step >= 5 and step % 5 == 0
            eventually(lambda: client.call("finetune.get", job=job)["step"] > step)
            end(client, job)
    finally:
        assert again.stop() == 0, again.log()


def test_a_database_that_is_none_stops_the_start_with_a_word(start, tmp_path):
    state = tmp_path / "tpd0" / "state"
    state.mkdir(mode=0o700, parents=True)
    (state / "tpd.db").write_bytes(b"x" * 8192)
    daemon = start(wait=False)
    assert daemon.wait() == 65
    assert "tpd.db" in daemon.log() and "move it away" in daemon.log()
    (state / "tpd.db").unlink()


def test_admins_alone_change_jobs(start, data_dir):
    nobody = 65533
    daemon = start("--data-dir", data_dir, "--admin-uid", nobody)
    with daemon.client() as client:
        assert refused(client, "finetune.submit", data="tickets.jsonl").code == -32007
        for method in ("cancel", "pause", "resume", "delete", "log"):
            assert refused(client, "finetune." + method, job=1).code == -32007
        assert client.call("finetune.list") == {"jobs": []}
        for method in ("get", "watch"):
            assert refused(client, "finetune." + method, job=1).code == -32003


@pytest.mark.parametrize("more, field", [
    ({"method": "full", "activate": {}}, "activate"),
    ({"activate": {"when": "eval_improves"}, "eval_fraction": 0}, "eval_fraction"),
    ({"activate": {"as": "base"}}, "activate.as"),
    ({"activate": {}, "name": "base"}, "name"), ({"activate": {}, "name": "default"}, "name"),
    ({"result": "best"}, "result"), ({"result": "first"}, "result"), ({"priority": "high"}, "priority"),
])
def test_an_activation_that_cannot_be_is_refused_at_submit(client, more, field):
    with pytest.raises(RpcError) as caught:
        client.result(client.send("finetune.submit", {"data": "tickets.jsonl", **more}))
    error = caught.value
    assert (error.code, error.data["field"]) == (-32602, field), error
