"""Clients that mean no good, or do not know better: the daemon and the other clients go on."""
import json
import os
import random
import socket
import time

import pytest

from daemon import RpcError, eventually

MIB = 1 << 20


@pytest.fixture(autouse=True)
def others_go_on(tpd):
    """Somebody else is connected all the time, and is served before and after."""
    with tpd.client() as bystander:
        assert bystander.call("ping")["protocol"] == 1
        yield
        assert bystander.call("ping")["protocol"] == 1
        result = bystander.call("generate", prompt="Once", max_tokens=2, ignore_eos=True)
        assert len(result["tokens"]) == 2


def test_a_line_without_end_is_cut_off_and_costs_little(tpd):
    before = tpd.rss()
    highest, sent = before, 0
    with tpd.client() as client:
        block = b"x" * MIB
        client.raw(b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"')
        try:
            while sent < 1 << 30:
                client.raw(block)
                sent += MIB
                highest = max(highest, tpd.rss())
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert sent < 64 * MIB, "the daemon went on reading"
        answer = json.loads(client.line())
        assert answer["error"]["code"] == -32600 and answer["id"] is None
        assert client.at_end()
    assert highest - before < 64 * MIB


def test_a_long_line_below_the_limit_is_served(tpd):
    with tpd.client() as client:
        text = "Once upon a time. " * 200000
        assert len(text) < 8 * MIB
        assert len(client.call("tokenize", text=text)["tokens"]) > 100000


def test_a_message_of_very_many_values_is_refused_unread(tpd):
    before = tpd.rss()
    with tpd.client() as client:
        for part in [b"{},", b"[],", b"1,"]:
            n = (8 * MIB - 100) // len(part)
            client.raw(b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":[' + part * (n - 9) +
                       b"1]}}\n")
            assert client.message()["error"]["code"] == -32600
        assert client.call("ping")
    assert tpd.rss() - before < 64 * MIB


def test_half_lines_cost_only_their_buffer(tpd):
    clients = [tpd.client() for _ in range(100)]
    for client in clients:
        client.raw(b'{"jsonrpc":"2.0","id":1,')
    with tpd.client() as other:
        assert other.call("ping")
    for client in clients:
        client.raw(b'"method":"ping"}\n')
    for client in clients:
        assert client.message()["result"]["protocol"] == 1
        client.close()


def test_many_connections_at_once(tpd):
    clients = [tpd.client() for _ in range(200)]
    for client in clients:
        client.send("generate", {"prompt": "Once", "max_tokens": 1, "ignore_eos": True}, id=1)
    for client in clients:
        assert len(client.result(1)["tokens"]) == 1
        client.close()


def test_random_bytes(tpd):
    random.seed(7)
    for _ in range(60):
        with tpd.client() as client:
            data = os.urandom(random.randrange(1, 3000))
            try:
                client.raw(random.choice([b"{", b" ", b"", b"G"]) + data + b"\n")
                client.socket.shutdown(socket.SHUT_WR)
                client.at_end()
            except (BrokenPipeError, ConnectionResetError):
                pass


def test_random_changes_to_good_messages(tpd):
    random.seed(8)
    good = [{"jsonrpc": "2.0", "id": 1, "method": "generate",
             "params": {"prompt": "Once", "max_tokens": 2, "stop": ["x", "y"], "logprobs": 2,
                        "logit_bias": {"5": 1.5}, "stop_token_ids": [3], "stream": True}},
            {"jsonrpc": "2.0", "id": "a", "method": "score",
             "params": {"prompt": [1, 2], "completion": "b"}},
            {"jsonrpc": "2.0", "id": 3, "method": "detokenize", "params": {"tokens": [1, 2, 300]}}]
    with tpd.client() as client:
        for i in range(400):
            line = bytearray(json.dumps(random.choice(good)).encode())
            for _ in range(random.randrange(1, 4)):
                at = random.randrange(1, len(line))
                change = random.randrange(3)
                if change == 0:
                    line[at] = random.randrange(256)
                elif change == 1:
                    del line[at:at + random.randrange(1, 9)]
                else:
                    line[at:at] = line[random.randrange(len(line)):][:8]
            client.raw(bytes(line).replace(b"\n", b" ") + b"\n")
            client.send("ping", id=f"after {i}")
            client.wait(f"after {i}")


def test_clients_that_vanish_at_any_moment(tpd):
    random.seed(9)
    for i in range(60):
        client = tpd.client()
        client.send("generate", {"prompt": "Once upon", "max_tokens": 100, "ignore_eos": True,
                                 "stream": True, "n": random.choice([1, 3])})
        client.send("tokenize", {"text": "a " * random.randrange(1, 20000)})
        client.send("score", {"completion": "a b c " * 20})
        time.sleep(random.random() * 0.02)
        if i % 3 == 0:
            client.raw(b'{"half')
        client.close()
    with tpd.client() as client:
        def idle():
            status = client.call("status")
            return status["slots"]["busy"] + status["queue"] + status["kv"]["used"] == 0
        eventually(idle)
        assert client.call("status")["connections"] == 2


def test_a_reader_that_sleeps_is_paused_then_served(tpd):
    """Answers of many times max_outbound pile up; the daemon stops reading, then goes on."""
    before = tpd.rss()
    with tpd.client() as client:
        n = 3000
        client.socket.settimeout(1)
        message = b'{"jsonrpc":"2.0","id":%d,"method":"metrics"}\n'
        sent = 0
        try:
            while sent < n:
                client.raw(message % sent)
                sent += 1
        except TimeoutError:
            pass  # the daemon reads no more: as it should
        client.socket.settimeout(60)
        assert tpd.rss() - before < 64 * MIB
        for i in range(sent - 1):
            assert client.message()["id"] == i


def test_too_many_live_requests_of_one_connection_are_overload(tpd):
    with tpd.client() as client:
        request = {"jsonrpc": "2.0", "method": "generate",
                   "params": {"prompt": "Once", "max_tokens": 100, "ignore_eos": True}}
        client.raw(b"".join(json.dumps({**request, "id": i}).encode() + b"\n" for i in range(300)))  # at once
        codes = [m["error"]["code"] for m in (client.message() for _ in range(10)) if "error" in m]
        assert codes and set(codes) == {-32001}
        client.send("ping", id="p")
        client.wait("p")


def test_overload_says_when_to_come_back(start):
    daemon = start("--slots", 1, "--max-queue", 1)
    with daemon.client() as client:
        params = {"prompt": "Once", "max_tokens": 200, "ignore_eos": True}
        ids = [client.send("generate", params) for _ in range(6)]
        with pytest.raises(RpcError) as e:
            for id in reversed(ids):
                client.result(id)
        assert e.value.code == -32001 and e.value.data["retry_after_s"] > 0


def test_a_slow_client_is_dropped_and_its_generation_ends(start):
    daemon = start("--slow-client-s", 1, "--max-outbound", "4K")
    with daemon.client() as client, daemon.client() as other:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for i in range(200):
            try:
                client.send("metrics")
            except (BrokenPipeError, ConnectionResetError):
                break
            client.send("generate", {"prompt": "Once", "max_tokens": 200, "ignore_eos": True,
                                     "stream": True, "logprobs": 20}) if i < 3 else None
        eventually(lambda: other.call("status")["connections"] == 1)
        eventually(lambda: other.call("status")["slots"]["busy"] == 0)
        assert "dropped" in daemon.log()


def test_connections_over_the_limit_are_told_so(start):
    daemon = start("--max-connections", 2)
    with daemon.client() as a, daemon.client() as b, daemon.client() as c:
        assert a.call("ping") and b.call("ping")
        assert c.message()["error"]["code"] == -32001
        assert c.line() is None
        a.close()
        eventually(lambda: b.call("status")["connections"] == 1)
        with daemon.client() as d:
            assert d.call("ping")
