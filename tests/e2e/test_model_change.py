"""model.unload and model.load: the daemon stays, its model goes and comes."""
import json
import re
import subprocess
import time

import pytest

import schema
from daemon import BUILD, ROOT, TINY, Daemon, RpcError, eventually

ALDER = ROOT / "etc/models/alder"
ASK = {"prompt": "The cat sat", "max_tokens": 10, "temperature": 0}


def refused(client, method, params=None):
    with pytest.raises(RpcError) as e:
        client.result(client.send(method, params or {}))
    return e.value


def state(client):
    return client.call("status")["state"]


def http_status(daemon, path, body=None):
    command = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "--unix-socket", str(daemon.socket),
               "http://tpd" + path]
    if body:
        command += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
    return int(subprocess.run(command, capture_output=True, text=True).stdout)


def test_what_was_unloaded_is_refused_and_what_is_loaded_is_as_before(start):
    daemon = start("--tp", 2)
    with daemon.client() as client:
        before, info = client.call("generate", **ASK)["tokens"], client.call("model.info")
        assert refused(client, "model.load").code == -32009
        result = client.call("model.unload")
        schema.check("model.unload", result)
        status = client.call("status")
        schema.check("status", status)
        assert status["state"] == "UNLOADED" and status["devices"] == [] and status["model"]["path"] is None
        for method, params in (("generate", ASK), ("model.info", None), ("tokenize", {"text": "a"}),
                               ("adapter.load", {"name": "x"}), ("tensor.list", None), ("plan", None)):
            error = refused(client, method, params)
            assert error.code == -32019 and error.data["kind"] == "no_model", method
            assert "tpctl model load" in error.message
        assert refused(client, "model.unload").code == -32009
        loaded = client.call("model.load")
        schema.check("model.load", loaded)
        assert loaded == client.call("model.info")
        assert state(client) == "READY" and client.call("generate", **ASK)["tokens"] == before
        assert client.call("model.info") == info, "scratch memory comes with the first step"
    assert daemon.stop() == 0


def test_over_http_no_model_is_503(start):
    import shutil
    if not shutil.which("curl"):
        pytest.skip("no curl")
    daemon = start()
    with daemon.client() as client:
        assert http_status(daemon, "/health") == 200
        client.call("model.unload")
        assert http_status(daemon, "/health") == 503
        assert http_status(daemon, "/v1/completions", {"model": "x", "prompt": "a"}) == 503
        assert http_status(daemon, "/v1/models") == 200 and http_status(daemon, "/metrics") == 200


def test_live_requests_end_first_and_are_cancelled_when_time_is_over(start):
    daemon = start()
    with daemon.client() as client, daemon.client() as other:
        short = client.send("generate", dict(ASK, max_tokens=40, ignore_eos=True))
        unload = other.send("model.unload")
        assert client.result(short)["finish_reason"] == "length", "it was let to its end"
        assert other.result(unload) == {"unloaded": True}
        other.call("model.load")
        held = client.send("generate", dict(ASK, max_tokens=-1, ignore_eos=True, stream=True, n=16))
        eventually(lambda: other.call("status")["slots"]["busy"] > 0)
        unload = other.send("model.unload", {"timeout_s": 0})
        assert client.wait(held).get("result", {}).get("finish_reason") in ("cancelled", "length")
        assert other.result(unload) == {"unloaded": True}
        assert refused(client, "generate", ASK).code == -32019


def test_another_model_at_another_split_and_memory_does_not_grow(start):
    daemon = start("--tp", 1)
    with daemon.client() as client:
        sizes = []
        for i in range(6):
            client.call("model.unload")
            sizes.append(daemon.rss())
            model, tp = ((ALDER, 2), (TINY, 1))[i % 2]
            info = client.call("model.load", path=str(model), tp=tp, ctx=128)
            assert info["path"] == str(model) and info["tp"] == tp and info["ctx"] == 128
            assert len(client.call("status")["devices"]) == tp
            assert client.call("generate", **ASK)["tokens"]
        if "san" not in str(BUILD):  # sanitizers keep what is freed for a while
            assert sizes[-1] < sizes[1] + (2 << 20), sizes


