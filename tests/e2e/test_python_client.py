"""client/python/tpd.py against a scripted daemon."""
import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from fake_server import ERRORS, PIECES, SENSELESS, STATUS, FakeServer

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CLIENT = os.path.join(ROOT, "client/python/tpd.py")
sys.path.insert(0, os.path.dirname(CLIENT))
import tpd  # noqa: E402  (needs the path above)

TEXT = "".join(PIECES)


@pytest.fixture
def server(tmp_path):
    with FakeServer(tmp_path / "tpd.sock") as fake:
        yield fake


@pytest.fixture
def client(server):
    with tpd.Client(server.path) as connected:
        yield connected


def wait_until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def cancels(server):
    return [m for m in server.received if m["method"] == "cancel"]


def test_each_method_gives_its_result(client, server):
    assert client.ping()["protocol"] == 1
    assert client.status() == STATUS
    assert client.model_info()["bytes"] == 3145728
    assert "tpd_requests_total 7" in client.metrics()
    assert client.tokenize("ab")["tokens"] == [97, 98]
    assert client.detokenize([97, 233]) == "a\u00e9"
    assert client.score("the", "big cat")["sum"] == -1.5
    assert client.shutdown(drain=True, timeout_s=3)["live_requests"] == 3
    assert server.received[-1]["params"] == {"drain": True, "timeout_s": 3}
    assert len(server.connections) == 1  # one after the other, one connection is enough


def test_generate_passes_sampling_on(client, server):
    assert client.generate("hi", max_tokens=3, stop=["x"])["text"] == "Once upon a"
    assert server.received[0]["params"] == {"prompt": "hi", "max_tokens": 3, "stop": ["x"]}


def test_stream_gives_pieces_and_then_the_result(client):
    stream = client.generate("drip", stream=True)
    assert stream.result is None
    assert list(stream) == PIECES
    assert stream.result["text"] == TEXT
    assert list(stream) == []
    assert client.ping()


def test_closing_a_stream_cancels(client, server):
    with client.generate("slow", stream=True) as stream:
        assert next(stream) == "Once"
    wait_until(lambda: cancels(server))
    assert server.closed.wait(10)
    assert client.ping()  # on another connection


def test_cancel_leaves_what_came_and_a_result(client):
    stream = client.generate("slow", stream=True)
    pieces = [next(stream)]
    stream.cancel()
    pieces += list(stream)
    assert stream.result["finish_reason"] == "cancelled"
    assert stream.result["text"] == "".join(pieces)


@pytest.mark.parametrize("word", ERRORS)
def test_errors_carry_code_kind_and_data(client, word):
    code, kind, data = ERRORS[word]
    with pytest.raises(tpd.TpdError) as caught:
        client.generate("error " + word)
    assert (caught.value.code, caught.value.kind) == (code, kind)
    assert dict(data, kind=kind) == caught.value.data
    assert str(caught.value) == caught.value.message
    with pytest.raises(tpd.TpdError) as caught:
        list(client.generate("error " + word, stream=True))
    assert caught.value.code == code
    assert client.ping()


@pytest.mark.parametrize("prompt", ["die", "half", "raw"])
def test_a_daemon_that_breaks_off_is_an_io_error(client, prompt):
    with pytest.raises(tpd.TpdError) as caught:
        list(client.generate(prompt, stream=True))
    assert caught.value.kind == "io_error"
    assert client.ping()


@pytest.mark.parametrize("line", SENSELESS)
def test_answers_without_sense_are_errors_or_results(client, server, line):
    server.says = line
    for ask in (client.status, lambda: list(client.generate("x", stream=True))):
        try:
            ask()
        except tpd.TpdError as error:
            assert str(error)


def test_a_line_without_end_is_given_up(client, monkeypatch):
    monkeypatch.setattr(tpd, "MAX_LINE", 1 << 20)
    with pytest.raises(tpd.TpdError, match="too long"):
        client.generate("flood")


def test_the_word_of_a_daemon_that_refuses_is_heard(client):
    with pytest.raises(tpd.TpdError, match="over 8 MiB"):
        client.generate("refuse")


def test_an_unknown_method_is_an_error(client):
    with pytest.raises(tpd.TpdError) as caught:
        client.call("no_such")
    assert caught.value.code == -32601


def test_the_timeout_ends_a_call_and_its_generation(server):
    with tpd.Client(server.path, timeout=0.2) as client:
        for prompt in ("silent", "slow"):
            with pytest.raises(tpd.TpdError) as caught:
                list(client.generate(prompt, stream=True))
            assert caught.value.kind == "deadline"
        assert server.closed.wait(10)


def test_no_daemon(tmp_path, monkeypatch):
    with pytest.raises(tpd.NoDaemon, match="tpd --model"):
        tpd.Client(str(tmp_path / "none"))
    with socket.socket(socket.AF_UNIX) as left_over:
        left_over.bind(str(tmp_path / "dead"))
    with pytest.raises(tpd.NoDaemon):
        tpd.Client(str(tmp_path / "dead"))
    with pytest.raises(tpd.TpdError):
        tpd.Client("/" + "x" * 200)


def test_sockets_are_tried_in_order(tmp_path, monkeypatch):
    runtime = tmp_path / "run/tpd"
    home = tmp_path / ".tpd"
    runtime.mkdir(parents=True)
    home.mkdir()
    monkeypatch.delenv("TPD_SOCKET", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("HOME", str(tmp_path))

    def found():
        with tpd.Client() as client:
            return client.socket

    with FakeServer(tmp_path / "named") as named, FakeServer(runtime / "tpd.sock") as first, \
            FakeServer(home / "tpd.sock") as last:
        assert found() == first.path
        monkeypatch.setenv("TPD_SOCKET", named.path)
        assert found() == named.path
        monkeypatch.delenv("TPD_SOCKET")
        monkeypatch.delenv("XDG_RUNTIME_DIR")
        if not os.path.exists("/run/tpd/tpd.sock"):
            assert found() == last.path


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can serve as another user")
def test_a_socket_that_a_stranger_serves_is_refused(tmp_path):
    fake = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fake_server.py")
    path = str(tmp_path / "tpd.sock")
    with subprocess.Popen([sys.executable, fake, path, "12345"], stdout=subprocess.PIPE) as stranger:
        try:
            assert stranger.stdout.readline() == b"ready\n"
            with pytest.raises(tpd.TpdError) as caught:
                tpd.Client(path)
            assert caught.value.kind == "not_permitted"
        finally:
            stranger.kill()


def test_many_threads_may_call_at_once(client):
    wrong = []

    def work(number):
        for _ in range(10):
            text = "text %d" % number
            if "".join(client.tokenize(text)["pieces"]) != text:
                wrong.append(number)
            if "".join(client.generate("hi", stream=True)) != TEXT:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_closed_client_says_so(server):
    client = tpd.Client(server.path)
    client.close()
    with pytest.raises(tpd.TpdError, match="closed"):
        client.ping()


def test_as_a_command(server):
    env = dict(os.environ, TPD_SOCKET=server.path)
    run = subprocess.run([sys.executable, CLIENT, "generate", "hi", "max_tokens=2"], env=env,
                         capture_output=True, check=False)
    assert (run.returncode, run.stdout) == (0, b"Once upon")
    run = subprocess.run([sys.executable, CLIENT, "ping"], env=env, capture_output=True, check=False)
    assert b'"protocol": 1' in run.stdout
    env["TPD_SOCKET"] = server.path + "x"
    assert subprocess.run([sys.executable, CLIENT, "ping"], env=env, capture_output=True,
                          check=False).returncode == 69
