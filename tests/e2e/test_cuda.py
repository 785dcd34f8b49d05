"""tpd on GPUs, as simulated by tests/cusim: the whole daemon with the same .cu sources, in a tpd-cuda.so that
`make test-cusim` builds and then runs this with. Slow devices: prompts and answers are short. `make gpu-test` runs
the first test on a real one."""
import json
import os
import shutil
import subprocess

import pytest

from daemon import BUILD, ROOT, TINY, RpcError

DEVICES = os.environ.get("TPD_TEST_CUDA")  # "simulated" or "real"
LIBRARY = BUILD / ("tpd-cuda.so" if DEVICES == "real" else "cusim/tpd-cuda.so")
ALDER = ROOT / "etc/models/alder"
SMALL = ("--ctx", "128", "--slots", "2", "--step-tokens", "16")

pytestmark = pytest.mark.skipif(not DEVICES, reason="`make test-cusim` runs these")
simulated = pytest.mark.skipif(DEVICES == "real", reason="two devices are simulated only")


def gpus(**more):
    return {"TPD_CUDA_LIBRARY": str(LIBRARY), **more}


def tpctl(tpd, *words):
    run = subprocess.run([BUILD / "tpctl", "--socket", tpd.socket, *words], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


def say(client, max_tokens, prompt="Once"):
    return client.call("generate", prompt=prompt, max_tokens=max_tokens, temperature=0)["text"]


def refused(start, *flags, code=78, **options):
    """Why tpd ended, which it did with this code."""
    tpd = start(*SMALL, *flags, wait=False, **options)
    assert tpd.wait() == code, tpd.log()
    return tpd.log()


@simulated
def test_a_model_that_is_over_its_part_of_the_memory_is_refused_with_figures(start):
    log = refused(start, "--device", "cuda:0", "--memory-fraction", "0.00001", code=75, model=ALDER,
                  env=gpus())
    assert "MiB" in log and "memory_fraction" in log, log


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory):
    from daemon import Daemon
    daemon = Daemon(tmp_path_factory.mktemp("cpu"), ALDER, *SMALL, "--device", "cpu")
    with daemon.client() as client:
        text = say(client, 5)
    assert daemon.stop() == 0
    return text


@pytest.mark.parametrize("device, link", [("cuda:0,0", "same device"),
                                          pytest.param("cuda:0,1", "nvlink", marks=simulated)])
def test_the_bundled_model_says_what_it_says_on_the_cpu(start, on_cpu, device, link):
    tpd = start(*SMALL, "--device", device, model=ALDER, env=gpus(TPD_CUDA_SAME_BITS="1"))
    with tpd.client() as client:
        assert say(client, 5) == on_cpu
        status = client.call("status")
    assert status["tp"] == 2 and status["cpu"] is None
    assert status["links"] == [["self", link], [link, "self"]]
    for rank, entry in enumerate(status["devices"]):
        assert entry["rank"] == rank and "lost" not in entry
        assert entry["name"].startswith(f"cuda:{device[5 + 2 * rank]} (")
        assert 0 < entry["memory"]["used"] < entry["memory"]["total"]
    assert tpd.stop() == 0


# Ways to choose tokens: from candidates that the devices find, by a race of the whole vocabulary (temperature alone)
# too, from whole rows (such a race with the best tokens' log-probabilities, a bias that lifts, a grammar), and from whole rows that candidates turn out not to be enough for (a nucleus of most of the vocabulary).
WAYS = [{"temperature": 0, "logprobs": 5}, {"temperature": 0.8, "top_k": 20, "seed": 3, "logprobs": 0},
        {"top_p": 0.8, "seed": 4}, {"temperature": 3.0, "top_p": 0.99, "seed": 5},
        {"min_p": 0.1, "seed": 6, "logprobs": 20}, {"seed": 7, "logprobs": 2},
        {"seed": 8, "logprobs": 0, "presence_penalty": 1.5},
        {"temperature": 0, "repetition_penalty": 1.3, "logit_bias": {"300": -2}},
        {"temperature": 0, "logit_bias": {"300": 20}}, {"temperature": 0, "json_schema": {"type": "object"}}]


def answers(daemon):
    """What comes of each way, alone and then of all at once."""
    with daemon.client() as client:
        def send(way):
            return client.send("generate", {"prompt": "Once", "max_tokens": 3, "ignore_eos": True, **way})
        alone = [client.result(send(way)) for way in WAYS]
        together = [client.result(number) for number in [send(way) for way in WAYS]]
    return alone, together


