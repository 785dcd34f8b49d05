"""Serving while learning: the time between tokens of a generation with and without a fine-tune job beside
it, and the job's speed with serving idle and busy. Part of `make bench`.

Reads B (build folder), BENCH_MODELS (the first is taken)."""
import json
import pathlib
import statistics
import tempfile
import time

from common import CORES, Daemon, models

TOKENS = 200


def gaps_ms(client):
    """Times between streamed tokens, sorted."""
    times = [time.monotonic() for _ in client.generate(
        [1, 2, 3, 4, 5], max_tokens=TOKENS, temperature=0, ignore_eos=True, stream=True)]
    return sorted((b - a) * 1000 for a, b in zip(times, times[1:]))


def percentile(values, p):
    return values[min(len(values) - 1, int(p / 100 * len(values)))]


def speeds(client, job, seconds):
    """Trained tokens a second of the steps that end within so many seconds."""
    after = client.call("finetune.log", job=job)["events"][-1]["cursor"]
    time.sleep(seconds)
    events = client.call("finetune.log", job=job, after=after)["events"]
    return [e["tokens_per_s"] for e in events if e["event"] == "step"]


def main():
    model = models([("smollm2-135m", "q4_0")])[0]
    with tempfile.TemporaryDirectory() as folder:
        data = pathlib.Path(folder, "data.jsonl")
        line = json.dumps({"input_ids": list(range(3, 259)), "labels": list(range(3, 259))})
        data.write_text((line + "\n") * 64)
        daemon = Daemon(model, "--tp", CORES, "--ctx", 2048, "--data-dir", folder)
        client = daemon.client
        gaps_ms(client)  # warm up
        alone = gaps_ms(client)
        job = client.call("finetune.submit", data="data.jsonl", epochs=1000, batch_size=2, seq_len=256,
                          save_every=0)["job"]
        while client.call("finetune.get", job=job)["step"] < 2:
            time.sleep(0.2)
        idle = speeds(client, job, 10)
        beside = gaps_ms(client)
        step = client.call("finetune.log", job=job)["events"][-1]
        client.call("finetune.cancel", job=job)
        daemon.stop()
    print(f"{model.name}, tp {CORES}: LoRA of every matrix, rows of 512 a step, beside a generation")
    print(f"{'':24} {'median':>8} {'p95':>8} {'max':>8}")
    for name, gaps in (("between tokens, alone", alone), ("with a job beside it", beside)):
        print(f"{name:24} {statistics.median(gaps):7.1f}  {percentile(gaps, 95):7.1f}  "
              f"{gaps[-1]:7.1f}  ms")
    print(f"job: {statistics.median(idle):.0f} tokens/s with serving idle, "
          f"{step.get('tokens_per_s', 0):.0f} with a generation beside it")


if __name__ == "__main__":
    main()
