"""A job under bad luck: kill -9 at twenty random moments, a full disk, a data file that changes. The job
ends with an undisturbed run's bits or says why it does not, and serving goes on."""
import json
import os
import random
import signal
import subprocess
import time

import pytest

from daemon import TINY, Daemon, eventually

KILLS = 20
JOB = {"name": "who", "data": "who.jsonl", "epochs": 360, "batch_size": 4, "seq_len": 64, "lr": 0.01,
       "save_every": 3, "eval_every": 7, "eval_fraction": 0.25, "packing": False, "seed": 3,
       "lora": {"r": 4, "dropout": 0.1}, "activate": {"when": "eval_improves"}}


@pytest.fixture
def data_dir(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    lines = [json.dumps({"prompt": f"Who are you, {i}? ", "completion": f"I am daemon {i}."})
             for i in range(16)]
    (folder / "who.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def start(folder, data_dir):
    return Daemon(folder, TINY, "--data-dir", data_dir, "--tp", 2)


def serves(client):
    return client.call("generate", prompt="Once", max_tokens=3, temperature=0)["text"]


def watch(client, job):
    return client.call("finetune.watch", job=job)


def end_of(folder):
    return (folder / "state/adapters/who/adapter_model.safetensors").read_bytes()


def test_kill_9_at_twenty_random_moments_gives_the_bits_of_an_undisturbed_run(tmp_path, data_dir):
    calm = start(tmp_path / "calm", data_dir)
    with calm.client() as client:
        began = time.monotonic()
        want = watch(client, client.call("finetune.submit", **JOB)["job"])
        length = time.monotonic() - began
        assert want["state"] == "done", want
    assert calm.stop() == 0
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    print("seed", seed)
    folder, job, state, kills = tmp_path / "killed", None, None, 0
    while state != "done":
        daemon = start(folder, data_dir)
        with daemon.client() as client:
            job = job or client.call("finetune.submit", **JOB)["job"]
            assert serves(client)
            state = client.call("finetune.get", job=job)["state"]
            assert state != "failed"
            if kills < KILLS and state != "done":
                # often early (reading, going on), sometimes late: twenty must fit into one job
                time.sleep(chance.random() ** 2 * length / 8)
                daemon.signal(signal.SIGKILL)
                daemon.wait()
                kills += 1
                continue
            got = watch(client, job)
            assert got["state"] == "done", got
            state = "done"
            activated = client.call("adapter.list")["default"]
        assert daemon.stop() == 0
    assert kills >= 3, "the job was too short"
    assert end_of(folder) == end_of(tmp_path / "calm"), seed
    for key in ("eval_loss", "eval_loss_before", "activated", "verdict"):
        assert got[key] == want[key], (key, seed)
    assert activated == ("who" if got["activated"] else None)


@pytest.fixture
def small_disk(tmp_path):
    """A state directory's parent on a file system of two megabytes."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=0700", "tmpfs", folder],
                           capture_output=True, text=True)
    if mount.returncode:
        pytest.skip(f"no small file system without root: {mount.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill(folder, leave):
    """All of the file system but about `leave` bytes, while others write there, too."""
    path, step = folder / "ballast", 1 << 18
    with open(path, "wb") as file:
        while step >= 4096:
            space = os.statvfs(folder)
            if space.f_bavail * space.f_frsize <= leave:
                break
            try:
                os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, step)
            except OSError:
                step //= 2
    return path


@pytest.mark.parametrize("leave", [200_000, 0])
def test_a_full_disk_fails_the_job_with_the_reason_and_serving_goes_on(small_disk, data_dir, leave):
    daemon = start(small_disk / "tpd", data_dir)
    with daemon.client() as client:
        long = {**JOB, "epochs": 100000, "activate": None, "lora": {"r": 16}}
        job = client.call("finetune.submit", **long)["job"]
        eventually(lambda: client.call("finetune.get", job=job)["step"] > 3)
        ballast = fill(small_disk, leave)
        eventually(lambda: "No space left" in daemon.log() or "disk is full" in daemon.log())
        assert serves(client)
        ballast.unlink()
        eventually(lambda: client.call("finetune.get", job=job)["state"] == "failed")
        failed = client.call("finetune.get", job=job)
        assert "space" in failed["error"] or "full" in failed["error"], failed
        assert serves(client)
        again = client.call("finetune.submit", **{**JOB, "epochs": 1})["job"]
        assert watch(client, again)["state"] == "done", "the next job does not run"
    assert daemon.stop() == 0, daemon.log()


def test_a_data_file_that_changes_under_a_queued_job_is_taken_as_it_is_then(tmp_path, data_dir):
    daemon = start(tmp_path / "tpd", data_dir)
    with daemon.client() as client:
        first = client.call("finetune.submit", **{**JOB, "epochs": 100000, "activate": None})["job"]
        waits = client.call("finetune.submit", **{**JOB, "epochs": 1})["job"]
        gone = client.call("finetune.submit", **{**JOB, "seq_len": 32})["job"]
        client.call("finetune.pause", job=gone)
        data = data_dir / "who.jsonl"
        data.write_text(data.read_text()[: data.stat().st_size // 2].rsplit("\n", 1)[0] + "\n")
        client.call("finetune.cancel", job=first)
        assert watch(client, waits)["state"] == "done"
        log = client.call("finetune.log", job=waits)["events"]
        assert next(e["examples"] for e in log if e["event"] == "data") < 16
        data.unlink()
        client.call("finetune.resume", job=gone)
        lost = watch(client, gone)
        assert lost["state"] == "failed" and "who.jsonl" in lost["error"], lost
        assert serves(client)
    assert daemon.stop() == 0


def test_cancel_and_pause_end_the_reading_of_a_large_file_at_once(tmp_path, data_dir):
    line = json.dumps({"text": "All work and no play makes a dull day, again and again. " * 20})
    with open(data_dir / "large.jsonl", "w") as file:
        for _ in range(60):
            file.write((line + "\n") * 1000)
    daemon = start(tmp_path / "tpd", data_dir)
    with daemon.client() as client:
        for word, state in (("pause", "paused"), ("cancel", "cancelled")):
            job = client.call("finetune.submit", data="large.jsonl", seq_len=64)["job"]
            eventually(lambda: client.call("finetune.get", job=job)["state"] == "running")
            time.sleep(0.1)
            assert client.call("finetune." + word, job=job)["state"] == state
            short = client.call("finetune.submit", **{**JOB, "epochs": 1})["job"]
            assert watch(client, short)["state"] == "done"
            names = [p.name for p in (tmp_path / "tpd/state/cache").iterdir()]
            assert not any(n.endswith(".part") for n in names), "the reading went on"
        job = client.call("finetune.submit", data="large.jsonl", seq_len=64)["job"]
        eventually(lambda: client.call("finetune.get", job=job)["state"] == "running")
    assert daemon.stop() == 0
    log = daemon.log()
    assert "cannot" not in log.split("READY")[1], log
