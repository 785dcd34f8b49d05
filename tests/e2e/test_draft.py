"""A draft model changes when tokens come, never which."""
import json
import shutil
import subprocess

import pytest

import schema
from daemon import BUILD, ROOT, TINY, Daemon, RpcError

ALDER = ROOT / "etc/models/alder"
PROMPTS = ["Once upon a time, Mira the fox", "one two three four one two three four one two three",
           "Who are you?", "The river"]
KINDS = [{"temperature": 0}, {"temperature": 0, "repetition_penalty": 1.3, "penalty_last_n": 8},
         {"temperature": 0, "stop": [" the"]}, {"temperature": 0, "logprobs": 3},
         {"temperature": 0, "logit_bias": {"300": 2.5}}, {"temperature": 0, "json_schema": {"type": "object"}},
         {"temperature": 0.9, "top_k": 40, "seed": 3}, {"temperature": 1, "top_p": 0.9, "seed": 4, "logprobs": 2},
         {"temperature": 0.7, "seed": 5, "stop": [" the"]}]
SEEDED = {"temperature": 0.9, "top_k": 40, "presence_penalty": 0.2}


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """Alder with another rope: a draft model that is often right, and not always."""
    path = tmp_path_factory.mktemp("models") / "other"
    shutil.copytree(ALDER, path)
    config = json.loads((path / "config.json").read_text())
    config["rope_theta"] = 14000.0
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.fixture(scope="module", params=[(1, 1), (2, 1), (2, 2)], ids=lambda p: "tp%d-draft%d" % p)
def daemon(request, other, tmp_path_factory):
    tp, draft_tp = request.param
    daemon = Daemon(tmp_path_factory.mktemp("draft"), ALDER, "--tp", tp, "--slots", 4, "--ctx", 512,
                    "--draft", other, "--draft-tp", draft_tp)
    yield daemon
    assert daemon.stop() == 0, daemon.log()


def ask(client, prompt, **more):
    return client.call("generate", **{"prompt": prompt, "max_tokens": 100, "ignore_eos": True, **more})


def test_tokens_are_those_of_plain_generation(daemon):
    with daemon.client() as client:
        for kind in KINDS:
            drafted = 0
            for prompt in PROMPTS:
                plain = ask(client, prompt, speculative="off", **kind)
                assert plain["timings"]["draft_tokens"] == 0
                for how in ("draft", "auto"):
                    ahead = ask(client, prompt, speculative=how, **kind)
                    for key in ("text", "tokens", "finish_reason", "stop", "logprobs"):
                        assert ahead.get(key) == plain.get(key), (kind, prompt, how, key)
                    timings = ahead["timings"]
                    assert 0 <= timings["accepted_tokens"] <= timings["draft_tokens"]
                    drafted += timings["draft_tokens"]
            assert drafted > 0, kind


def test_much_of_what_is_drafted_comes_true(daemon):
    with daemon.client() as client:
        timings = ask(client, PROMPTS[0], speculative="draft", temperature=0)["timings"]
        assert timings["accepted_tokens"] > timings["draft_tokens"] / 4
        timings = ask(client, PROMPTS[0], speculative="draft", temperature=0.8, seed=1)["timings"]
        assert timings["accepted_tokens"] > timings["draft_tokens"] / 5


def test_seeded_answers_are_the_same_alone_and_in_company(daemon):
    asks = [{"prompt": p, "seed": s, "speculative": how, **SEEDED}
            for p in PROMPTS for s in (1, 2) for how in ("draft", "auto", "ngram")]
    with daemon.client() as client:
        alone = [ask(client, **{**a, "speculative": "off"}) for a in asks]
        ids = [client.send("generate", {"max_tokens": 100, "ignore_eos": True, "stream": i % 2 == 0, **a})
               for i, a in enumerate(asks)]
        for id, one in zip(ids, alone):
            got = client.result(id)
            assert got["tokens"] == one["tokens"]


