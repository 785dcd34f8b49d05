"""What went wrong in other people's training, with inputs of our own: accumulation, padding, masks,
schedules and checkpoints. docs/testing.md has the list."""
import json
import math
import shutil
import struct

import pytest

from daemon import TINY, Daemon, RpcError, eventually

BASE = {"name": "case", "data": "data.jsonl", "seq_len": 128, "packing": False, "lr": 0.001,
        "warmup_ratio": 0, "lora": {"r": 4}, "schedule": "constant"}
SHORT = {"prompt": "Hi ", "completion": "you."}
LONG = {"prompt": "Tell me of it: ", "completion": "It is a long and winding tale, that has no end. "
        "Nobody who began it came back to say so."}


class Trainer:
    """A daemon with data of the test's own."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        self.daemon = Daemon(folder / "tpd", TINY, "--data-dir", folder)

    def submit(self, records, **keys):
        (self.folder / "data.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
        with self.daemon.client() as client:
            return client.call("finetune.submit", **{**BASE, **keys})["job"]

    def watch(self, job):
        with self.daemon.client() as client:
            return client.call("finetune.watch", job=job)

    def call(self, method, **params):
        with self.daemon.client() as client:
            return client.call(method, **params)

    def train(self, records, **keys):
        job = self.submit(records, **keys)
        ended = self.watch(job)
        assert ended["state"] == "done", ended["error"]
        return job

    def events(self, job, kind):
        return [e for e in self.call("finetune.log", job=job)["events"] if e["event"] == kind]

    def steps(self, job):
        return self.events(job, "step")

    def result(self, job):
        folder = self.call("finetune.get", job=job)["result"]
        return tensors(f"{folder}/adapter_model.safetensors")

    def checkpoints(self, job):
        folder = self.folder / f"tpd/state/jobs/{job}"
        return sorted(folder.glob("step-*"), key=lambda path: int(path.name[5:]))


def tensors(path):
    """A safetensors file of F32: {name: floats}."""
    data = open(path, "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    found = {}
    for name, about in json.loads(data[8:8 + size]).items():
        if name != "__metadata__":
            begin, end = (8 + size + at for at in about["data_offsets"])
            found[name] = struct.unpack(f"<{(end - begin) // 4}f", data[begin:end])
    return found


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    trainer = Trainer(tmp_path_factory.mktemp("cases") / "tpd")
    yield trainer
    assert trainer.daemon.stop() == 0, trainer.daemon.log()


def assert_same_way(trainer, one, other):
    """Losses, norms and results of two jobs agree to rounding."""
    a, b = trainer.steps(one), trainer.steps(other)
    assert len(a) == len(b) > 0
    for x, y in zip(a, b):
        assert x["loss"] == pytest.approx(y["loss"], rel=1e-4)
        assert x["grad_norm"] == pytest.approx(y["grad_norm"], rel=1e-3)
    x, y = trainer.result(one), trainer.result(other)
    assert x.keys() == y.keys()
    apart = sum((p - q) ** 2 for name in x for p, q in zip(x[name], y[name]))
    size = sum(p * p for name in x for p in x[name])
    assert math.sqrt(apart / size) < 1e-3


# --- a step's rows weigh the same, however they are dealt ------------------------------------------


def test_accumulation_weighs_tokens_and_not_micro_batches(trainer):
    records = [SHORT, LONG] * 3
    together = trainer.train(records, batch_size=2, grad_accum=1)
    apart = trainer.train(records, batch_size=1, grad_accum=2)
    assert_same_way(trainer, together, apart)
    # and not as if both had weighed the same: the mean of means is another number
    alone = [trainer.steps(trainer.train([r], batch_size=1))[0]["loss"] for r in (SHORT, LONG)]
    assert abs(trainer.steps(together)[0]["loss"] - sum(alone) / 2) > 0.01


def test_four_times_the_same_has_the_gradient_of_one(trainer):
    one = trainer.steps(trainer.train([LONG], batch_size=1))[0]
    four = trainer.steps(trainer.train([LONG] * 4, batch_size=1, grad_accum=4))[0]
    assert four["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-4)
    assert four["loss"] == pytest.approx(one["loss"], rel=1e-5)


def test_ten_micro_batches_are_a_batch_of_ten(trainer):
    records = [{"prompt": f"{i}: ", "completion": "x" * (i + 1)} for i in range(10)]
    batch = trainer.train(records, batch_size=10, epochs=3)
    accumulated = trainer.train(records, batch_size=1, grad_accum=10, epochs=3)
    assert_same_way(trainer, batch, accumulated)


def test_no_row_is_padding(trainer):
    """A step over a short and a long record: its loss is the mean over their learnt tokens alone."""
    both = trainer.train([SHORT, LONG], batch_size=2)
    losses, learnt, rows = [], [], 0
    for record in (SHORT, LONG):
        job = trainer.train([record], batch_size=1)
        data = trainer.events(job, "data")[0]
        losses.append(trainer.steps(job)[0]["loss"])
        learnt.append(data["trained_tokens"])
        rows += data["tokens"]
    step = trainer.steps(both)[0]
    mean = sum(loss * n for loss, n in zip(losses, learnt)) / sum(learnt)
    assert step["loss"] == pytest.approx(mean, rel=1e-5)
    assert step["tokens"] == rows == trainer.events(both, "data")[0]["tokens"]


# --- what is learnt --------------------------------------------------------------------------------


def test_prompts_are_not_learnt_unless_asked_for_and_the_log_counts(trainer):
    def counts(**keys):
        data = trainer.events(trainer.train([LONG], **keys), "data")[0]
        return data["tokens"], data["trained_tokens"]
    answer = len(trainer.call("tokenize", text=LONG["completion"], special=False)["tokens"])
    tokens, learnt = counts()
    assert learnt == answer + 1 < tokens  # with the end token
    assert counts(loss_on="all") == (tokens, tokens)


def test_a_record_without_a_learnt_token_is_counted_and_never_a_loss_of_0(trainer):
    hopeless = {"prompt": "no end of words " * 40, "completion": "yes"}
    job = trainer.watch(trainer.submit([hopeless], seq_len=64))
    assert job["state"] == "failed" and job["loss"] is None
    assert "none of its 1 records has a token to learn within seq_len 64" in job["error"]
    job = trainer.train([hopeless, SHORT, hopeless], seq_len=64, epochs=3)
    data = trainer.events(job, "data")[0]
    assert (data["examples"], data["untrained"]) == (1, 2)
    assert all(math.isfinite(e["loss"]) and e["loss"] > 0 for e in trainer.steps(job))
    assert all(math.isfinite(x) for values in trainer.result(job).values() for x in values)


# --- going on --------------------------------------------------------------------------------------


STEPS = {"epochs": 50, "batch_size": 1, "schedule": "linear", "warmup_ratio": 0.1, "save_every": 20,
         "keep": 5}


@pytest.fixture(scope="module")
def calm(trainer):
    """A job of 200 steps that nobody disturbed."""
    return trainer.train([SHORT, LONG, SHORT, LONG], **STEPS)


def paused(trainer, at):
    """The same job, paused somewhere behind step `at`."""
    for _ in range(20):
        job = trainer.submit([SHORT, LONG, SHORT, LONG], **STEPS)
        eventually(lambda: trainer.call("finetune.get", job=job)["step"] >= at)
        try:
            trainer.call("finetune.pause", job=job)
            break
        except RpcError as error:  # it was faster
            assert error.code == -32009
    eventually(lambda: trainer.checkpoints(job) and
               int(trainer.checkpoints(job)[-1].name[5:]) ==
               trainer.call("finetune.get", job=job)["step"])
    assert trainer.call("finetune.get", job=job)["state"] == "paused"
    return job


def test_the_schedule_goes_on_and_no_step_is_done_twice(trainer, calm):
    job = paused(trainer, 60)
    trainer.call("finetune.resume", job=job)
    assert trainer.watch(job)["state"] == "done"
    assert trainer.events(job, "resume")
    for key in ("step", "lr", "loss", "grad_norm"):
        assert [e[key] for e in trainer.steps(job)] == [e[key] for e in trainer.steps(calm)], key
    assert [e["step"] for e in trainer.steps(job)] == list(range(1, 201))
    rates = [e["lr"] for e in trainer.steps(job)]
    assert rates[0] < rates[19] and rates[19:] == sorted(rates[19:], reverse=True)


def test_a_checkpoint_has_moments_of_every_tensor(trainer):
    job = paused(trainer, 20)
    found = tensors(trainer.checkpoints(job)[-1] / "tensors.safetensors")
    names = [name for name in found if not name.endswith((".m", ".v"))]
    assert len(names) * 3 == len(found) > 0
    for name in names:
        assert any(found[name + ".m"]) and any(found[name + ".v"]), name
    trainer.call("finetune.cancel", job=job)


def cut(path):
    path.write_bytes(path.read_bytes()[:path.stat().st_size // 2])


def without_moments(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = data[8:8 + size].replace(b'.m"', b'.x"').replace(b'.v"', b'.y"')
    path.write_bytes(data[:8] + header + data[8 + size:])


@pytest.mark.parametrize("spoil", [
    lambda step: cut(step / "tensors.safetensors"), lambda step: (step / "tensors.safetensors").unlink(),
    lambda step: (step / "position.json").unlink(), lambda step: cut(step / "position.json"),
    lambda step: without_moments(step / "tensors.safetensors")],
    ids=["tensors cut", "no tensors", "no position", "position cut", "no moments"])
def test_a_broken_checkpoint_is_passed_over_for_the_one_before(trainer, calm, spoil):
    job = paused(trainer, 50)
    newest, before = trainer.checkpoints(job)[-1], trainer.checkpoints(job)[-2]
    spoil(newest)
    trainer.call("finetune.resume", job=job)
    assert trainer.watch(job)["state"] == "done"
    assert trainer.events(job, "resume")[-1]["step"] == int(before.name[5:])
    assert "newest checkpoint is not whole" in trainer.events(job, "note")[-1]["note"]
    assert trainer.result(job) == trainer.result(calm)


def test_without_a_whole_checkpoint_the_job_fails_and_says_why(trainer):
    job = paused(trainer, 20)
    for step in trainer.checkpoints(job):
        (step / "tensors.safetensors").unlink()
    trainer.call("finetune.resume", job=job)
    ended = trainer.watch(job)
    assert ended["state"] == "failed" and "no checkpoint of the job is whole" in ended["error"]


def test_a_half_written_checkpoint_is_none(trainer):
    """What a kill leaves while a checkpoint is written has no name that counts."""
    job = paused(trainer, 40)
    newest = trainer.checkpoints(job)[-1]
    shutil.copytree(newest, newest.parent / "writing")
    cut(newest.parent / "writing/tensors.safetensors")
    trainer.call("finetune.resume", job=job)
    assert trainer.watch(job)["state"] == "done"
    assert trainer.events(job, "resume")[-1]["step"] == int(newest.name[5:])
    assert not (newest.parent / "writing").exists()
