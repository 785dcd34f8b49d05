"""Section 2 of the protocol: messages, ids, errors, streaming, cancel; and what strangers send."""
import json
import socket
import time

import pytest

import schema
from daemon import RpcError, eventually

LONG = {"prompt": "Once upon a time", "n": 64, "max_tokens": 240, "ignore_eos": True}


def ping(client):
    result = client.call("ping")
    schema.check("ping", result)
    return result["protocol"] == 1


def cancelled(result):
    """Some of its choices were ended early: all of them are long."""
    return any(choice["finish_reason"] == "cancelled" for choice in result["choices"])


def error_of(message):
    assert message["jsonrpc"] == "2.0" and "result" not in message
    assert isinstance(message["error"]["message"], str)
    assert isinstance(message["error"]["data"]["kind"], str)
    return message["error"]["code"]


def test_lines_may_end_in_crlf_and_blank_lines_are_nothing(client):
    client.raw(b'\r\n  \n{"jsonrpc":"2.0","id":1,"method":"ping"}\r\n\n')
    assert client.message()["id"] == 1
    assert ping(client)


def test_a_request_may_come_byte_by_byte(client):
    for byte in b'{"jsonrpc":"2.0","id":"x","method":"tokenize","params":{"text":"a \\u00e9"}}\n':
        client.raw(bytes([byte]))
        time.sleep(0.001)
    assert client.message()["id"] == "x"


def test_many_requests_may_come_at_once(client):
    n = 100
    client.raw(b"".join(b'{"jsonrpc":"2.0","id":%d,"method":"ping"}\n' % i for i in range(n)))
    assert sorted(client.message()["id"] for _ in range(n)) == list(range(n))


def test_ids_come_back_as_they_were(client):
    for id in ["", "a", "1", 0, -5, 2**53 + 1, "\u00e9\U0001F600", "x" * 256]:
        client.raw(json.dumps({"jsonrpc": "2.0", "id": id, "method": "ping"}).encode() + b"\n")
        got = client.message()["id"]
        assert got == id and type(got) is type(id)


@pytest.mark.parametrize("id", [1.5, True, None, [1], {"a": 1}, "x" * 257])
def test_other_ids_are_refused(client, id):
    client.raw(json.dumps({"jsonrpc": "2.0", "id": id, "method": "ping"}).encode() + b"\n")
    message = client.message()
    assert error_of(message) == -32600 and message["id"] is None
    assert ping(client)


BROKEN = [
    (b"{:", 1), (b'{"a":1', 6), (b"{'a':1}", 1), (b'{"a":1,}', 7), (b'{"a":NaN}', 5),
    (b'{"a":Infinity}', 5), (b'{"a":-Infinity}', 5), (b'{"a":1e999}', 5), (b'{"a":1,"a":2}', 7),
    (b'{"a":"\xff"}', 6), (b'{"a":"\xc3"}', 6), (b'{"a":"\xed\xa0\x80"}', 6), (b'{"a":"\x01"}', 6),
    (b'{"a":1} x', 8), (b"{" + b'"a":{' * 70 + b"}" * 71, 300), (b"[" * 100000, 64),
    (b'{"x":' + b"[" * 10000 + b"]" * 10000 + b"}", 68), (b'[{"a":' * 5000, 200), (b'\x00', 0),
    (b'{"a":\x00}', 5), (b'{"a":1}\x00', 7), (b'"\\ud800"', 1),
]


@pytest.mark.parametrize("line,near", BROKEN, ids=[repr(b[:24]) for b, _ in BROKEN])
def test_a_broken_line_is_a_parse_error_and_the_connection_lives_on(client, line, near):
    client.raw(line + b"\n")
    message = client.message()
    assert error_of(message) == -32700 and message["id"] is None
    offset = message["error"]["data"]["offset"]
    assert isinstance(offset, int) and 0 <= offset <= len(line)
    assert abs(offset - near) <= 16 or len(line) > 100
    assert message["error"]["data"]["kind"] == "parse_error"
    assert ping(client)


NOT_REQUESTS = [b"[]", b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', b"1", b'"x"', b"null", b"{}",
                b'{"jsonrpc":"1.0","id":1,"method":"ping"}', b'{"id":1,"method":"ping"}',
                b'{"jsonrpc":"2.0","id":1}', b'{"jsonrpc":"2.0","id":1,"method":5}',
                b'{"jsonrpc":"2.0","id":1,"method":"ping\\u0000x"}',
                b'{"jsonrpc":"2.0\\u0000x","id":1,"method":"ping"}']


@pytest.mark.parametrize("line", NOT_REQUESTS)
def test_what_is_not_a_request_is_refused(client, line):
    client.raw(b" " + line + b"\n")
    assert error_of(client.message()) == -32600
    assert ping(client)


def test_an_unknown_method_is_named(client):
    for method in ["generat", "model.reload", "", "x" * 1000]:
        with pytest.raises(RpcError) as e:
            client.call(method)
        assert e.value.code == -32601 and e.value.data["kind"] == "method_not_found"
        assert e.value.data["method"] == method or len(method) > 200
    assert ping(client)


def test_wrong_parameters_are_named(client):
    with pytest.raises(RpcError) as e:
        client.call("generate", prompt="a", temprature=1)
    assert e.value.code == -32602 and e.value.data["field"] == "temprature"
    assert "temperature" in e.value.message
    with pytest.raises(RpcError) as e:
        client.call("generate", prompt="a", top_p="high")
    assert e.value.data["field"] == "top_p"
    assert "number" in e.value.data["expected"] and "high" in e.value.data["got"]
    client.raw(b'{"jsonrpc":"2.0","id":77,"method":"ping","params":[1]}\n')
    assert error_of(client.message()) == -32602


