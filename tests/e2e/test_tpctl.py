"""tpctl against a scripted daemon: what it prints where, and how it exits."""
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from daemon import need_terminals
from fake_server import ERRORS, PIECES, SENSELESS, STATUS, FakeServer

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TPCTL = os.path.join(ROOT, os.environ.get("TPD_BUILD", "build"), "tpctl")
TEXT = "".join(PIECES)
USAGE, BAD_DATA, NO_FILE, NO_DAEMON, IO, BUSY, NOT_PERMITTED = 64, 65, 66, 69, 74, 75, 77
DEADLINE, INTERRUPTED = 124, 130


@pytest.fixture
def server(tmp_path):
    with FakeServer(tmp_path / "tpd.sock") as fake:
        yield fake


def environment(**changes):
    env = {k: v for k, v in os.environ.items()
           if k not in ("TPD_SOCKET", "XDG_RUNTIME_DIR", "NO_COLOR")}
    env.update(changes)
    return env


def tpctl(server, *words, stdin="", **changes):
    env = environment(**changes)
    if server:
        env["TPD_SOCKET"] = server.path
    raw = isinstance(stdin, bytes) or any(isinstance(w, bytes) for w in words)
    run = subprocess.run([TPCTL, *words], input=stdin if isinstance(stdin, bytes) else stdin.encode(),
                         capture_output=True, env=env, timeout=60, check=False)
    if not raw:
        run.stdout = run.stdout.decode()
    run.stderr = run.stderr.decode(errors="replace")
    return run


def one_line(run):
    """The complaint: one line, in the tool's name."""
    assert run.stderr.startswith("tpctl: ") and run.stderr.count("\n") == 1, run.stderr
    return run.stderr


def on_terminal(server, *words, no_color=False):
    """Stdout as a terminal shows it; stdin is not one."""
    need_terminals()
    leader, follower = pty.openpty()
    env = environment(TPD_SOCKET=server.path, **({"NO_COLOR": "1"} if no_color else {}))
    run = subprocess.Popen([TPCTL, *words], stdin=subprocess.DEVNULL, stdout=follower,
                           stderr=subprocess.PIPE, env=env)
    os.close(follower)
    shown = b""
    while True:
        try:
            data = os.read(leader, 65536)
        except OSError:
            break
        if not data:
            break
        shown += data
    run.stderr.close()
    assert run.wait(30) == 0
    os.close(leader)
    return shown.decode().replace("\r\n", "\n")


# --- results ------------------------------------------------------------------------------------


def test_generate_prints_the_text_and_nothing_else(server):
    run = tpctl(server, "generate", "hi")
    assert (run.returncode, run.stdout, run.stderr) == (0, TEXT, "")


def test_generate_sends_its_options_under_the_names_of_the_protocol(server):
    run = tpctl(server, "generate", "hi", "-n", "4", "-t0.5", "--top-p=0.9", "--top-k", "5", "--min-p",
                "0.1", "--seed", "7", "--stop", "a", "--stop", "b", "--adapter", "x", "--echo",
                "--ignore-eos", "--repetition-penalty", "1.1", "--presence-penalty", "0.2",
                "--frequency-penalty", "-0.3", "--speculative", "ngram")
    assert run.returncode == 0, run.stderr
    assert server.received[0]["params"] == {
        "prompt": "hi", "stream": True, "max_tokens": 4, "temperature": 0.5, "top_p": 0.9,
        "top_k": 5, "min_p": 0.1, "seed": 7, "stop": ["a", "b"], "adapter": "x", "echo": True,
        "ignore_eos": True, "repetition_penalty": 1.1, "presence_penalty": 0.2,
        "frequency_penalty": -0.3, "speculative": "ngram"}


def test_options_come_in_any_order_and_words_after_two_dashes_are_words(server):
    run = tpctl(None, "--socket", server.path, "generate", "-n", "2", "--quiet", "--", "-n")
    assert run.returncode == 0
    assert server.received[0]["params"]["prompt"] == "-n"


