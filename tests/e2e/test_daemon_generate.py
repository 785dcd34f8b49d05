"""generate, score, tokenize, detokenize through the socket: parameters, limits, results."""
import math

import pytest

from daemon import RpcError, TINY

PROMPT = "Once upon a time"


def refused(client, code, method="generate", **params):
    with pytest.raises(RpcError) as e:
        client.call(method, **params)
    assert e.value.code == code
    return e.value


def test_greedy_is_the_same_alone_and_streamed_and_in_company(tpd, client):
    params = {"prompt": PROMPT, "temperature": 0, "max_tokens": 20}
    want = client.call("generate", **params)
    assert client.call("generate", **params, stream=True)["tokens"] == want["tokens"]
    ids = [client.send("generate", params) for _ in range(5)]
    assert all(client.result(id)["tokens"] == want["tokens"] for id in ids)
    assert client.call("generate", **{**params, "temperature": 1e-4, "top_p": 1e-4})["tokens"] == \
        want["tokens"]
    assert client.call("generate", **params, top_p=0.9, top_k=3)["tokens"] == want["tokens"]


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_exactly_so_many_tokens(client, n):
    result = client.call("generate", prompt="a", max_tokens=n, ignore_eos=True)
    assert len(result["tokens"]) == n == result["usage"]["completion_tokens"]
    assert result["finish_reason"] == "length"


def test_to_the_context_end_and_no_further(client):
    ctx = client.call("status")["ctx"]
    for params in [{}, {"max_tokens": -1}, {"max_tokens": 100000}]:
        result = client.call("generate", prompt=[5] * (ctx - 9), ignore_eos=True, **params)
        assert result["finish_reason"] == "length"
        usage = result["usage"]
        assert usage["prompt_tokens"] + usage["completion_tokens"] in (ctx, ctx + 1)
    refused(client, -32602, prompt="a", max_tokens=-2)


def test_a_prompt_over_the_context_fails_alone(client):
    ctx = client.call("status")["ctx"]
    good = client.send("generate", {"prompt": PROMPT, "max_tokens": 20, "ignore_eos": True})
    for n in [ctx, ctx + 1, 10 * ctx]:
        e = refused(client, -32002, prompt=[5] * n)
        assert e.data["prompt_tokens"] == n and e.data["context"] == ctx
    refused(client, -32002, prompt="word " * 100000)
    assert len(client.result(good)["tokens"]) == 20


def test_the_seed_decides(client):
    params = {"prompt": PROMPT, "max_tokens": 30, "temperature": 2.0, "ignore_eos": True}
    a, b = client.call("generate", **params, seed=1), client.call("generate", **params, seed=2)
    assert a["tokens"] != b["tokens"]
    assert client.call("generate", **params, seed=1)["tokens"] == a["tokens"]
    drawn = client.call("generate", **params)
    assert client.call("generate", **params, seed=drawn["seed"])["tokens"] == drawn["tokens"]
    assert client.call("generate", **params, seed=-1)["seed"] == -1


def test_n_choices_have_seeds_in_a_row(client):
    params = {"prompt": PROMPT, "max_tokens": 12, "temperature": 1.5, "ignore_eos": True}
    id = client.send("generate", {**params, "n": 3, "seed": 40, "stream": True})
    result = client.result(id)
    notes = client.notifications(id)
    assert [c["seed"] for c in result["choices"]] == [40, 41, 42]
    assert result["text"] == result["choices"][0]["text"]
    assert result["usage"]["completion_tokens"] == 36
    for i, choice in enumerate(result["choices"]):
        assert choice["index"] == i
        assert "".join(n["params"]["text"] for n in notes if n["params"]["index"] == i) == \
            choice["text"]
        assert client.call("generate", **params, seed=40 + i)["tokens"] == choice["tokens"]