def test_a_model_comes_with_a_draft_and_in_fewer_bits(start):
    with start().client() as client:
        before = client.call("model.info")
        for draft, quant in (str(TINY), "q8"), ("", "none"):
            client.call("model.unload")
            info = client.call("model.load", draft=draft, quant=quant)
            assert info["quant"] == quant and bool(info["draft"]) == bool(draft)
            assert (info["bytes"] < before["bytes"]) == (quant == "q8")
            ask = {**ASK, "speculative": "draft"} if draft else ASK
            assert client.call("generate", **ask)["tokens"]
        client.call("model.unload")
        assert client.call("model.load", draft=str(TINY))["draft"]
        client.call("model.unload")
        assert not client.call("model.load", path=str(ALDER))["draft"]


def test_what_was_counted_stays_counted(start):
    daemon = start()
    with daemon.client() as client:
        for i in range(1, 4):
            client.call("generate", **ASK)
            status = client.call("status")
            assert status["requests"]["total"] == i and status["tokens"]["completion"] == 10 * i
            client.call("model.unload")
            gone = client.call("status")
            assert gone["requests"] == status["requests"] and gone["tokens"] == status["tokens"]
            client.call("model.load")
        text = client.call("metrics")["text"]
        assert "\ntpd:generation_tokens_total 30\n" in text


def test_the_log_names_what_is_unloaded_and_times_the_load_alone(start):
    daemon = start()
    with daemon.client() as client:
        time.sleep(1.5)
        client.call("model.unload")
        assert refused(client, "model.load", {"path": "/no/such"}).code == -32003
        eventually(lambda: state(client) == "UNLOADED")
        client.call("model.load")
        uptime_ms = client.call("status")["uptime_s"] * 1000
        screen = subprocess.run([BUILD / "tpctl", "--socket", daemon.socket, "top"], capture_output=True, text=True)
        assert f"{TINY} at tp 1" in screen.stdout
        client.call("model.unload")
        screen = subprocess.run([BUILD / "tpctl", "--socket", daemon.socket, "top"], capture_output=True, text=True)
        assert "UNLOADED" in screen.stdout and ", no model\n" in screen.stdout
    assert daemon.stop() == 0
    log = daemon.log()
    assert log.count(f"unloading {TINY}") == 2, "the load that failed had nothing to unload"
    took = [float(ms) for ms in re.findall(r"READY on .* after (\d+) ms", log)]
    assert len(took) == 2 and took[1] < uptime_ms - 1400


def test_fewer_bits_stay_asked_for_and_a_refusal_says_how_to_stop_that(start, tmp_path):
    made = subprocess.run([BUILD / "tpd", "quantize", ALDER, tmp_path / "made", "q8"], capture_output=True)
    assert made.returncode == 0
    with start("--quant", "q4").client() as client:
        client.call("model.unload")
        assert "quant none" in refused(client, "model.load", {"path": str(tmp_path / "made")}).message
        assert client.call("model.load", path=str(tmp_path / "made"), quant="none")["dtype"] == "q8_0"


def test_a_load_that_fails_says_why_and_the_daemon_stays(start, tmp_path):
    daemon = start()
    with daemon.client() as client, daemon.client() as other:
        client.call("model.unload")
        assert refused(client, "model.load", {"path": str(tmp_path)}).code == -32006
        eventually(lambda: state(client) == "UNLOADED")
        assert refused(client, "model.load", {"path": "/no/such"}).code == -32003
        error = refused(client, "model.load", {"tp": 60})
        assert "tp 60 is not possible" in error.message
        assert state(client) == "UNLOADED"
        assert client.call("model.load", tp=2)["tp"] == 2
        assert client.call("generate", **ASK)["tokens"]
    assert daemon.stop() == 0


def test_requests_wait_while_a_model_loads_and_one_load_is_enough(start):
    daemon = start()
    with daemon.client() as client, daemon.client() as other:
        before = client.call("generate", **ASK)["tokens"]
        client.call("model.unload")
        load = client.send("model.load")
        answers = [other.send("generate", ASK) for _ in range(4)]
        assert [other.result(id)["tokens"] for id in answers] == [before] * 4
        client.result(load)
        client.call("model.unload")
        ids = [client.send("model.load") for _ in range(3)]
        outcomes = ["error" in client.wait(id) for id in ids]
        assert sorted(outcomes) == [False, True, True]