def test_output_that_cannot_be_written_is_74_and_says_why(server):
    for where, why in [(">/dev/full", "No space left"), (">&-", "Bad file descriptor")]:
        for words in ["generate hi", "status --json"]:
            run = subprocess.run(["sh", "-c", f"{TPCTL} {words} {where}"], capture_output=True,
                                 text=True, env=environment(TPD_SOCKET=server.path), timeout=60)
            assert run.returncode == 74 and why in one_line(run)


def test_no_stream_prints_the_same(server):
    run = tpctl(server, "generate", "hi", "--no-stream")
    assert run.stdout == TEXT
    assert "stream" not in server.received[0]["params"]


def test_pieces_appear_as_they_come(server):
    run = subprocess.Popen([TPCTL, "generate", "slow"], stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, env=environment(TPD_SOCKET=server.path))
    assert run.stdout.read(len("Once upon")) == b"Once upon"
    assert run.poll() is None
    run.kill()
    run.wait()
    run.stdout.close()
    assert server.closed.wait(10)


def test_a_stream_that_comes_byte_by_byte_is_read_whole(server):
    assert tpctl(server, "generate", "drip").stdout == TEXT


def test_json_is_the_result_alone_on_one_line(server):
    run = tpctl(server, "--json", "generate", "hi")
    assert run.stdout.count("\n") == 1 and run.stderr == ""
    assert json.loads(run.stdout)["text"] == TEXT
    assert json.loads(tpctl(server, "status", "--json").stdout) == STATUS


def test_plain_status_is_path_tab_value(server):
    rows = dict(line.split("\t") for line in tpctl(server, "status", "--plain").stdout.splitlines())
    assert rows["devices.0.memory.used"] == "1610612736"
    assert rows["tokens_per_s.decode"] == "45.25"


def test_status_shows_units(server):
    shown = tpctl(server, "status").stdout
    assert "1d 2h" in shown and "1.5 GiB" in shown and "decode 45.2" in shown
    assert "total 8, busy 1" in shown and "tokens/s" in shown and "\033" not in shown


def test_colour_only_on_a_terminal_and_not_with_no_color(server):
    assert "\033[1m" in on_terminal(server, "status")
    assert "\033" not in on_terminal(server, "status", no_color=True)


def test_what_a_model_says_cannot_command_a_terminal(server):
    shown = on_terminal(server, "generate", "hostile")
    assert "\033" not in shown and "\007" not in shown and "\u009b" not in shown
    assert "red" in shown
    assert tpctl(server, "generate", "hostile").stdout == "\033[31mred\007\u009b1m"


def test_text_on_a_terminal_ends_its_line(server):
    assert on_terminal(server, "generate", "hi") == TEXT + "\n"


def test_quiet_ping_says_nothing(server):
    assert tpctl(server, "ping").stdout.startswith("tpd 9.9 answers at " + server.path)
    run = tpctl(server, "ping", "--quiet")
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    assert json.loads(tpctl(server, "-q", "--json", "ping").stdout)["protocol"] == 1


def test_metrics_are_as_prometheus_reads_them(server):
    assert tpctl(server, "metrics").stdout.endswith("tpd_requests_total 7\n")


def test_model_info_names_shapes_and_bytes(server):
    shown = tpctl(server, "model", "info").stdout
    assert "3.0 MiB" in shown and "layers 2" in shown and "2.0 KiB" in shown
    assert "draft            path /models/small, shape (layers 1, heads 2), tp 1\n" in shown
    assert "note             -\n" in shown
    assert server.received[0]["method"] == "model.info"


def test_shutdown_drains_only_when_asked(server):
    assert tpctl(server, "shutdown", "--drain", "--timeout", "2m").returncode == 0
    assert "live requests: 3" in tpctl(server, "shutdown").stdout
    assert server.received[0]["params"] == {"drain": True, "timeout_s": 120.0}
    assert not server.received[1].get("params")


