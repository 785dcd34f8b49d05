"""`tpd plan` and the method: what they answer, how they end, and that a process takes what was planned."""
import json
import shutil
import struct
import subprocess

import pytest

import schema
from daemon import BUILD, ROOT, TINY, Daemon, RpcError

LARGE = ROOT / "bench/configs/granite-8b-code-base-128k.json"
DEVICE = ["--memory", "80GiB", "--bandwidth", "2T", "--flops", "312T"]


def plan(*words):
    return subprocess.run([BUILD / "tpd", "plan", *map(str, words)], capture_output=True, text=True,
                          timeout=60)


def report(*words):
    run = plan(*DEVICE, *words, "--json")
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    schema.check("plan", result)
    return result


def test_a_bare_configuration_is_planned_for_each_rank():
    served = report(LARGE, "--tp", 4, "--ctx", 8192)
    assert len(served["ranks"]) == 4 and served["train"] is None and served["fits"]
    for rank in served["ranks"]:
        kinds = [v for k, v in rank.items() if k not in ("rank", "total")]
        assert sum(kinds) == rank["total"]
        assert abs(rank["weights"] - served["bytes"] / 4) < 0.01 * served["bytes"]
    trained = report(LARGE, "--tp", 4, "--ctx", 8192, "--train", "full")
    assert [s["step"] for s in trained["steps"]] == ["prefill", "decode", "train"]
    assert trained["ranks"][0]["optimizer"] > 8 * trained["bytes"] / 2 / 4
    again = report(LARGE, "--tp", 4, "--ctx", 8192, "--train", "full", "--grad-checkpointing")
    assert again["ranks"][0]["activations"] < trained["ranks"][0]["activations"] / 2
    assert again["steps"][2]["flops"] > 1.2 * trained["steps"][2]["flops"]


def test_the_decode_of_a_long_context_is_bound_by_memory_and_training_by_arithmetic():
    steps = {s["step"]: s for s in report(LARGE, "--ctx", 65536, "--train", "lora", "--set",
                                          "seq_len=4096")["steps"]}
    assert steps["decode"]["bound"] == "memory" and steps["train"]["bound"] == "compute"
    expected = max(steps["train"]["bytes"] / 2e12, steps["train"]["flops"] / 312e12) * 1e3
    assert abs(steps["train"]["expected_ms"] - expected) < 1e-6 * expected


def test_auto_computes_as_few_layers_again_as_fit():
    words = [LARGE, "--tp", 4, "--ctx", 16384, "--train", "lora", "--grad-checkpointing=auto"]
    plenty, tight, none = [report(*words, "--memory", m) for m in ("80GiB", "30GiB", "8GiB")]
    assert plenty["train"]["checkpointed_layers"] == 0 and plenty["fits"]
    assert 0 < tight["train"]["checkpointed_layers"] < 35 and tight["fits"]
    assert none["train"]["checkpointed_layers"] == 35 and not none["fits"]


def test_check_tells_by_its_exit_code_and_the_table_says_it():
    small = ["--memory", "1GiB", *DEVICE[2:]]
    fits, short = plan(LARGE, "--tp", 4, *DEVICE, "--check"), plan(LARGE, *small, "--check")
    assert fits.returncode == 0 and "\nfits: " in fits.stdout and fits.stderr == ""
    assert short.returncode == 1 and "\ndoes not fit: " in short.stdout
    assert plan(LARGE, *small).returncode == 0
    rows = dict(line.split("\t") for line in plan(LARGE, *DEVICE, "--plain").stdout.splitlines())
    assert rows["fits"] == "true" and rows["ranks.0.kv"].isdigit()


def test_speed_is_measured_where_it_is_not_given():
    result = json.loads(plan(TINY, "--json").stdout)
    schema.check("plan", result)
    assert result["bandwidth"] > 0 and result["flops_per_s"] > 0
    assert all(s["expected_ms"] > 0 for s in result["steps"])


@pytest.mark.parametrize("words, code, said", [
    ([], 64, "no PATH"),
    ([LARGE, "--pt", 4], 64, "--pt"),
    ([LARGE, "--tp", "x"], 64, "whole number"),
    ([LARGE, "--tp", 65], 64, "tp must be"),
    ([LARGE, "--tp", 33], 78, "32 query heads"),
    ([LARGE, "--ctx", 999999], 78, "128000"),
    ([LARGE, "--memory", "lots"], 64, "80GiB"),
    ([LARGE, "--train", "both"], 64, "lora|full"),
    ([LARGE, "--train", "lora", "--set", "lora.q=1"], 64, "q is not something"),
    ([LARGE, "--dtype", "q9"], 64, "dtype"),
    ([LARGE, "--flops", "1T"], 64, "both or neither"),
    ([TINY, "--train", "full", "--set", "seq_len=16000000"], 64, "seq_len"),
    (["absent"], 66, "absent"),
    ([ROOT / "README.md"], 65, "README.md"),
    ([ROOT / "docs/schema/plan.json"], 65, "plan.json"),
    ([ROOT / "docs"], 65, "config.json"),
])
def test_what_is_wrong_is_one_line_and_an_exit_code(words, code, said):
    run = plan(*words)
    assert run.returncode == code, run.stderr
    assert said in run.stderr and run.stderr.count("\n") == 1 and run.stdout == ""