def test_stop_strings_are_cut_and_named(client):
    whole = client.call("generate", prompt=PROMPT, temperature=0, max_tokens=40)["text"]
    stop = whole[10:15]
    id = client.send("generate", {"prompt": PROMPT, "temperature": 0, "max_tokens": 40,
                                  "stop": ["never there", stop], "stream": True})
    result = client.result(id)
    assert result["text"] == whole[:whole.index(stop)]
    assert (result["finish_reason"], result["stop"]) == ("stop", stop)
    assert "".join(n["params"]["text"] for n in client.notifications(id)) == result["text"]
    for bad in ["", ["a", ""], ["x"] * 17, "y" * 2000, "a\0b"]:
        assert refused(client, -32602, prompt="a", stop=bad).data["field"].startswith("stop")


def test_stop_token_ids_end_it_without_their_text(client):
    whole = client.call("generate", prompt=PROMPT, temperature=0, max_tokens=8)
    token = whole["tokens"][5]
    first = whole["tokens"].index(token)
    result = client.call("generate", prompt=PROMPT, temperature=0, max_tokens=8,
                         stop_token_ids=[token])
    assert result["finish_reason"] == "stop" and result["stop"] == token
    assert whole["text"].startswith(result["text"]) and result["text"] != whole["text"]
    assert len(result["tokens"]) == first + 1


def test_either_end_token_ends_it_and_ignore_eos_goes_on(client):
    info = client.call("model.info")
    assert len(info["eos"]) > 1  # generation_config lists both of them
    for eos in info["eos"]:
        bias = {str(eos): 1000}
        result = client.call("generate", prompt=PROMPT, max_tokens=20, logit_bias=bias)
        assert result["finish_reason"] == "stop" and result["stop"] == eos
        assert result["text"] == ""
        result = client.call("generate", prompt=PROMPT, max_tokens=20, logit_bias=bias,
                             ignore_eos=True)
        assert result["tokens"] == [eos] * 20 and result["finish_reason"] == "length"


@pytest.mark.parametrize("ids", [[-1], [352], [5, 2147483648], [2**62], [-2**63]])
def test_a_token_id_out_of_range_is_named(client, ids):
    e = refused(client, -32602, prompt=ids)
    assert "token id out of range" in e.message and str(ids[-1]) in e.message
    assert e.data["field"] == f"prompt[{len(ids) - 1}]"


@pytest.mark.parametrize("prompt", [[1.5], ["a"], [None], [[1]], [True], {}, 5, None, True])
def test_a_prompt_of_another_kind_is_refused(client, prompt):
    assert refused(client, -32602, prompt=prompt).data["field"].startswith("prompt")


def test_an_empty_prompt_starts_from_bos_and_no_ids_is_an_error(client):
    bos = client.call("model.info")["bos"]
    params = {"temperature": 0, "max_tokens": 5}
    assert client.call("generate", prompt="", **params)["tokens"] == \
        client.call("generate", prompt=[bos], **params)["tokens"]
    assert "empty" in refused(client, -32602, prompt=[]).message


def test_every_number_is_finite_and_every_text_whole(client):
    result = client.call("generate", prompt=PROMPT, max_tokens=100, temperature=100.0, seed=3,
                         ignore_eos=True, logprobs=20, repetition_penalty=1.2, stream=True)
    assert len(result["tokens"]) == 100
    result["text"].encode("utf-8")
    for entry in result["logprobs"]:
        assert math.isfinite(entry["logprob"]) and len(entry["top"]) == 20
        assert entry["token"].encode() == bytes(entry["bytes"]) or "\ufffd" in entry["token"]
        assert entry["top"] == sorted(entry["top"], key=lambda t: -t["logprob"])


