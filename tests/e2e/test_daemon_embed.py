"""embed: a text's direction, as transformers' states have it."""
import json
import math

import pytest

from daemon import ROOT, RpcError

GOLDEN = json.loads((ROOT / "tests/data/embeddings.json").read_text())


def near(a, b):
    return len(a) == len(b) and all(abs(x - y) < 1e-4 for x, y in zip(a, b))


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_vectors_are_those_of_transformers_at_any_tp(start, tp):
    with start("--tp", tp).client() as client:
        for pooling in ("mean", "last"):
            got = client.call("embed", input=[c["input"] for c in GOLDEN], pooling=pooling)
            for vector, case in zip(got["vectors"], GOLDEN):
                assert near(vector, case[pooling])


def test_a_vector_depends_on_its_text_alone(client):
    texts = [c["input"] for c in GOLDEN]
    together = client.call("embed", input=texts)
    alone = [client.call("embed", input=t) for t in texts]
    assert together["vectors"] == [a["vectors"][0] for a in alone]
    assert together["usage"]["prompt_tokens"] == sum(a["usage"]["prompt_tokens"] for a in alone)
    live = client.send("generate", {"prompt": texts[1], "max_tokens": 100, "ignore_eos": True})
    assert client.call("embed", input=texts)["vectors"] == together["vectors"]
    client.result(live)
    assert client.call("embed", input=texts)["vectors"] == together["vectors"]  # with a warm cache
    assert all(math.isclose(sum(x * x for x in v), 1, abs_tol=1e-5) for v in together["vectors"])


def test_token_ids_are_taken_as_they_are(client):
    ids = client.call("tokenize", text="hello", special=True)["tokens"]
    assert client.call("embed", input=ids)["vectors"] == client.call("embed", input="hello")["vectors"]
    assert len(client.call("embed", input=[ids, ids])["vectors"]) == 2


@pytest.mark.parametrize("params, field", [
    ({}, "input"), ({"input": 3}, "input"), ({"input": ["a", 3]}, "input"), ({"input": [["x"]]}, "input[0]"),
    ({"input": []}, "input"), ({"input": "a", "pooling": "max"}, "pooling"), ({"input": "a", "model": "x"}, "model"),
])
def test_a_wrong_parameter_is_named(client, params, field):
    with pytest.raises(RpcError) as caught:
        client.call("embed", **params)
    assert caught.value.code == -32602 and caught.value.data["field"] == field


def test_a_text_over_the_context_is_refused(client):
    with pytest.raises(RpcError) as caught:
        client.call("embed", input="word " * 2000)
    assert caught.value.code == -32002


def test_a_list_longer_than_the_queue_is_done_a_part_at_a_time(start):
    """It never was: the engine has 4 + 8 requests at most, and 'try again later' was said each time."""
    daemon = start("--slots", 4, "--max-queue", 8)
    texts = [f"text {i}" for i in range(100)]
    with daemon.client() as client, daemon.client() as other:
        live = client.send("embed", {"input": texts})
        assert other.call("embed", input="one more")["vectors"]  # half of the queue is for others
        got = client.result(live)
        assert got["vectors"] == [client.call("embed", input=t)["vectors"][0] for t in texts]
        assert got["usage"]["prompt_tokens"] > len(texts)
        texts[90] = "word " * 2000
        with pytest.raises(RpcError) as caught:
            client.call("embed", input=texts)
        assert caught.value.code == -32002
        assert client.call("status")["queue"] == 0
