"""A finished job's adapter is judged against what it would replace and put to use, or not; the job is done
and its adapter in use, or neither, whenever the daemon dies; rollback returns to the version before."""
import json
import os
import random
import signal
import time

import pytest

import schema
from daemon import TINY, Daemon, RpcError

PROMPT, ANSWER = "Who are you? ", "I am the daemon."
GOOD = {"name": "who", "data": "who.jsonl", "epochs": 30, "batch_size": 4, "seq_len": 64, "lr": 0.01,
        "packing": False, "lora": {"r": 8}, "eval_fraction": 0.25, "save_every": 5, "eval_every": 10}
USELESS = {**GOOD, "lr": 1e-9, "max_steps": 1, "lora": {"r": 2, "targets": ["q_proj"]}}
IF_BETTER = {"activate": {"when": "eval_improves"}}
ALWAYS = {"activate": {"when": "always"}}


@pytest.fixture
def data_dir(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    line = json.dumps({"prompt": PROMPT, "completion": ANSWER})
    (folder / "who.jsonl").write_text((line + "\n") * 12)
    return folder


@pytest.fixture
def start(tmp_path, data_dir):
    daemons = []

    def start(tp=2):
        daemons.append(Daemon(tmp_path / "tpd", TINY, "--data-dir", data_dir, "--tp", tp))
        return daemons[-1]
    yield start
    for daemon in daemons:
        daemon.stop()


def ask(client, **params):
    return client.call("generate", prompt=PROMPT, max_tokens=24, temperature=0, **params)["text"]


def run(client, job, **more):
    number = client.call("finetune.submit", **{**job, **more})["job"]
    result = client.call("finetune.watch", job=number)
    schema.check("finetune.watch", result)
    assert result["state"] == "done", result
    return result


def listing(client):
    result = client.call("adapter.list")
    schema.check("adapter.list", result)
    return result


def jobs_of_default(client):
    """(job of the default, job of what it was before); None: the base."""
    result = listing(client)
    named = {a["job"]: a for a in result["adapters"]}
    now = next((a["job"] for a in named.values() if a["default"]), None)
    before = [a["job"] for a in named.values() if not a["default"]]
    return now, (before[0] if result["before"] and before else None)


def test_an_adapter_that_is_better_becomes_the_default_and_one_that_is_not_does_not(start):
    daemon = start()
    with daemon.client() as client:
        plain = ask(client)
        first = run(client, GOOD, **IF_BETTER)
        assert first["activated"] is True and first["eval_loss"] < first["eval_loss_before"]
        assert "the base" in first["verdict"]
        assert ask(client) == ANSWER == ask(client, adapter="who") == ask(client, adapter="default")
        assert ask(client, adapter="base") == plain
        assert (listing(client)["default"], listing(client)["before"]) == ("who", None)

        second = run(client, USELESS, **IF_BETTER)
        assert second["activated"] is False and "adapter who" in second["verdict"]
        # judged on the same rows, against the weights that the first job left
        assert second["eval_loss_before"] == pytest.approx(first["eval_loss"], rel=1e-5)
        assert second["eval_loss"] == pytest.approx(first["eval_loss_before"], rel=1e-3)
        assert second["result"] != first["result"], "the adapter in use was overwritten"
        assert ask(client) == ANSWER and jobs_of_default(client) == (first["job"], None)
    assert daemon.stop() == 0
    with start(tp=1).client() as client:
        assert ask(client) == ANSWER, "a restart forgot the default"
        assert client.call("adapter.rollback")["default"] is None
        assert ask(client) == plain


def test_versions_of_a_name_follow_each_other_and_rollback_returns(start):
    daemon = start()
    with daemon.client() as client:
        one = run(client, GOOD, **ALWAYS)
        assert one["activated"] is True and one["eval_loss_before"] is None
        two = run(client, USELESS, **ALWAYS)
        assert jobs_of_default(client) == (two["job"], one["job"])
        assert ask(client) != ANSWER
        client.call("adapter.rollback")
        assert ask(client) == ANSWER == ask(client, adapter="who")
        assert jobs_of_default(client) == (one["job"], two["job"])
    assert daemon.stop() == 0
    daemon = start()
    with daemon.client() as client:
        assert ask(client) == ANSWER and jobs_of_default(client) == (one["job"], two["job"])
        three = run(client, USELESS, **ALWAYS)
        assert jobs_of_default(client) == (three["job"], one["job"]), "what nothing needs stays"
        client.call("adapter.rollback")
        assert ask(client) == ANSWER
        client.call("adapter.activate", name="base")
        client.call("adapter.unload", name="who")
        assert listing(client)["adapters"] == [] or all(
            a["state"] == "unloading" for a in listing(client)["adapters"])


def test_an_adapter_of_another_name_is_replaced_and_the_default_stays(start):
    with start().client() as client:
        plain = ask(client)
        activate = {"activate": {"when": "eval_improves", "as": "support"}}
        first = run(client, GOOD, **activate)
        assert first["activated"] and "the base" in first["verdict"]
        assert ask(client, adapter="support") == ANSWER and ask(client) == plain
        assert not run(client, USELESS, **activate)["activated"]
        run(client, USELESS, activate={"when": "always", "as": "support"})
        assert ask(client, adapter="support") != ANSWER
        client.call("adapter.rollback", name="support")
        assert ask(client, adapter="support") == ANSWER and listing(client)["default"] is None
        with pytest.raises(RpcError) as caught:
            client.call("adapter.rollback", name="who")
        assert caught.value.code == -32003


def test_load_takes_the_newest_result_of_the_name(start):
    with start().client() as client:
        run(client, USELESS)
        second = run(client, GOOD)
        assert client.call("adapter.load", name="who")["path"] == second["result"]
        assert ask(client, adapter="who") == ANSWER


def test_a_job_that_goes_unjudged_says_nothing_of_it(start):
    with start().client() as client:
        job = run(client, USELESS)
        assert (job["activated"], job["verdict"], job["eval_loss_before"]) == (None, None, None)
        log = client.call("finetune.log", job=job["job"])["events"]
        assert not any("verdict" in event for event in log)


def test_data_with_nothing_to_judge_on_fails_before_it_learns(start, data_dir):
    (data_dir / "one.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    with start().client() as client:
        number = client.call("finetune.submit", **{**GOOD, "data": "one.jsonl", **IF_BETTER})["job"]
        job = client.call("finetune.watch", job=number)
        assert job["state"] == "failed" and "eval_data" in job["error"] and job["step"] == 0


def test_a_default_that_cannot_be_loaded_any_more_is_said_not_replaced_by_the_base(start):
    daemon = start()
    with daemon.client() as client:
        job = run(client, GOOD, **ALWAYS)
    assert daemon.stop() == 0
    os.rename(job["result"], job["result"] + ".away")
    daemon = start()
    with daemon.client() as client:
        with pytest.raises(RpcError) as caught:
            ask(client)
        assert caught.value.code == -32009 and job["result"] in caught.value.message
        assert listing(client)["adapters"][0]["state"] == "failed"
        assert ask(client, adapter="base")
    assert daemon.stop() == 0
    os.rename(job["result"] + ".away", job["result"])
    with start().client() as client:
        assert ask(client) == ANSWER


def test_done_and_in_use_or_neither_whenever_the_daemon_dies(start):
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    print("seed", seed)
    short = {**GOOD, "epochs": 4, "save_every": 1, "lora": {"r": 2}, **IF_BETTER}
    daemon = start()
    for _ in range(8):
        with daemon.client() as client:
            before = jobs_of_default(client)[0]
            number = client.call("finetune.submit", **short)["job"]
            while client.call("finetune.get", job=number)["step"] < 11:
                pass
        wait = chance.random() * 0.04
        time.sleep(wait)
        os.kill(daemon.process.pid, signal.SIGKILL)
        daemon.process.wait()
        daemon = start()
        with daemon.client() as client:
            # The job goes on meanwhile: what was read before it counts where it is not done, else what is read after.
            earlier = jobs_of_default(client)[0]
            job = client.call("finetune.get", job=number)
            if job["state"] == "done":
                assert jobs_of_default(client)[0] == (number if job["activated"] else before), wait
            else:
                assert earlier == before, wait
            job = client.call("finetune.watch", job=number)
            assert job["state"] == "done", job
            assert jobs_of_default(client)[0] == (number if job["activated"] else before)