def test_echo_gives_the_prompt_and_its_logprobs(client):
    plain = client.call("generate", prompt=PROMPT, temperature=0, max_tokens=5, logprobs=1)
    echo = client.call("generate", prompt=PROMPT, temperature=1, top_k=1, max_tokens=5, logprobs=1,
                       echo=True)
    assert echo["text"] == PROMPT + plain["text"] and echo["tokens"] == plain["tokens"]
    prompt = echo["prompt_logprobs"]
    assert prompt[0]["logprob"] is None
    assert [p["id"] for p in prompt] == client.call("tokenize", text=PROMPT, special=True)["tokens"]
    score = client.call("score", completion=PROMPT)
    assert [p["logprob"] for p in prompt[1:]] == \
        pytest.approx([t["logprob"] for t in score["tokens"]], abs=1e-5)
    several = client.call("generate", prompt=PROMPT, temperature=0, max_tokens=5, logprobs=1,
                          echo=True, n=3)
    assert several["prompt_logprobs"] == prompt
    for choice in several["choices"]:
        assert choice["text"] == echo["text"] and "prompt_logprobs" not in choice
        assert len(choice["logprobs"]) == 5
    only = client.call("generate", prompt=PROMPT, echo=True, max_tokens=0)
    assert only["text"] == PROMPT and only["tokens"] == []


def test_a_long_result_is_whole_and_may_be_cancelled_by_leaving(tpd, client):
    """Long enough to be written beside the loop."""
    params = {"prompt": PROMPT, "temperature": 0, "max_tokens": 100, "logprobs": 20, "n": 8,
              "ignore_eos": True}
    short = client.call("generate", **{**params, "n": 1})
    result = client.call("generate", **params)
    assert [c["logprobs"] for c in result["choices"]] == [short["logprobs"]] * 8
    for _ in range(5):
        with tpd.client() as other:
            other.send("generate", params)
            client.call("ping")
    assert client.call("generate", **params)["tokens"] == short["tokens"]


@pytest.mark.parametrize("params", [
    {"top_p": 0}, {"top_k": -1}, {"top_k": 0}, {"top_p": 1.0}, {"top_k": 1000000},
    {"temperature": 0.0001, "top_p": 0.0001}, {"temperature": 1000}, {"min_p": 1},
    {"repetition_penalty": 100}, {"presence_penalty": 100, "frequency_penalty": -100},
    {"penalty_last_n": 0}, {"logit_bias": {"5": -1000, "6": 1000}}, {"speculative": "auto"},
    {"top_k": 1, "logprobs": 5}, {"max_tokens": None, "prompt": [5] * 250}])
def test_extreme_values_work(client, params):
    result = client.call("generate", **{"prompt": "a", "max_tokens": 4, "ignore_eos": True, **params})
    assert 1 <= len(result["tokens"]) <= 10


@pytest.mark.parametrize("params", [
    {"logit_bias": {"x": 1}}, {"logit_bias": {"99999": 1}}, {"logit_bias": {"5": "a"}},
    {"logit_bias": {"05": 1}}, {"logit_bias": {" 5": 1}}, {"speculative": "off\0x"},
    {"stop_token_ids": [3] * 4097}, {"logit_bias": {str(i): 1 for i in range(4097)}},
    {"logit_bias": {"5": 1e9}}, {"stop_token_ids": [-1]}, {"stop_token_ids": [352]}, {"n": 0},
    {"n": 65}, {"temperature": -0.1}, {"repetition_penalty": 0}, {"seed": 1.5}])
def test_impossible_values_are_named(client, params):
    e = refused(client, -32602, prompt="a", **params)
    assert e.data["field"].startswith(next(iter(params)))
    assert e.data["expected"] and "got" in e.data


