"""llama.cpp beside tpd: its bench, its batched bench and its server, as far as LLAMA_BENCH,
LLAMA_BATCHED_BENCH and LLAMA_SERVER name them."""
import http.client
import json
import os
import socket
import subprocess
import sys
import time

from common import CORES

BENCH = os.environ.get("LLAMA_BENCH")
BATCHED_BENCH = os.environ.get("LLAMA_BATCHED_BENCH")
SERVER = os.environ.get("LLAMA_SERVER")


def bench(model, prefill, decode, runs):
    """Samples of tokens a second: (prefill, decode at batch 1)."""
    out = subprocess.run([BENCH, "-m", str(model), "-t", str(CORES), "-p", str(prefill), "-n",
                          str(decode), "-r", str(runs), "-o", "json"],
                         check=True, capture_output=True, text=True).stdout
    rows = json.loads(out)
    return (next(r["samples_ts"] for r in rows if not r["n_gen"]),
            next(r["samples_ts"] for r in rows if not r["n_prompt"]))


def batched_bench(model, prompt, decode, batches, runs):
    """{batch: samples of tokens a second that all sequences together decode}."""
    speeds = {b: [] for b in batches}
    for _ in range(runs):
        out = subprocess.run(
            [BATCHED_BENCH, "-m", str(model), "-t", str(CORES), "-c",
             str(max(batches) * (prompt + decode)), "-npp", str(prompt), "-ntg", str(decode), "-npl",
             ",".join(map(str, batches)), "--output-format", "jsonl"],
            check=True, capture_output=True, text=True).stdout
        for line in out.splitlines():
            if line.startswith("{"):
                row = json.loads(line)
                speeds[row["pl"]].append(row["speed_tg"])
    return speeds


class Server:
    """llama-server on a model and a port of its own, with so many slots of ctx tokens each."""

    def __init__(self, model, slots, ctx):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [SERVER, "-m", str(model), "-t", str(CORES), "-np", str(slots), "-c", str(slots * ctx),
             "--host", "127.0.0.1", "--port", str(self.port), "--threads-http", "256",
             "--no-webui"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while True:
            try:
                if self.request("GET", "/health")[0] == 200:
                    break
            except OSError:
                if self.process.poll() is not None:
                    sys.exit(f"{SERVER} ended with {self.process.returncode} on {model}")
            time.sleep(0.002)

    def request(self, verb, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request(verb, path, json.dumps(body) if body else None,
                           {"Content-Type": "application/json"})
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        return answer.status, data

    def complete(self, prompt, n):
        body = {"prompt": prompt, "n_predict": n, "temperature": 0, "ignore_eos": True}
        status, data = self.request("POST", "/completion", body)
        if status != 200:
            sys.exit(f"llama-server answered {status}: {data[:200]}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