def test_tokens_go_through_a_pipe_and_back(server):
    ids = tpctl(server, "tokenize", "a\u00e9\n").stdout
    assert ids == "97 233 10\n"
    assert tpctl(server, "detokenize", stdin=ids).stdout == "a\u00e9\n"
    assert tpctl(server, "detokenize", "97", "233").stdout == "a\u00e9"
    assert tpctl(server, "detokenize", stdin="[97,\n 98]").stdout == "ab"
    assert tpctl(server, "detokenize", stdin='{"tokens": [97]}').stdout == "a"
    assert tpctl(server, "tokenize", "--plain", "a\t\\").stdout == "97\ta\n9\t\\t\n92\t\\\\\n"
    assert '97  "a"' in on_terminal(server, "tokenize", "a")


def test_ids_that_are_none_are_refused(server):
    assert tpctl(server, "detokenize", "12", "x1").returncode == USAGE
    for text in ("1 2 x", "[1, 2.5]", "[1,", "99999999999999999999"):
        run = tpctl(server, "detokenize", stdin=text)
        assert run.returncode == BAD_DATA
        one_line(run)
    assert server.received == []


def test_score_prints_a_row_a_token_and_the_sum(server, tmp_path):
    shown = tpctl(server, "score", "the", "big cat").stdout
    assert '"big"' in shown and "log-probability -1.5000, perplexity 1.5000" in shown
    file = tmp_path / "text"
    file.write_text("one two three")
    assert len(tpctl(server, "score", "--plain", "--file", str(file)).stdout.splitlines()) == 3
    assert server.received[1]["params"] == {"prompt": "", "completion": "one two three"}
    assert tpctl(server, "score", "x", "--file", str(tmp_path / "none")).returncode == NO_FILE
    assert tpctl(server, "score", "only").returncode == USAGE


def test_logprobs_follow_the_text(server):
    run = tpctl(server, "generate", "hi", "-n", "2", "--logprobs", "2")
    assert run.stdout.startswith("Once upon\n")
    assert "1=-1.0000" in run.stdout.splitlines()[2]


def test_an_answer_of_many_megabytes_arrives_whole(server):
    run = tpctl(server, "generate", "huge 30000000", "--no-stream")
    assert len(run.stdout.encode()) == 30000000


# --- prompts ------------------------------------------------------------------------------------


def test_the_prompt_may_come_from_stdin_to_the_last_byte(server):
    tpctl(server, "generate", stdin="line\n")
    tpctl(server, "generate", "-", stdin="dash\n")
    assert [m["params"]["prompt"] for m in server.received] == ["line\n", "dash\n"]


@pytest.mark.parametrize("prompt, at", [
    (b"abc\xff", 3), (b"\xc3", 0), (b"ok \xe2\x82", 3), (b"\xed\xa0\x80", 0), (b"\xc0\x80", 0),
    (b"a\xf4\x90\x80\x80", 1)])
def test_a_prompt_that_is_not_utf8_is_refused_with_its_place(server, prompt, at):
    for run in (tpctl(server, "generate", prompt), tpctl(server, "generate", stdin=prompt)):
        assert run.returncode == BAD_DATA
        assert "at byte %d " % at in one_line(run)
    assert server.received == []


def test_a_grammar_that_is_not_utf8_is_refused_with_its_place(server, tmp_path):
    (tmp_path / "g").write_bytes(b'root ::= "\xff"')
    run = tpctl(server, "generate", "hi", "--grammar", str(tmp_path / "g"))
    assert run.returncode == BAD_DATA
    assert one_line(run) == "tpctl: the grammar's file is not valid UTF-8 at byte 10 (0xff)\n"
    assert server.received == []