def test_tokenize_and_detokenize_are_each_other_s_reverse(client):
    text = "The grey fox has 12 \u00e9\u4e2d\U0001F600 <|im_end|>"
    plain = client.call("tokenize", text=text)
    special = client.call("tokenize", text=text, special=True)
    assert special["tokens"][1:] == plain["tokens"]
    assert len(plain["pieces"]) == len(plain["tokens"])
    assert client.call("detokenize", tokens=plain["tokens"])["text"] == text
    assert "<|im_end|>" not in client.call("detokenize", tokens=plain["tokens"],
                                           special=False)["text"]
    assert client.call("tokenize", text="") == {"tokens": [], "pieces": []}
    assert client.call("detokenize", tokens=[]) == {"text": ""}
    assert refused(client, -32602, "detokenize", tokens=[10**6]).data["field"] == "tokens[0]"


def test_score_sums_its_tokens(client):
    one = client.call("score", prompt=PROMPT, completion=" a small boat")
    assert one["n"] == len(one["tokens"]) > 0
    total = sum(t["logprob"] for t in one["tokens"])
    assert one["sum"] == pytest.approx(total) and one["mean"] == pytest.approx(total / one["n"])
    assert one["perplexity"] == pytest.approx(math.exp(-one["mean"]))
    assert "".join(t["token"] for t in one["tokens"]) == " a small boat"
    prompt = client.call("tokenize", text=PROMPT, special=True)["tokens"]
    completion = [t["id"] for t in one["tokens"]]
    same = client.call("score", prompt=prompt, completion=completion)
    assert same["sum"] == pytest.approx(one["sum"], abs=1e-4)
    alone = client.call("score", completion=PROMPT + " a small boat")
    assert alone["sum"] == pytest.approx(
        one["sum"] + client.call("score", completion=PROMPT)["sum"], abs=1e-3)
    assert client.call("score", prompt="", completion=PROMPT) == \
        client.call("score", completion=PROMPT)


def test_score_of_nothing_is_refused(client):
    for params in [{"completion": ""}, {"completion": []}, {"completion": [5]},
                   {"prompt": "a", "completion": ""}]:
        assert refused(client, -32602, "score", **params).data["field"] == "completion"
    ctx = client.call("status")["ctx"]
    refused(client, -32002, "score", completion=[5] * (ctx + 1))
    assert client.call("score", completion=[5] * ctx)["n"] == ctx - 1


def test_the_published_model_gives_its_golden_tokens(start, stories):
    import json
    lines = (stories.parent / "stories260K.greedy.jsonl").read_text().splitlines()
    daemon = start("--tp", 2, model=stories)
    with daemon.client() as client:
        for case in map(json.loads, lines):
            until = case["first_index_margin_lt_0.02"]
            want = case["greedy_ids"][:until]
            got = client.call("generate", prompt=case["prompt"], temperature=0,
                              max_tokens=len(case["greedy_ids"]), ignore_eos=True)
            assert got["tokens"][:len(want)] == want, case["id"]


def test_the_published_model_gives_its_golden_losses(start, stories):
    import json
    lines = (stories.parent / "stories260K.loss.jsonl").read_text().splitlines()
    daemon = start(model=stories)
    with daemon.client() as client:
        for case in map(json.loads, lines):
            tokens = client.call("score", prompt=case["ids"][:1],
                                 completion=case["ids"][1:])["tokens"]
            assert [-t["logprob"] for t in tokens] == pytest.approx(case["nll"], abs=1e-4)


def test_more_continuations_than_the_queue_holds(start):
    with start("--slots", 2, "--max-queue", 2).client() as client:
        params = {"prompt": PROMPT, "max_tokens": 5, "seed": 40}
        many = client.call("generate", **params, n=20)
        assert [c["text"] for c in many["choices"]] == [
            client.call("generate", **{**params, "seed": 40 + i})["text"] for i in range(20)]
        id = client.send("generate", {**params, "n": 20, "max_tokens": 200, "ignore_eos": True, "stream": True})
        assert client.message()["method"] == "token"
        client.send("cancel", {"id": id})
        ends = [c["finish_reason"] for c in client.result(id)["choices"]]
        assert len(ends) == 20 and ends[-1] == "cancelled"
        assert client.call("generate", **params)["finish_reason"] == "length"
