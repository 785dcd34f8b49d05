"""Models through the daemon, as a user meets them: decode and prefill speed, time from start to the
first token, peak memory; beside llama-bench when LLAMA_BENCH names one. Medians of RUNS.

Reads B (build folder), BENCH_MODELS (files, separated by spaces), LLAMA_BENCH, BENCH_RUNS."""
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "client/python"))
import tpd  # noqa: E402

BUILD = ROOT / os.environ.get("B", "build")
RUNS = int(os.environ.get("BENCH_RUNS", "5"))
PREFILL, DECODE = 512, 128
CORES = len(os.sched_getaffinity(0))


def default_models():
    folder = BUILD / "bench-models"
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for kind in ("bf16", "q8_0", "q4_0", "q4_k_m"):
        path = folder / f"smollm2-135m-{kind}.gguf"
        if not path.exists():
            subprocess.run([sys.executable, ROOT / "bench/make_model.py", "smollm2-135m", kind,
                            str(path)], check=True)
        paths.append(path)
    return paths


def bandwidth():
    """GB/s that all cores together read from memory, the best over the numbers of streams a core."""
    out = subprocess.run([BUILD / "bench/bench_kernels", "bandwidth"], check=True,
                         capture_output=True, text=True).stdout
    lines = [line for line in out.splitlines() if line.startswith("read bandwidth")]
    return max(float(speed) for speed in re.findall(r"([0-9.]+) GB/s", lines[-1]))


class Daemon:
    def __init__(self, model, tp, *flags):
        self.dir = tempfile.TemporaryDirectory()
        socket = f"{self.dir.name}/s"
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [BUILD / "tpd", "--model", str(model), "--tp", str(tp), "--ctx", "2048",
             "--socket", socket, "--state-dir", f"{self.dir.name}/state", "--log-level", "error", *flags])
        while True:
            try:
                self.client = tpd.Client(socket)
                self.client.ping()
                break
            except Exception:
                if self.process.poll() is not None:
                    sys.exit(f"tpd ended with {self.process.returncode} on {model}")
                time.sleep(0.002)

    def first_token_ms(self):
        """From exec to the first streamed token; the file is in the page cache."""
        for _ in self.client.generate([1, 2, 3, 4, 5], max_tokens=1, temperature=0,
                                      ignore_eos=True, stream=True):
            pass
        return (time.monotonic() - self.started) * 1000

    def memory(self):
        """Peak resident MiB of anonymous memory (weights, KV, buffers) and of all."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines())
        return int(fields["VmHWM"].split()[0]) / 1024

    def speed(self, prompt_tokens, decode_tokens, vocab):
        prompt = [random.randrange(vocab) for _ in range(prompt_tokens)]  # never in the cache
        r = self.client.generate(prompt, max_tokens=decode_tokens, temperature=0, ignore_eos=True)
        t = r["timings"]
        return prompt_tokens / t["prefill_ms"] * 1000, (decode_tokens - 1) / t["decode_ms"] * 1000

    def stop(self):
        self.client.shutdown()
        self.process.wait()
        self.dir.cleanup()


def measure(model, tp):
    firsts, prefills, decodes = [], [], []
    for _ in range(RUNS):
        d = Daemon(model, tp)
        firsts.append(d.first_token_ms())
        d.stop()
    d = Daemon(model, tp)
    vocab = d.client.model_info()["shape"]["vocab"]
    d.speed(32, 8, vocab)  # warm up
    for _ in range(RUNS):
        prefills.append(d.speed(PREFILL, 2, vocab)[0])
        decodes.append(d.speed(8, DECODE, vocab)[1])
    memory = d.memory()
    d.stop()
    return {"first": statistics.median(firsts), "prefill": statistics.median(prefills),
            "decode": statistics.median(decodes), "memory": memory}


def llama_bench(binary, model):
    out = subprocess.run([binary, "-m", str(model), "-t", str(CORES), "-p", str(PREFILL), "-n",
                          str(DECODE), "-r", str(RUNS), "-o", "json"],
                         check=True, capture_output=True, text=True).stdout
    rows = json.loads(out)
    prefill = next(r for r in rows if r["n_prompt"] and not r["n_gen"])
    decode = next(r for r in rows if r["n_gen"] and not r["n_prompt"])
    median = lambda r: statistics.median(r["samples_ts"])
    return median(prefill), median(decode)


def main():
    models = [pathlib.Path(p) for p in os.environ.get("BENCH_MODELS", "").split()]
    peer = os.environ.get("LLAMA_BENCH")
    memory_speed = bandwidth()
    print(f"{CORES} cores; memory reads at {memory_speed:.1f} GB/s; medians of {RUNS}; "
          f"prefill of {PREFILL}, decode of {DECODE} tokens, batch 1")
    head = f"{'model':34} {'tp':>2} {'prefill/s':>9} {'decode/s':>9} {'of memory':>9} " \
           f"{'first ms':>8} {'peak MiB':>8}"
    print(head + (f" | {'llama.cpp prefill':>17} {'decode':>7} {'ratio':>11}" if peer else ""))
    for model in models or default_models():
        size = model.stat().st_size if model.is_file() else \
            sum(f.stat().st_size for f in model.glob("*.safetensors"))
        theirs = llama_bench(peer, model) if peer and model.suffix == ".gguf" else None
        for tp in sorted({1, CORES}):
            m = measure(model, tp)
            share = m["decode"] * size / 1e9 / memory_speed
            line = f"{model.name[:34]:34} {tp:2} {m['prefill']:9.1f} {m['decode']:9.1f} " \
                   f"{share:8.0%}  {m['first']:8.0f} {m['memory']:8.0f}"
            if theirs:
                line += f" | {theirs[0]:17.1f} {theirs[1]:7.1f} " \
                        f"{m['prefill'] / theirs[0]:5.2f} {m['decode'] / theirs[1]:5.2f}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