def test_after_a_kill_a_job_goes_on_with_its_model_alone(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.jsonl").write_text((json.dumps({"text": "one two three four five"}) + "\n") * 20)

    def again(model):
        return Daemon(tmp_path / "tpd", model, "--data-dir", data)
    killed = again(TINY)
    with killed.client() as client:
        job = client.call("finetune.submit", data="a.jsonl", max_steps=400, epochs=20, batch_size=1, seq_len=32,
                          eval_fraction=0, save_every=1000)["job"]
        eventually(lambda: client.call("finetune.get", job=job)["step"] >= 3)
    killed.process.kill()
    killed.process.wait()
    other = again(ALDER)
    with other.client() as client:
        assert client.call("finetune.get", job=job)["state"] == "paused", "it was meant for another model"
    assert other.stop() == 0
    same = again(TINY)
    with same.client() as client:
        assert client.call("finetune.get", job=job)["state"] == "paused"
        client.call("finetune.resume", job=job)
        assert client.call("finetune.watch", job=job)["state"] == "done"
    assert same.stop() == 0


def test_a_running_job_is_kept_and_goes_on_with_its_model_alone(start, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.jsonl").write_text((json.dumps({"text": "one two three four five"}) + "\n") * 20)
    daemon = start("--data-dir", data)
    with daemon.client() as client:
        job = client.call("finetune.submit", data="a.jsonl", name="j", max_steps=400, epochs=20, batch_size=1, seq_len=32,
                          eval_fraction=0, save_every=1000)["job"]
        eventually(lambda: client.call("finetune.get", job=job)["step"] >= 3)
        client.call("model.unload")
        kept = client.call("finetune.get", job=job)
        assert kept["state"] == "queued" and kept["step"] >= 3
        client.call("model.load", path=str(ALDER))
        assert client.call("finetune.get", job=job)["state"] == "paused", "it was meant for another model"
        client.call("model.unload")
        client.call("model.load", path=str(TINY))
        client.call("finetune.resume", job=job)
        done = client.call("finetune.watch", job=job)
        assert done["state"] == "done" and done["step"] == 400, done
        client.call("adapter.load", name="j")
        client.call("adapter.activate", name="j")
        taught = client.call("generate", **ASK)["tokens"]
        client.call("model.unload")
        client.call("model.load", path=str(ALDER))
        entry, = client.call("adapter.list")["adapters"]
        assert entry["state"] == "failed", "of another base"
        assert refused(client, "generate", dict(ASK, adapter="j")).code == -32009
        client.call("model.unload")
        client.call("model.load", path=str(TINY))
        assert client.call("generate", **ASK)["tokens"] == taught
    assert daemon.stop() == 0


@pytest.mark.parametrize("how", ["stop", "shutdown", "gone"])
def test_the_end_may_come_at_any_moment_of_a_change(start, how):
    daemon = start()
    with daemon.client() as client, daemon.client() as other:
        for _ in range(3):
            other.send("generate", dict(ASK, max_tokens=200, ignore_eos=True))
        client.send("model.unload")
        client.send("model.load")
        if how == "stop":
            assert daemon.stop() == 0
            return
        if how == "shutdown":
            client.send("shutdown", {"drain": False})
            assert daemon.wait() == 0
            return
        client.close()
        with daemon.client() as third:
            eventually(lambda: state(third) in ("UNLOADED", "READY"))
            if state(third) == "UNLOADED":
                third.call("model.load")
            assert third.call("generate", **ASK)["tokens"]


def test_exported_weights_go_with_the_model(start):
    from test_tensors import shared_names
    daemon = start()
    with daemon.client() as client:
        client.call("tensor.export", name="model.norm.weight")
        assert shared_names(daemon)
        client.call("model.unload")
        assert not shared_names(daemon)
        client.call("model.load")
        client.call("tensor.export", name="model.norm.weight")
        assert shared_names(daemon)


def test_tpctl_unloads_and_loads(start):
    daemon = start()
    tpctl = [str(BUILD / "tpctl"), "--socket", str(daemon.socket)]
    assert "no model is loaded" in subprocess.check_output(tpctl + ["model", "unload", "--timeout", "5s"], text=True)
    ran = subprocess.run(tpctl + ["generate", "a"], capture_output=True, text=True)
    assert ran.returncode == 75 and "tpctl model load" in ran.stderr
    shown = subprocess.check_output(tpctl + ["--json", "model", "load", "etc/models/alder", "--tp", "2"], text=True, cwd=ROOT)
    assert json.loads(shown)["path"] == str(ALDER)
