"""What the benches share: where things are, models to measure, a tpd of one's own, medians.

Reads B (build folder), BENCH (quick or full), BENCH_RUNS, BENCH_MODELS (files, separated by
spaces)."""
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "client/python"))
import tpd  # noqa: E402

BUILD = ROOT / os.environ.get("B", "build")
FULL = os.environ.get("BENCH", "quick") == "full"
RUNS = int(os.environ.get("BENCH_RUNS") or ("5" if FULL else "3"))
CORES = len(os.sched_getaffinity(0))
SHAPES = ("smollm2-135m", "llama-1.1b")
TYPES = ("bf16", "q8_0", "q4_0", "q4_k_m")


def random_model(shape, kind):
    """A file of the shape with random weights, made when it is not there."""
    folder = BUILD / "bench-models"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{shape}-{kind}.gguf"
    if not path.exists():
        subprocess.run([sys.executable, ROOT / "bench/make_model.py", shape, kind, str(path)],
                       check=True)
    return path


def models(default):
    """BENCH_MODELS, or the (shape, type) pairs of default as random models."""
    named = [pathlib.Path(p) for p in os.environ.get("BENCH_MODELS", "").split()]
    return named or [random_model(*pair) for pair in default]


def peak_mib(pid="self"):
    """Peak resident memory of a process."""
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return float("nan")


class Daemon:
    """tpd on a model, in a folder that goes with it."""

    def __init__(self, model, *flags):
        self.folder = tempfile.TemporaryDirectory()
        self.socket = f"{self.folder.name}/s"
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [BUILD / "tpd", "--model", str(model), "--socket", self.socket, "--state-dir",
             f"{self.folder.name}/state", "--log-level", "error", *map(str, flags)])
        while True:
            try:
                self.client = tpd.Client(self.socket)
                self.client.ping()
                break
            except Exception:
                if self.process.poll() is not None:
                    sys.exit(f"tpd ended with {self.process.returncode} on {model}")
                time.sleep(0.002)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        self.client.shutdown()
        self.process.wait()
        self.folder.cleanup()


def median(values):
    return statistics.median(values)


def spread(values):
    """Half of what lies between the extremes, in percent of the median."""
    return (max(values) - min(values)) / 2 / median(values) * 100 if len(values) > 1 else 0.0