# --- usage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("words, says", [
    ([], "no command"),
    (["genrate"], "did you mean 'generate'"),
    (["stat"], "did you mean 'status'"),
    (["xyzzy"], "'tpctl help' lists them"),
    (["model"], "'tpctl model info', 'tpctl model load', 'tpctl model unload'"),
    (["model", "inof"], "'tpctl model merge'"),
    (["generate", "hi", "--sede", "3"], "did you mean '--seed'"),
    (["generate", "hi", "-n"], "wants a value"),
    (["generate", "hi", "-n", "many"], "whole number"),
    (["generate", "hi", "-t", "nan"], "wants a number"),
    (["generate", "hi", "--echo=yes"], "takes no value"),
    (["generate", "hi", "--deadline", "soon"], "duration"),
    (["generate", "two", "words"], "quotes"),
    (["-n", "3", "generate"], "before the command"),
    (["status", "now"], "takes no words"),
    (["help", "genrate"], "did you mean 'generate'"),
])
def test_a_slip_on_the_command_line_is_named(server, words, says):
    run = tpctl(server, *words)
    assert run.returncode == USAGE
    assert says in one_line(run)
    assert server.received == []


def test_help_is_on_stdout_and_needs_no_daemon():
    for words in (["help"], ["--help"], ["-h"]):
        run = tpctl(None, *words)
        assert run.returncode == 0 and "model info" in run.stdout and "124 deadline" in run.stdout
    one = tpctl(None, "help", "generate")
    assert one.stdout == tpctl(None, "generate", "--help").stdout
    assert "--top-k K" in one.stdout
    assert tpctl(None, "help", "model", "info").stdout.startswith("usage: tpctl model info")


def test_version():
    assert tpctl(None, "--version").stdout.startswith("tpctl ")


# --- failures -----------------------------------------------------------------------------------


EXITS = {"overloaded": BUSY, "context": BAD_DATA, "notfound": NO_FILE, "memory": BUSY,
         "cancelled": 1, "badfile": BAD_DATA, "permission": NOT_PERMITTED, "stopping": BUSY,
         "conflict": BUSY, "device": 70, "internal": 70, "params": USAGE, "unknown": 70}


@pytest.mark.parametrize("word", ERRORS)
def test_each_error_of_the_daemon_has_its_exit_code(server, word):
    run = tpctl(server, "generate", "error " + word)
    assert run.returncode == EXITS[word]
    assert run.stdout == "" and "it failed: " in one_line(run)
    if word == "overloaded":
        assert "try again in 3 s" in run.stderr


def test_a_generation_that_failed_exits_1_after_its_text(server):
    run = tpctl(server, "generate", "failing")
    assert (run.returncode, run.stdout) == (1, TEXT)
    assert "rank 1 is gone" in one_line(run)


@pytest.mark.parametrize("prompt, text", [("die", "Once upon a"), ("half", ""), ("raw", "")])
def test_a_daemon_that_breaks_off_is_an_io_error(server, prompt, text):
    run = tpctl(server, "generate", prompt)
    assert (run.returncode, run.stdout) == (IO, text)
    assert server.path in one_line(run)


def test_the_word_of_a_daemon_that_refuses_and_closes_is_heard(server):
    assert "over 8 MiB" in one_line(tpctl(server, "generate", "refuse"))