def test_what_was_read_without_the_draft_model_serves_with_it(daemon):
    with daemon.client() as client:
        prompt = "A warm summer evening in the valley, and the fox is not at home. " * 4
        plain = ask(client, prompt, speculative="off", temperature=0)
        warm = ask(client, prompt, speculative="draft", temperature=0)
        assert warm["usage"]["cached_tokens"] > 0
        assert warm["tokens"] == plain["tokens"] and warm["timings"]["draft_tokens"] > 0


def test_answers_may_reach_the_contexts_end_and_be_cancelled(daemon):
    with daemon.client() as client:
        whole = client.call("generate", prompt="The river", temperature=0, ignore_eos=True)
        assert whole["finish_reason"] == "length"
        assert whole["usage"]["prompt_tokens"] + whole["usage"]["completion_tokens"] == 512
        id = client.send("generate", {"prompt": "The river", "ignore_eos": True, "stream": True})
        client.message()
        client.call("cancel", id=id)
        assert client.result(id)["finish_reason"] == "cancelled"
        assert client.call("status")["kv"]["used"] == 0


def test_an_adapter_stop_strings_and_logprobs_go_with_it(daemon, other, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "who.jsonl").write_text(json.dumps({"prompt": "Who are you? ", "completion": "I am the daemon."}) + "\n")
    job = {"name": "who", "data": "who.jsonl", "max_steps": 4, "batch_size": 1, "seq_len": 64, "lr": 0.02,
           "packing": False, "lora": {"r": 4}}
    learner = Daemon(tmp_path / "tpd", ALDER, "--data-dir", data, "--draft", other, "--ctx", 512)
    with learner.client() as client:
        assert client.call("finetune.watch", job=client.call("finetune.submit", **job)["job"])["state"] == "done"
        client.call("adapter.load", name="who")
        base = ask(client, PROMPTS[0], temperature=0)["tokens"]
        for kind in ({"temperature": 0}, {"temperature": 0, "stop": ["and", " the"], "logprobs": 2},
                     {"temperature": 0.9, "seed": 8, "stop": ["."]}, {"temperature": 0.9, "seed": 9, "logprobs": 1}):
            plain = [ask(client, p, adapter="who", speculative="off", **kind) for p in PROMPTS]
            ids = [client.send("generate", {"prompt": p, "max_tokens": 100, "ignore_eos": True, "adapter": name,
                                            "speculative": how, **kind})
                   for how in ("draft", "auto", "ngram") for p in PROMPTS for name in ("who", None)]
            got = [client.result(id) for id in ids][::2]
            assert sum(a["timings"]["draft_tokens"] for a in got) > 0
            for i, answer in enumerate(got):
                for key in ("text", "tokens", "finish_reason", "stop", "logprobs"):
                    assert answer.get(key) == plain[i % len(PROMPTS)].get(key), (kind, i, key)
            if kind == {"temperature": 0}:
                assert plain[0]["tokens"] != base
    assert learner.stop() == 0, learner.log()


def test_what_is_cancelled_while_it_guesses_leaves_nothing_behind(daemon):
    with daemon.client() as client:
        calm = [ask(client, p, temperature=0, speculative="off")["tokens"] for p in PROMPTS]
        reasons = set()
        for after in range(12):
            ids = [client.send("generate", {"prompt": p, "ignore_eos": True, "stream": True, "temperature": 0,
                                            "speculative": ("draft", "auto")[after % 2]}) for p in PROMPTS]
            for _ in range(after):
                client.message()
            client.call("cancel", id=ids[after % len(ids)])
            ended = client.result(ids[after % len(ids)])
            reasons.add(ended["finish_reason"]) # "length": we were slow to cancel
            mine = calm[after % len(ids)]
            assert ended["tokens"][:len(mine)] == mine[:len(ended["tokens"])]
            for id in ids:
                if id != ids[after % len(ids)]:
                    client.call("cancel", id=id)
                    client.result(id)
        assert {"cancelled"} <= reasons <= {"cancelled", "length"}
        assert client.call("status")["kv"]["used"] == 0
        assert [ask(client, p, temperature=0)["tokens"] for p in PROMPTS] == calm


