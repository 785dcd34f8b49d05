"""tpctl and the Python client against the real daemon and a model that knows a page by heart."""
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("TPD_BUILD", "build"))
TPCTL = os.path.join(BUILD, "tpctl")
MODEL = os.path.join(ROOT, "tests/data/models/tiny-chat")
CONTEXT = 256
sys.path.insert(0, os.path.join(ROOT, "client/python"))
import tpd  # noqa: E402  (needs the path above)

with open(os.path.join(MODEL, "expected_text.json"), encoding="utf-8") as expected_file:
    EXPECTED = json.load(expected_file)["prompts"]
PROMPTED = [e for e in EXPECTED if e["prompt"]]
ONCE = EXPECTED[0]


class Daemon:
    def __init__(self, folder):
        self.socket = os.path.join(str(folder), "tpd.sock")
        self.log = open(os.path.join(str(folder), "log"), "w+", encoding="utf-8")
        self.process = subprocess.Popen(
            [os.path.join(BUILD, "tpd"), "--model", MODEL, "--tp", "2", "--ctx", str(CONTEXT),
             "--socket", self.socket, "--state-dir", os.path.join(str(folder), "state")],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT)
        end = time.monotonic() + 60
        while self.tpctl("ping", "-q").returncode != 0:
            assert self.process.poll() is None and time.monotonic() < end, self.said()
            time.sleep(0.05)

    def said(self):
        self.log.seek(0)
        return self.log.read()

    def tpctl(self, *words, stdin=""):
        env = dict(os.environ, TPD_SOCKET=self.socket)
        run = subprocess.run([TPCTL, *words], input=stdin.encode(), env=env, timeout=60,
                             capture_output=True, check=False)
        run.stdout, run.stderr = run.stdout.decode(), run.stderr.decode()
        return run

    def json(self, *words, **more):
        run = self.tpctl("--json", *words, **more)
        assert run.returncode == 0, run.stderr
        assert run.stdout.count("\n") == 1
        return json.loads(run.stdout)

    def stop(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        code = self.process.wait(60)
        self.log.close()
        return code


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    running = Daemon(tmp_path_factory.mktemp("daemon"))
    yield running
    assert running.stop() == 0


@pytest.mark.parametrize("expected", PROMPTED, ids=lambda e: e["prompt"][-20:])
def test_generate_prints_the_text_that_the_model_knows(daemon, expected):
    words = ["generate", expected["prompt"], "-t", "0", "-n", str(len(expected["tokens"]))]
    if expected["end"] is not None:
        words[-2:] = []  # the model ends it itself
    run = daemon.tpctl(*words)
    assert (run.returncode, run.stdout, run.stderr) == (0, expected["text"], "")
    assert daemon.tpctl(*words, "--no-stream").stdout == expected["text"]
    result = daemon.json(*words)
    assert result["text"] == expected["text"]
    assert result["tokens"][:len(expected["tokens"])] == expected["tokens"]  # then the end, if any
    assert result["finish_reason"] == ("length" if expected["end"] is None else "stop")
    assert result["usage"]["prompt_tokens"] == len(expected["ids"])


def test_sampling_is_repeated_by_its_seed(daemon):
    words = ["generate", "The", "-n", "20", "-t", "1.5", "--top-k", "50", "--ignore-eos", "--seed"]
    assert daemon.tpctl(*words, "7").stdout == daemon.tpctl(*words, "7").stdout
    assert len({daemon.tpctl(*words, str(seed)).stdout for seed in range(5)}) > 1


def test_stop_and_echo(daemon):
    run = daemon.tpctl("generate", ONCE["prompt"], "-t", "0", "--stop", "harbour", "--echo")
    assert run.stdout == "Once upon a time a small boat left the "
    result = daemon.json("generate", ONCE["prompt"], "-t", "0", "--stop", "zzz", "--stop", " boat")
    assert (result["text"], result["stop"], result["finish_reason"]) == (" a small", " boat", "stop")


def test_logprobs_are_those_of_the_reference(daemon):
    run = daemon.tpctl("generate", ONCE["prompt"], "-t", "0", "-n", "8", "--logprobs", "3", "--plain")
    rows = [line.split("\t") for line in run.stdout.split("\n", 1)[1].splitlines()]
    assert [int(row[0]) for row in rows] == ONCE["tokens"][:8]
    assert [float(row[1]) for row in rows] == pytest.approx(ONCE["logprobs"][:8], abs=1e-3)
    assert rows[0][3].startswith("%d=" % ONCE["top"][0][0][0])


def test_score_sums_what_generate_saw(daemon):
    n = len(ONCE["tokens"])
    result = daemon.json("score", ONCE["prompt"], ONCE["text"])
    assert result["sum"] == pytest.approx(sum(ONCE["logprobs"][:n]), abs=1e-3)
    shown = daemon.tpctl("score", ONCE["prompt"], "-", stdin=ONCE["text"]).stdout
    assert "%d tokens, log-probability %.4f" % (n, result["sum"]) in shown


@pytest.mark.parametrize("expected", PROMPTED, ids=lambda e: e["prompt"][-20:])
def test_tokens_and_back(daemon, expected):
    assert daemon.json("tokenize", "--special", expected["prompt"])["tokens"] == expected["ids"]
    ids = daemon.tpctl("tokenize", stdin="Zo\u00eb \U0001f642\n").stdout
    assert daemon.tpctl("detokenize", stdin=ids).stdout == "Zo\u00eb \U0001f642\n"


def test_status_model_and_metrics_say_what_runs(daemon):
    status = daemon.json("status")
    assert status["state"] == "READY" and status["tp"] == 2 and len(status["devices"]) == 2
    shown = daemon.tpctl("status").stdout
    assert re.search(r"^state +READY$", shown, re.MULTILINE)
    assert re.search(r"\d (B|KiB|MiB|GiB)", shown)
    info = daemon.json("model", "info")
    assert info["architecture"] == "llama" and len(info["ranks"]) == 2
    assert "KiB" in daemon.tpctl("model", "info").stdout
    assert "# TYPE" in daemon.tpctl("metrics").stdout


@pytest.mark.parametrize("words, code", [
    (["generate", "word " * 400], 65),
    (["generate", "x", "--top-p", "2"], 64),
    (["generate", "x", "-n", "-7"], 64),
    (["generate", "x", "--logprobs", "99"], 64),
    (["detokenize", "999999"], 64),
])
def test_refusals_are_one_line_with_their_exit_code(daemon, words, code):
    run = daemon.tpctl(*words)
    assert (run.returncode, run.stdout) == (code, "")
    assert run.stderr.startswith("tpctl: ") and run.stderr.count("\n") == 1


def test_ctrl_c_ends_a_generation_of_the_daemon(daemon):
    daemon.process.send_signal(signal.SIGSTOP)  # so that the request cannot end before
    try:
        run = subprocess.Popen([TPCTL, "--socket", daemon.socket, "--json", "generate", "Once"],
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        time.sleep(0.3)
        run.send_signal(signal.SIGINT)
        time.sleep(0.1)
    finally:
        daemon.process.send_signal(signal.SIGCONT)
    run.communicate(timeout=30)
    assert run.returncode == 130
    assert daemon.tpctl("generate", ONCE["prompt"], "-t", "0", "-n", "48").stdout == ONCE["text"]


def test_a_message_over_the_limit_is_refused_and_the_daemon_lives(daemon):
    run = daemon.tpctl("tokenize", stdin="x" * (9 << 20))
    assert run.returncode == 65, run.stderr
    assert daemon.tpctl("ping").returncode == 0


def test_the_python_client_sees_the_same(daemon):
    with tpd.Client(daemon.socket, timeout=60) as client:
        stream = client.generate(ONCE["prompt"], stream=True, temperature=0, max_tokens=48)
        assert "".join(stream) == ONCE["text"] == stream.result["text"]
        assert client.generate(ONCE["ids"], temperature=0, max_tokens=48)["text"] == ONCE["text"]
        assert client.tokenize(ONCE["prompt"], special=True)["tokens"] == ONCE["ids"]
        assert client.detokenize(ONCE["tokens"]) == ONCE["text"]
        assert client.status()["state"] == "READY"
        with client.generate("The", stream=True, ignore_eos=True) as early:
            next(early)
        with pytest.raises(tpd.TpdError) as caught:
            client.generate("x", top_p=2)
        assert caught.value.code == -32602 and caught.value.data["field"] == "top_p"


def test_many_clients_at_once_each_get_their_own_text(daemon):
    wrong = []
    with tpd.Client(daemon.socket, timeout=60) as client:

        def work(expected):
            n = len(expected["tokens"])
            pieces = client.generate(expected["prompt"], stream=True, temperature=0, max_tokens=n)
            if "".join(pieces) != expected["text"]:
                wrong.append(expected["prompt"])

        threads = [threading.Thread(target=work, args=(e,)) for e in PROMPTED * 2]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_shutdown_ends_the_daemon_and_then_there_is_none(tmp_path):
    for words in (["shutdown"], ["shutdown", "--drain", "--timeout", "20s"]):
        running = Daemon(tmp_path)
        try:
            assert running.tpctl(*words).returncode == 0
            assert running.process.wait(60) == 0, running.said()
            assert running.tpctl("ping").returncode == 69
        finally:
            running.process.kill()
            running.log.close()


def test_embed_prints_a_vector_a_text(tpd):
    import subprocess
    from daemon import BUILD
    def run(*args, stdin=""):
        return subprocess.run([str(BUILD / "tpctl"), "--socket", str(tpd.socket), *args], input=stdin,
                              capture_output=True, text=True, timeout=60)
    done = run("embed", "hello", "the cat")
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 2
    assert run("embed", stdin="hello\n\nthe cat\n").stdout == done.stdout
    first = [float(x) for x in done.stdout.splitlines()[0].split()]
    assert abs(sum(x * x for x in first) - 1) < 1e-5
    assert run("embed", "hello", "--pooling", "last").stdout != run("embed", "hello").stdout
    assert run("embed").returncode == 64


def test_top_shows_what_is_going_on(tpd):
    import subprocess
    from daemon import BUILD
    def run(*args):
        return subprocess.run([str(BUILD / "tpctl"), "--socket", str(tpd.socket), "top", *args],
                              capture_output=True, text=True, timeout=60)
    once = run()
    assert once.returncode == 0 and "READY" in once.stdout and "no job runs" in once.stdout
    assert once.stdout.count("KV blocks") == 1 and "rank 0" in once.stdout and "\033" not in once.stdout
    assert run("-n", "3", "-d", "50ms").stdout.count("KV blocks") == 3
    assert len(run("-n", "2", "-d", "50ms", "--json").stdout.splitlines()) == 2
    assert run("-d", "often").returncode == 64


def bench(tpd, *args):
    from daemon import BUILD
    return subprocess.run([str(BUILD / "tpctl"), "--socket", str(tpd.socket), "bench", *args],
                          capture_output=True, text=True, timeout=120)


def test_bench_measures_the_daemon_that_runs(tpd):
    with tpd.client() as client:
        before = client.call("status")["tokens"]
        done = bench(tpd, "-p", "16,32", "-n", "8", "-b", "1,3", "-r", "2", "--json")
        after = client.call("status")["tokens"]
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    rows = result["results"]
    assert [(r["test"], r["batch"]) for r in rows] == [
        ("pp16", 1), ("pp32", 1), ("tg8", 1), ("pp16", 3), ("pp32", 3), ("tg8", 3)]
    for row in rows:
        samples = row["samples_tokens_per_s"]
        assert len(samples) == 2 and min(samples) > 0 and row["stddev"] >= 0
        assert row["mean"] == pytest.approx(sum(samples) / 2)
        assert min(samples) <= row["median"] <= max(samples)
    # 4 rounds of one and of three, and a warm-up of 32 and 8: prompts were read whole, no more was made
    assert after["prompt"] - before["prompt"] == 2 * 4 * (16 + 32 + 4) + 32
    assert after["completion"] - before["completion"] == 2 * 4 * (1 + 1 + 8) + 8
    table = bench(tpd, "-p", "16", "-n", "0", "-r", "1").stdout.splitlines()
    assert table[0].startswith("| model") and len(table) == 3 and "| pp16 | 1 |" in table[2]
    fields = bench(tpd, "-p", "0", "-n", "4", "-r", "1", "--plain").stdout.rstrip("\n").split("\t")
    assert fields[3:5] == ["tg4", "1"] and len(fields) == 7


@pytest.mark.parametrize("words, says", [
    (["-b", "0"], "--batch"), (["-p", "0", "-n", "0"], "nothing is to be measured"), (["-p", "5,x"], "--prompt"), (["-n", "1"], "at least 2"),
    (["-r", "0"], "--repeat"), (["-b", "99"], "--slots 99"), (["--", "--tp", "2"], "--model"),
])
def test_bench_says_what_it_wants(tpd, words, says):
    done = bench(tpd, *words)
    assert done.returncode == 64 and says in done.stderr and done.stdout == ""


def test_bench_brings_a_daemon_of_its_own_and_takes_it_away(tpd, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    done = bench(tpd, "-m", MODEL, "-p", "8", "-n", "4", "-b", "20", "-r", "1", "--json", "--", "--tp", "2")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tp"] == 2
    assert list(tmp_path.iterdir()) == []
    assert bench(tpd, "-m", str(tmp_path / "none")).returncode == 66
    assert bench(tpd, "-m", MODEL, "--", "--tpp", "2").returncode == 64
    assert list(tmp_path.iterdir()) == []


def test_bench_interrupted_leaves_nothing_behind(tmp_path):
    process = subprocess.Popen(
        [TPCTL, "bench", "-m", MODEL, "-r", "1000", "-p", "0", "-n", "128"],
        env=dict(os.environ, TMPDIR=str(tmp_path)), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    end = time.monotonic() + 60
    while not list(tmp_path.glob("*/state/tpd.db")) and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert list(tmp_path.iterdir()) == []


def test_devices_are_the_ranks_cores_and_meet_in_memory(daemon):
    lines = daemon.tpctl("devices").stdout.splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["0", "1"] and "cpu:" in lines[2]
    assert [line.split() for line in lines[4:]] == [
        ["links"], ["rank", "0", "rank", "1"], ["rank", "0", "-", "memory"], ["rank", "1", "memory", "-"]]
    assert set(json.loads(daemon.tpctl("devices", "--json").stdout)) == {"devices", "links"}