def test_a_refusal_is_heard_even_when_it_comes_before_the_request_is_sent(tmp_path):
    path = str(tmp_path / "tpd.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(1)

        def refuse():
            connection, _ = listener.accept()
            connection.recv(100)
            connection.sendall(b'{"jsonrpc":"2.0","id":null,'
                               b'"error":{"code":-32600,"message":"over the limit"}}\n')
            connection.close()

        thread = threading.Thread(target=refuse)
        thread.start()
        run = tpctl(None, "--socket", path, "generate", stdin="x" * 5000000)
        thread.join()
    assert "over the limit" in one_line(run) and run.returncode == BAD_DATA


def test_a_line_without_end_costs_bounded_memory(server):
    limit = "ulimit -v 600000; exec \"$@\"" if "asan" not in TPCTL else "exec \"$@\""
    run = subprocess.run(["sh", "-c", limit, "sh", TPCTL, "generate", "flood"],
                         env=environment(TPD_SOCKET=server.path), stdin=subprocess.DEVNULL,
                         capture_output=True, timeout=60, check=False)
    assert run.returncode == IO
    assert b"too long" in run.stderr


@pytest.mark.parametrize("line", SENSELESS)
def test_answers_without_sense_end_in_an_exit_code_of_the_table(server, line):
    server.says = line
    for words in (["generate", "x"], ["score", "a", "b"], ["tokenize", "a"], ["detokenize", "1"],
                  ["status"], ["model", "info"], ["metrics"], ["ping"], ["shutdown"],
                  ["status", "--plain"], ["score", "a", "b", "--plain"], ["status", "--json"]):
        run = tpctl(server, *words, stdin=b"")
        assert run.returncode in (0, 1, 70, 74), (words, run)
        assert run.returncode == 0 or run.stderr.startswith("tpctl: ")
        assert "\033" not in run.stderr and run.stderr.count("\n") <= 1


def test_no_daemon_is_one_line_with_the_socket_and_the_way_out(tmp_path):
    path = str(tmp_path / "none.sock")
    run = tpctl(None, "--socket", path, "ping")
    assert run.returncode == NO_DAEMON
    assert path in one_line(run) and "tpd --model" in run.stderr
    home = tpctl(None, "ping", HOME=str(tmp_path), XDG_RUNTIME_DIR=str(tmp_path / "run"))
    if home.returncode == NO_DAEMON:  # unless this machine has a daemon of its own
        for place in ("run/tpd/tpd.sock", ".tpd/tpd.sock"):
            assert str(tmp_path / place) in one_line(home)


def test_a_socket_that_nobody_serves_is_no_daemon(tmp_path):
    path = str(tmp_path / "dead.sock")
    with socket.socket(socket.AF_UNIX) as left_over:
        left_over.bind(path)
    assert tpctl(None, "--socket", path, "ping").returncode == NO_DAEMON


def test_a_path_over_the_limit_is_refused_with_the_limit(tmp_path):
    run = tpctl(None, "--socket", "/" + "x" * 200, "ping")
    assert run.returncode == 78 and "107" in one_line(run)


def test_sockets_are_tried_in_the_order_of_the_protocol(tmp_path):
    runtime, home = tmp_path / "run", tmp_path / "home"
    (runtime / "tpd").mkdir(parents=True)
    (home / ".tpd").mkdir(parents=True)
    places = [tmp_path / "option", tmp_path / "variable", runtime / "tpd/tpd.sock",
              home / ".tpd/tpd.sock"]
    servers = [FakeServer(p) for p in places]
    env = {"XDG_RUNTIME_DIR": str(runtime), "HOME": str(home)}

    def used():
        for server in servers:
            if server.received:
                server.received.clear()
                return servers.index(server)
        return None

    assert tpctl(None, "--socket", str(places[0]), "ping", TPD_SOCKET=str(places[1]), **env
                 ).returncode == 0 and used() == 0
    assert tpctl(None, "ping", TPD_SOCKET=str(places[1]), **env).returncode == 0 and used() == 1
    assert tpctl(None, "ping", **env).returncode == 0 and used() == 2
    if not os.path.exists("/run/tpd/tpd.sock"):
        del env["XDG_RUNTIME_DIR"]
        assert tpctl(None, "ping", **env).returncode == 0 and used() == 3
    for server in servers:
        server.__exit__()


def test_a_named_socket_is_the_only_one_tried(tmp_path):
    (tmp_path / ".tpd").mkdir()
    with FakeServer(tmp_path / ".tpd/tpd.sock") as server:
        run = tpctl(None, "ping", TPD_SOCKET=str(tmp_path / "none"), HOME=str(tmp_path))
        assert run.returncode == NO_DAEMON and server.received == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can serve as another user")
def test_a_socket_that_a_stranger_serves_is_refused(tmp_path):
    path = str(tmp_path / "tpd.sock")
    fake = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fake_server.py")
    stranger = subprocess.Popen([sys.executable, fake, path, "12345"], stdout=subprocess.PIPE)
    try:
        assert stranger.stdout.readline() == b"ready\n"
        run = tpctl(None, "--socket", path, "ping")
        assert run.returncode == NOT_PERMITTED
        assert "uid 12345" in one_line(run)
    finally:
        stranger.kill()
        stranger.wait()
        stranger.stdout.close()


def test_a_full_disk_is_an_io_error(server):
    with open("/dev/full", "w", encoding="ascii") as full:
        run = subprocess.run([TPCTL, "generate", "hi"], env=environment(TPD_SOCKET=server.path),
                             stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE,
                             timeout=60, check=False)
    assert run.returncode == IO and b"cannot write to stdout" in run.stderr


# --- ending early -------------------------------------------------------------------------------


def start_slow(server, *words):
    run = subprocess.Popen([TPCTL, "generate", *words], stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           env=environment(TPD_SOCKET=server.path))
    wait_until(lambda: server.received)
    return run


def wait_until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def cancels(server):
    return [m for m in server.received if m["method"] == "cancel"]


def test_ctrl_c_cancels_keeps_what_came_and_exits_130(server):
    run = start_slow(server, "slow")
    first = run.stdout.read(4)
    run.send_signal(signal.SIGINT)
    rest, complaint = run.communicate(timeout=30)
    assert run.returncode == INTERRUPTED
    assert (first + rest).decode().startswith("Once") and complaint == b""
    assert cancels(server)[0]["params"] == {"id": server.received[0]["id"]}


def test_ctrl_c_with_json_prints_the_part_that_came(server):
    run = start_slow(server, "slow", "--json")
    run.send_signal(signal.SIGINT)
    out, _ = run.communicate(timeout=30)
    assert run.returncode == INTERRUPTED
    assert json.loads(out)["finish_reason"] == "cancelled"


def test_ctrl_c_twice_does_not_wait_for_a_daemon_that_does_not_heed(server):
    run = start_slow(server, "silent")
    run.send_signal(signal.SIGINT)
    wait_until(lambda: cancels(server))
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=30)
    assert run.returncode == INTERRUPTED


