"""The load generator: it sends what its seed says, counts what comes, and hides no failure."""
import json
import socket
import subprocess
import threading

import pytest

from daemon import BUILD

LOAD = BUILD / "bench/load"


def load(*words):
    run = subprocess.run([LOAD, *map(str, words), "--json"], capture_output=True, text=True,
                         timeout=120)
    return run.returncode, json.loads(run.stdout) if run.stdout else run.stderr


SMALL = ["--rate", 20, "--seconds", 1, "--prompt", "3:1,9:1", "--output", "4:1,8:1",
         "--vocab", 300]


@pytest.mark.parametrize("how", [[], ["--http"]], ids=["json-rpc", "http"])
def test_all_that_arrive_are_answered_in_full(tpd, client, how):
    before = client.call("status")["tokens"]
    code, report = load("--socket", tpd.socket, *how, *SMALL, "--seed", 5)
    after = client.call("status")["tokens"]
    assert code == 0
    assert report["requests"] == report["done"] > 5
    assert report["failed"] == report["unfinished"] == 0
    made = after["completion"] - before["completion"]
    assert round(report["output_tokens_per_s"] * report["span_s"]) == made
    for times in ("first_token_ms", "between_ms", "whole_ms"):
        assert 0 < report[times]["p50"] <= report[times]["p95"] <= report[times]["p99"]
    assert report["first_token_ms"]["max"] <= report["whole_ms"]["max"]


class Listener:
    """Takes what comes to it and gives each connection the same answer."""

    def __init__(self, path, answer):
        self.path, self.answer, self.got = path, answer, []
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(str(path))
        self.socket.listen(64)
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                connection = self.socket.accept()[0]
            except OSError:
                return
            self.got.append(json.loads(connection.makefile().readline()))
            connection.sendall(self.answer)
            if self.answer:
                connection.close()
            else:
                self.kept = getattr(self, "kept", []) + [connection]


def test_the_same_seed_sends_the_same_requests(tmp_path):
    answer = (b'{"jsonrpc":"2.0","method":"token","params":{"id":1,"text":"a","tokens":[1]}}\n'
              b'{"jsonrpc":"2.0","id":1,"result":{"usage":{"completion_tokens":1}}}\n')
    seen = []
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        listener = Listener(tmp_path / name, answer)
        code, report = load("--socket", listener.path, *SMALL, "--seed", seed)
        assert code == 0 and report["done"] == len(listener.got)
        seen.append([m["params"] for m in listener.got])
        listener.socket.close()
    assert seen[0] == seen[1] != seen[2]
    assert {len(p["prompt"]) for p in seen[0]} == {3, 9}
    assert {p["max_tokens"] for p in seen[0]} == {4, 8}
    assert all(0 <= i < 300 for p in seen[0] for i in p["prompt"])


@pytest.mark.parametrize("answer, says", [
    (b'{"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"overloaded"}}\n', "overloaded"),
    (b"so what\n", "no JSON"),
    (b'{"jsonrpc":"2.0","id":1,"result":{}}\n', "without a token"),
    (b'{"jsonrpc"', "connection broke"),
], ids=["refused", "garbage", "empty", "cut"])
def test_what_goes_wrong_is_counted_and_told(tmp_path, answer, says):
    listener = Listener(tmp_path / "s", answer)
    code, report = load("--socket", listener.path, *SMALL)
    assert code == 1
    assert report["failed"] == report["requests"] > 0
    assert says in report["first_failure"]
    listener.socket.close()


def test_answers_that_never_come_are_unfinished(tmp_path):
    listener = Listener(tmp_path / "s", b"")
    code, report = load("--socket", listener.path, *SMALL, "--patience", 0.1)
    assert code == 1
    assert report["unfinished"] == report["requests"] > 0 and report["done"] == 0
    listener.socket.close()


def test_no_server_and_wrong_words(tmp_path):
    code, report = load("--socket", tmp_path / "nobody", *SMALL)
    assert code == 1 and "cannot connect" in report["first_failure"]
    for words in (["--rate", "x", "--socket", "s"], ["--prompt", "3:,", "--socket", "s"], [],
                  ["--tcp", "nowhere"], ["--socket", "s", "word"]):
        code, said = load(*words)
        assert code == 64 and "usage" in said