def same_logprobs(got, want):
    for a, b in zip(got or [], want or [], strict=True):
        assert (a["id"], len(a["top"])) == (b["id"], len(b["top"]))
        assert a["logprob"] == pytest.approx(b["logprob"], abs=2e-3)
        assert [t["logprob"] for t in a["top"]] == pytest.approx([t["logprob"] for t in b["top"]], abs=2e-3)


@simulated
def test_whichever_way_tokens_are_chosen_they_are_the_cpus(start):
    sizes = ("--ctx", "128", "--slots", str(len(WAYS)), "--step-tokens", "16")
    tpd = start(*sizes, "--device", "cpu", "--activations", "f32", model=ALDER)
    want, _ = answers(tpd)
    tpd = start(*sizes, "--device", "cuda:0,1", model=ALDER, env=gpus(TPD_CUDA_SAME_BITS="1"))
    for got in answers(tpd):
        for way, a, b in zip(WAYS, got, want, strict=True):
            assert (a["text"], a["tokens"]) == (b["text"], b["tokens"]), way
            same_logprobs(a.get("logprobs"), b.get("logprobs"))
    assert tpd.stop() == 0


@simulated
@pytest.mark.parametrize("devices, draft_tp", [("cuda:0", 1), ("cuda:0,1,2", 2), ("cuda:0,1", 2)])
def test_a_draft_model_changes_no_greedy_text(start, tmp_path, devices, draft_tp):
    other = tmp_path / "other"
    shutil.copytree(ALDER, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "rope_theta": 14000.0}))
    tpd = start(*SMALL, "--device", devices, "--draft", other, "--draft-tp", str(draft_tp), model=ALDER,
                env=gpus(TPD_CUDA_SAME_BITS="1"))
    drafted = accepted = 0
    with tpd.client() as client:
        for kind in ({"temperature": 0}, {"temperature": 0, "repetition_penalty": 1.2, "logprobs": 1}):
            said = [client.call("generate", prompt="Once upon a time", max_tokens=8, ignore_eos=True, speculative=how,
                                **kind) for how in ("off", "draft")]
            assert said[1]["tokens"] == said[0]["tokens"] and said[1].get("logprobs") == said[0].get("logprobs")
            drafted += said[1]["timings"]["draft_tokens"]
            accepted += said[1]["timings"]["accepted_tokens"]
        seeded = {"prompt": "Once", "max_tokens": 6, "ignore_eos": True, "seed": 2, "speculative": "draft",
                  "temperature": 0.9, "top_k": 40}
        assert client.call("generate", **seeded)["tokens"] == client.call("generate", **seeded)["tokens"]
    assert drafted > 0 and accepted > 0
    assert tpd.stop() == 0


def test_a_cache_in_q8_is_the_cpus(start):
    texts = []
    for device in ("cpu", "cuda"):
        tpd = start(*SMALL, "--device", device, "--kv-type", "q8", model=ALDER, env=gpus())
        with tpd.client() as client:
            texts.append(say(client, 4))
        assert tpd.stop() == 0
    assert texts[1] == texts[0]


def test_devices_and_how_they_are_connected_are_shown(start):
    tpd = start(*SMALL, "--device", "cuda", "--tp", "3", env=gpus(CUSIM_LINKS="pcie"))
    shown = tpctl(tpd, "devices")
    assert "cuda:2 (simulated device)" in shown
    assert ["rank", "1", "pcie", "-", "pcie"] in [line.split() for line in shown.splitlines()]
    assert "links" in tpctl(tpd, "status")


def test_without_peer_access_it_goes_through_host_memory_and_says_so(start):
    tpd = start(*SMALL, "--device", "cuda:0,1", env=gpus(CUSIM_LINKS="none"))
    with tpd.client() as client:
        assert client.call("status")["links"][0][1] == "none"
        assert client.call("generate", prompt="a", max_tokens=2, temperature=0)["usage"]["completion_tokens"]
    assert "through pinned host memory, which is slower: cuda:0 (simulated device) has no peer access" in tpd.log()


def test_what_was_measured_is_kept(start, tmp_path):
    kept = []
    for _ in range(2):
        tpd = start(*SMALL, "--device", "cuda:0,1", "--state-dir", tmp_path / "state", env=gpus())
        assert tpd.stop() == 0
        kept.append((tmp_path / "state/all-reduce.tuning").read_text())
    assert kept[0].startswith("library=") and "ranks=2 way=peer devices=cuda:0 (simulated" in kept[0]
    assert kept[1] == kept[0] and kept[0].count("\n") == 1