def test_the_method_plans_the_loaded_model_and_others(client):
    mine = client.call("plan")
    schema.check("plan", mine)
    held = client.call("model.info")["ranks"]
    one_slot = [{k: r[k] for k in ("weights", "activations")} for r in mine["ranks"]]
    assert one_slot == [{k: r[k] for k in ("weights", "activations")} for r in held]
    other = client.call("plan", path=str(LARGE), tp=4, ctx=8192, train="lora",
                        job={"lora": {"r": 8}}, grad_checkpointing="auto", memory=80 << 30,
                        bandwidth=2e12, flops=312e12)
    schema.check("plan", other)
    assert other["train"]["r"] == 8 and other["fits"]
    config = json.loads(LARGE.read_text())
    del config["torch_dtype"]
    bare = client.call("plan", config=config, tp=4, ctx=8192)
    schema.check("plan", bare)
    assert bare["dtype_assumed"] and bare["dtype"] == "bf16"
    for params, code in [({"path": "/absent"}, -32003), ({"config": {}}, -32006),
                         ({"ctx": 1 << 24, "batch": 4096}, -32602), ({"job": {"x": 1}}, -32602),
                         ({"grad_checkpointing": 1, "train": "lora"}, -32602)]:
        with pytest.raises(RpcError) as caught:
            client.call("plan", **params)
        assert caught.value.code == code, params


def test_tpctl_and_python_ask_the_daemon(tpd):
    def tpctl(*words):
        return subprocess.run([BUILD / "tpctl", "--socket", tpd.socket, "plan", *map(str, words)],
                              capture_output=True, text=True, timeout=60)

    table = tpctl(LARGE, "--tp", 4, "--ctx", 8192, "--train", "full", "--grad-checkpointing", *DEVICE)
    assert table.returncode == 0 and "optimizer" in table.stdout and "15.0 GiB" in table.stdout
    assert tpctl("--memory", "1K", "--check").returncode == 1
    assert tpctl("--memory", "1X").returncode == 64
    run = subprocess.run([BUILD / "tpctl", "--socket", tpd.socket, "--json", "plan", "--batch", "3"],
                         capture_output=True, text=True, timeout=60)
    schema.check("plan", json.loads(run.stdout))


# --- the whole process ------------------------------------------------------------------------------

SHAPES = {"q_proj": (512, 512), "k_proj": (256, 512), "v_proj": (256, 512), "o_proj": (512, 512),
          "gate_proj": (1536, 512), "up_proj": (1536, 512), "down_proj": (512, 1536)}
LAYERS, VOCAB, CTX = 3, 4096, 512


def tensor_shapes():
    yield "model.embed_tokens.weight", (VOCAB, 512)
    yield "model.norm.weight", (512,)
    for i in range(LAYERS):
        for name, shape in SHAPES.items():
            block = "self_attn" if name[0] in "qkvo" else "mlp"
            yield f"model.layers.{i}.{block}.{name}.weight", shape
        yield f"model.layers.{i}.input_layernorm.weight", (512,)
        yield f"model.layers.{i}.post_attention_layernorm.weight", (512,)


@pytest.fixture(scope="module")
def middling(tmp_path_factory):
    """A model of 11 million parameters, all zero: large enough for 5 % of it to be seen."""
    folder = tmp_path_factory.mktemp("middling")
    config = json.loads((TINY / "config.json").read_text())
    config.update(hidden_size=512, intermediate_size=1536, num_hidden_layers=LAYERS, head_dim=64,
                  num_attention_heads=8, num_key_value_heads=4, vocab_size=VOCAB,
                  max_position_embeddings=CTX, tie_word_embeddings=True, torch_dtype="bfloat16")
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (TINY / name).exists():
            shutil.copy(TINY / name, folder / name)
    header, end = {}, 0
    for name, shape in tensor_shapes():
        begin, end = end, end + 2 * shape[0] * (shape[1] if len(shape) == 2 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with open(folder / "model.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(head)) + head)
        out.truncate(8 + len(head) + end)
    return folder


def peak_of(daemon):
    for line in open(f"/proc/{daemon.process.pid}/status"):
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


def peak_after(folder, model, tp, ctx, job):
    """Bytes that a daemon held at most, which has used all its context, and trained."""
    (folder / "data").mkdir(parents=True)
    record = json.dumps({"text": "Once upon a time a small boat left the harbour. " * 60})
    (folder / "data/boat.jsonl").write_text((record + "\n") * 8)
    daemon = Daemon(folder / "tpd", model, "--tp", tp, "--ctx", ctx, "--slots", 1, "--data-dir",
                    folder / "data")
    with daemon.client() as client:
        client.call("score", prompt=[1], completion=[1] * (ctx - 2))  # the most logits
        client.call("generate", prompt=[2] * (ctx - 2), max_tokens=1)  # the most rows
        if job:
            client.send("finetune.submit", dict(job, data="boat.jsonl", max_steps=2, batch_size=1,
                                                seq_len=ctx, save_every=0), id="job")
            ended = client.call("finetune.watch", job=client.result("job")["job"])
            assert ended["state"] == "done", ended
    peak = peak_of(daemon)
    assert daemon.stop() == 0
    return peak


def planned(model, tp, ctx, job):
    words = [model, "--tp", tp, "--ctx", ctx]
    for key, value in (job or {}).items():
        words += ["--set", f"{key}={json.dumps(value)}"]
    result = report(*words)
    return sum(rank["total"] for rank in result["ranks"]) + result["host_bytes"]


@pytest.mark.parametrize("tp, job", [
    (1, None),
    (1, {"method": "full"}),
    (2, {"method": "full", "grad_checkpointing": True}),
    (1, {"method": "lora", "grad_checkpointing": True}),
    (2, {"method": "lora", "lora": {"r": 8}}),
])
def test_a_process_takes_what_was_planned(tmp_path, middling, tp, job):
    tiny = peak_after(tmp_path / "tiny", TINY, tp, 256, job) - planned(TINY, tp, 256, job)
    expected = tiny + planned(middling, tp, CTX, job)
    measured = peak_after(tmp_path / "middling", middling, tp, CTX, job)
    assert abs(measured - expected) < 0.05 * expected, (measured >> 20, int(expected) >> 20)