def test_ctrl_c_twice_ends_it_even_when_nobody_reads_its_output(server):
    run = start_slow(server, "mad")
    time.sleep(0.5)  # the pipe is full by then
    run.send_signal(signal.SIGINT)
    time.sleep(0.1)
    assert run.poll() is None
    run.send_signal(signal.SIGINT)
    assert run.wait(30) == INTERRUPTED
    run.communicate()


@pytest.mark.parametrize("prompt", ["silent", "mad"])
def test_ctrl_c_once_waits_only_a_moment(server, prompt):
    run = start_slow(server, prompt)
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=30)
    assert run.returncode == INTERRUPTED and server.closed.wait(10)


def test_the_deadline_cancels_keeps_what_came_and_exits_124(server):
    run = tpctl(server, "generate", "slow", "--deadline", "300ms")
    assert run.returncode == DEADLINE
    assert run.stdout.startswith("Once") and "deadline" in one_line(run)
    assert len(cancels(server)) == 1
    assert tpctl(server, "generate", "silent", "--deadline", "0.1s").returncode == DEADLINE


def test_a_reader_that_goes_away_ends_the_generation_quietly(server):
    run = start_slow(server, "slow")
    run.stdout.read(4)
    run.stdout.close()
    assert run.stderr.read() == b""
    assert run.wait(30) == IO
    run.stderr.close()
    assert cancels(server)