def test_the_plan_holds_what_the_ranks_hold(daemon, other):
    with daemon.client() as client:
        info = client.call("model.info")
        plan = client.call("plan", batch=4, ctx=512)
        schema.check("plan", plan)
        kinds = ("weights", "kv", "activations")
        assert [[r[k] for k in kinds] for r in plan["ranks"]] == [[r[k] for k in kinds] for r in info["ranks"]]
        assert plan["draft"]["path"] == str(other) and plan["draft"]["bytes"] == info["draft"]["bytes"]
        alone = client.call("plan", batch=4, ctx=512, draft="")
        assert alone["draft"] is None and alone["ranks"][0]["weights"] < plan["ranks"][0]["weights"]
        tp, draft_tp = len(plan["ranks"]), plan["draft"]["tp"]
    run = subprocess.run([BUILD / "tpd", "plan", ALDER, "--tp", str(tp), "--ctx", "512", "--batch", "4", "--draft",
                          other, "--draft-tp", str(draft_tp), "--json"], capture_output=True, text=True)
    assert json.loads(run.stdout)["ranks"] == plan["ranks"]
    words = [BUILD / "tpctl", "--socket", daemon.socket, "--json", "plan", "--batch", "4", "--ctx", "512"]
    run = subprocess.run(words, capture_output=True, text=True)
    assert json.loads(run.stdout)["ranks"] == plan["ranks"]
    run = subprocess.run([*words, ALDER, "--draft", ALDER, "--draft-tp", "9"], capture_output=True, text=True)
    assert run.returncode != 0 and "draft_tp is 9" in run.stderr
    run = subprocess.run([BUILD / "tpd", "plan", ALDER, "--draft", "/nowhere"], capture_output=True, text=True)
    assert run.returncode == 66 and "draft: " in run.stderr


def test_it_is_told_of(daemon, other):
    with daemon.client() as client:
        status = client.call("status")
        schema.check("status", status)
        assert status["model"]["draft"] == str(other)
        top = subprocess.run([BUILD / "tpctl", "--socket", daemon.socket, "top"], capture_output=True, text=True)
        tokens = status["tokens"]
        assert f"{tokens['accepted']} of {tokens['drafted']} came true, draft model {other}" in top.stdout
        info = client.call("model.info")["draft"]
        assert info["shape"]["layers"] == 5 and info["tp"] >= 1
        tokens = client.call("status")["tokens"]
        assert 0 < tokens["accepted"] < tokens["drafted"]
        text = client.call("metrics")["text"]
        assert f"tpd:spec_decode_num_draft_tokens_total {tokens['drafted']}\n" in text
        assert "tpd:draft_seconds_total" in text


def test_without_one_draft_is_refused(tmp_path):
    daemon = Daemon(tmp_path, TINY)
    with daemon.client() as client:
        with pytest.raises(RpcError) as error:
            client.call("generate", prompt="a", speculative="draft")
        assert error.value.code == -32602 and error.value.data["field"] == "speculative"
        assert client.call("model.info")["draft"] is None
    assert daemon.stop() == 0


@pytest.mark.parametrize("flags, code, says", [
    (["--draft", TINY], 78, 'token 0 is "'),
    (["--draft", "/nowhere"], 66, "draft"),
    (["--draft", ALDER, "--draft-tp", 2], 78, "draft_tp is 2"),
])
def test_a_draft_model_that_does_not_fit_is_refused(tmp_path, flags, code, says):
    command = [BUILD / "tpd", "--model", ALDER, "--socket", tmp_path / "s", "--state-dir", tmp_path / "state", *flags]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == code and says in done.stderr, done.stderr