def test_notifications_get_no_answer(client):
    client.send("ping", notify=True)
    client.send("no.such.method", notify=True)
    client.send("generate", {"prompt": 5}, notify=True)
    client.send("cancel", {"id": "none"}, notify=True)
    client.send("ping", id="last")
    assert client.message()["id"] == "last"


def test_answers_come_as_they_end(client):
    slow = client.send("generate", LONG)
    assert ping(client)
    assert not any(m.get("id") == slow for m in client.waiting)
    client.call("cancel", id=slow)
    client.result(slow)


def test_an_id_that_is_live_may_not_be_used_again(client):
    client.send("generate", LONG, id=5)
    client.send("ping", id=5)
    message = client.message()
    assert error_of(message) == -32600 and message["id"] is None
    assert message["error"]["data"]["id"] == 5
    client.send("cancel", {"id": 5}, notify=True)
    assert cancelled(client.result(5))
    client.send("ping", id=5)
    assert client.result(5)["protocol"] == 1


def test_the_same_id_on_another_connection_is_another_request(tpd):
    with tpd.client() as a, tpd.client() as b:
        a.send("generate", LONG, id=1)
        b.send("ping", id=1)
        assert b.result(1)["protocol"] == 1
        assert b.call("cancel", id=1)["cancelled"] is False
        a.send("cancel", {"id": 1}, notify=True)
        assert cancelled(a.result(1))


def test_a_stream_is_the_result_in_pieces(client):
    id = client.send("generate", {"prompt": "Once upon a time", "max_tokens": 30, "stream": True,
                                  "temperature": 0, "logprobs": 2})
    result = client.result(id)
    schema.check("generate", result)
    notes = client.notifications(id)
    assert len(notes) > 1
    for note in notes:
        assert note["method"] == "token" and "id" not in note
        schema.check("generate", note["params"], "token")
        assert [entry["id"] for entry in note["params"]["logprobs"]] == note["params"]["tokens"]
    assert "".join(n["params"]["text"] for n in notes) == result["text"]
    assert sum((n["params"]["tokens"] for n in notes), []) == result["tokens"]


def test_cancel_answers_with_what_there_is(client):
    id = client.send("generate", {**LONG, "stream": True})
    while not any("method" in m for m in client.waiting):
        client.waiting.append(client.message())
    client.send("cancel", {"id": id}, notify=True)
    result = client.result(id)
    schema.check("generate", result)
    assert cancelled(result)
    notes = client.notifications(id)
    for choice in result["choices"]:
        text = "".join(n["params"]["text"] for n in notes if n["params"]["index"] == choice["index"])
        assert text == choice["text"]
    assert result["usage"]["completion_tokens"] > 0
    assert client.call("cancel", id=id) == {"cancelled": False}


def test_a_request_cannot_cancel_itself(client):
    id = client.send("cancel", {"id": 9}, id=9)
    assert client.result(id) == {"cancelled": False}


def busy(client):
    status = client.call("status")
    return status["slots"]["busy"] + status["queue"] + status["kv"]["used"]


def test_closing_cancels_and_frees(tpd, client):
    for stream in [True, False]:
        other = tpd.client()
        other.send("generate", {**LONG, "stream": stream})
        if stream:
            other.message()
        other.close()
        eventually(lambda: busy(client) == 0)
    assert len(client.call("generate", prompt="Once", max_tokens=3, ignore_eos=True)["tokens"]) == 3


def test_a_queued_client_that_goes_takes_nobody_with_it(tpd, client):
    want = client.call("generate", prompt="Once", max_tokens=60, seed=4, ignore_eos=True)
    id = client.send("generate", {"prompt": "Once", "max_tokens": 60, "seed": 4,
                                  "ignore_eos": True})
    others = [tpd.client() for _ in range(20)]
    for other in others:
        other.send("generate", LONG)
    for other in others:
        other.close()
    got = client.result(id)
    assert (got["tokens"], got["finish_reason"]) == (want["tokens"], want["finish_reason"])
    # They are gone for the daemon too, or its queue is too full for the test that follows.
    eventually(lambda: client.call("status")["connections"] <= 2 and busy(client) == 0)


def test_a_client_that_ends_its_side_still_gets_its_answers(tpd):
    with tpd.client() as client:
        client.send("generate", {"prompt": "Once", "max_tokens": 5, "ignore_eos": True}, id="g")
        client.raw(b'{"jsonrpc":"2.0","id":"p","method":"ping"}')  # no line end
        client.socket.shutdown(socket.SHUT_WR)
        assert len(client.result("g")["tokens"]) == 5
        assert client.result("p")["protocol"] == 1
        assert client.line() is None



@pytest.mark.parametrize("method,params", [
    ("status", {}), ("model.info", {}), ("metrics", {}),
    ("tokenize", {"text": "a small boat", "special": True}), ("detokenize", {"tokens": [5, 6]}),
    ("generate", {"prompt": "a", "max_tokens": 2}),
    ("generate", {"prompt": "a", "max_tokens": 2, "n": 3, "logprobs": 3, "echo": True}),
    ("score", {"prompt": "Once upon", "completion": " a time"})])
def test_results_are_as_docs_schema_says(client, method, params):
    schema.check(method, client.call(method, **params))