def test_auto_takes_gpus_when_there_are_enough(start):
    tpd = start(*SMALL, env=gpus())
    assert "tp 1 on cuda:0" in tpd.log()
    tpd = start(*SMALL, "--tp", "2", env=gpus(CUSIM_DEVICES="1"))
    assert "device auto takes the CPU: tp is 2, but there is 1 CUDA device" in tpd.log()
    with tpd.client() as client:
        assert client.call("status")["links"] == [["self", "memory"], ["memory", "self"]]


def test_what_is_missing_is_named(start):
    nowhere = {"TPD_CUDA_LIBRARY": "/nowhere/tpd-cuda.so"}
    assert "there is no tpd-cuda.so (looked for /nowhere/tpd-cuda.so): build it with `make CUDA=1`" in \
        refused(start, "--device", "cuda", env=nowhere, code=70)
    assert "there is no CUDA device in this machine" in \
        refused(start, "--device", "cuda", env=gpus(CUSIM_DEVICES="0"), code=70)
    assert "there is no cuda:7; this machine has 2 CUDA devices" in \
        refused(start, "--device", "cuda:0,7", env=gpus(CUSIM_DEVICES="2"))
    assert "tp is 3, but device cuda:0,1 names 2 devices" in refused(start, "--device", "cuda:0,1", "--tp", "3")


def test_a_lost_device_fails_requests_and_not_the_daemon(start, tmp_path):
    loss = tmp_path / "loss"
    tpd = start(*SMALL, "--device", "cuda:0,1", env=gpus(CUSIM_LOSS=str(loss)))
    with tpd.client() as client:
        assert client.call("generate", prompt="a", max_tokens=1)["usage"]["completion_tokens"] == 1
        running = client.send("generate", {"prompt": "a", "max_tokens": 100, "ignore_eos": True, "stream": True})
        client.message()
        loss.write_text("1")
        for request in (running, client.send("generate", {"prompt": "b", "max_tokens": 1})):
            with pytest.raises(RpcError, match="the device of rank 1 is lost and tpd must be started again") as e:
                client.result(request)
            assert e.value.code == -32010
        devices = client.call("status")["devices"]
        assert "lost" not in devices[0] and "unspecified launch failure" in devices[1]["lost"]
        assert client.call("tokenize", text="still here")["tokens"]
        assert 'tpd:device_lost{rank="1"} 1' in client.call("metrics")["text"]
    with tpd.client() as client:
        client.raw(b"GET /health HTTP/1.1\r\nHost: tpd\r\nConnection: close\r\n\r\n")
        assert client.line().startswith(b"HTTP/1.1 5")
    assert "is lost and tpd must be started again" in tpctl(tpd, "devices", "--plain")
    assert tpd.process.poll() is None
    assert tpd.stop() == 0


@pytest.mark.parametrize("method, compute, apart", [("lora", "f32", 1e-4), ("full", "f32", 1e-4), ("full", None, 0.02)])
def test_a_job_learns_what_it_learns_on_the_cpu(start, method, compute, apart):
    losses = []
    for device in ("cpu", "cuda"):
        tpd = start(*SMALL, "--device", device, "--tp", "2", env=gpus())
        data = tpd.directory / "state/data"
        data.mkdir(exist_ok=True)
        (data / "sea.jsonl").write_text('{"text": "a ship at sea"}\n' * 8)
        with tpd.client() as client:
            job = client.result(client.send("finetune.submit", {
                "data": "sea.jsonl", "method": method, "max_steps": 2, "lr": 0.01, "batch_size": 2, "seq_len": 32,
                **({"compute": compute} if compute else {})}))
            done = client.call("finetune.watch", job=job["job"])
            assert done["state"] == "done", done
            losses.append(done["loss"])
            if method == "lora":
                client.call("adapter.load", name="tuned", path=done["result"])
                assert client.call("generate", prompt="a", adapter="tuned", max_tokens=2)["usage"]
        assert tpd.stop() == 0
    assert losses[1] == pytest.approx(losses[0], rel=apart)


def test_weights_are_exported_by_handle(start):
    tpd = start(*SMALL, "--device", "cuda:0,1", env=gpus())
    with tpd.client() as client:
        for name in ("model.layers.0.mlp.down_proj.weight", "model.norm.weight"):
            shards = client.call("tensor.export", name=name)["shards"]
            assert [shard["handle"]["device"] for shard in shards] == [0, 1]
            handles = [bytes.fromhex(shard["handle"]["ipc"]) for shard in shards]
            assert [len(handle) for handle in handles] == [64, 64] and handles[0] != handles[1]
            assert all(shard["handle"]["kind"] == "cuda" and shard["layout"]["lanes"] == 1 for shard in shards)
    assert tpd.stop() == 0
