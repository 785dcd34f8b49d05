"""Structured output through the socket: whatever the model would like to say, the text is of the grammar."""
import json
import re
import subprocess

import pytest

from daemon import BUILD, ROOT, TINY, Daemon, RpcError
from test_http import Connection, ask
from validator import check, parse

ALDER = ROOT / "etc/models/alder"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "mood": {"enum": ["glad", "sad", None]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 2},
        "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
        "born": {"type": "string", "format": "date"},
    },
    "required": ["name", "age", "code", "born"],
    "additionalProperties": False,
}
FORMATS = {"type": "array", "minItems": 5, "maxItems": 5, "prefixItems": [
    {"type": "string", "format": name} for name in ("ipv4", "ipv6", "date", "time", "uuid")], "items": False}
TREE = {
    "$defs": {"node": {"type": "object", "properties": {
        "v": {"type": "integer", "minimum": -9, "maximum": 9},
        "kids": {"type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/node"}}},
        "required": ["v", "kids"], "additionalProperties": False}},
    "$ref": "#/$defs/node",
}
MIXED = {"type": "object", "properties": {
    "a": {"anyOf": [{"type": "boolean"}, {"type": "number", "minimum": 0, "maximum": 2}]},
    "b": {"type": "array", "prefixItems": [{"const": 1}, {"type": ["null", "integer"]}], "items": False},
    "c": {"type": "string", "format": "uuid"}, "d": {"type": "string", "format": "date-time"},
    "e": {"type": "string", "format": "email"}},
    "additionalProperties": False}


@pytest.fixture(scope="module", params=[(TINY, 1), (TINY, 2), (ALDER, 1)], ids=["tiny1", "tiny2", "alder"])
def served(request, tmp_path_factory):
    model, tp = request.param
    daemon = Daemon(tmp_path_factory.mktemp("grammar"), model, "--tp", tp)
    with daemon.client() as client:
        yield client
    assert daemon.stop() == 0


@pytest.mark.parametrize("schema", [PERSON, TREE, MIXED, FORMATS],
                         ids=["person", "tree", "mixed", "formats"])
def test_texts_validate_at_every_temperature(served, schema):
    whole = 0
    for seed, temperature in enumerate([0, 0.7, 1, 1.5, 3, 1000]):
        result = served.call("generate", prompt="Who?", json_schema=schema, temperature=temperature,
                             seed=seed, max_tokens=400)
        if result["finish_reason"] == "length":
            continue
        assert result["finish_reason"] == "stop"
        check(parse(result["text"]), schema)
        whole += 1
    assert whole >= 3


def test_greedy_seeded_streamed_and_chosen_texts_are_the_same(served):
    params = {"prompt": "Who?", "json_schema": PERSON, "max_tokens": 300, "seed": 5}
    want = served.call("generate", **params)
    id = served.send("generate", {**params, "stream": True})
    streamed = served.result(id)
    pieces = "".join(m["params"]["text"] for m in served.notifications(id))
    assert streamed["tokens"] == want["tokens"] and pieces == want["text"] == streamed["text"]
    many = served.call("generate", **params, n=3)["choices"]
    assert many[0]["tokens"] == want["tokens"]
    ids = [served.send("generate", {**params, "seed": 5 + i}) for i in range(3)]
    assert [served.result(id)["tokens"] for id in ids] == [c["tokens"] for c in many]
    for choice in many:
        if choice["finish_reason"] == "stop":
            check(parse(choice["text"]), PERSON)


def test_guesses_change_nothing(served):
    """speculative: what is guessed goes through the same masks."""
    schema = {"type": "array", "items": {"enum": ["left left", "right"]}, "minItems": 12, "maxItems": 12}
    for params in ({"temperature": 0}, {"seed": 4, "temperature": 0.8}):
        params.update(prompt='["left left", "left left", "right", "left left",', json_schema=schema)
        want = served.call("generate", **params)
        got = served.call("generate", **params, speculative="ngram")
        assert got["tokens"] == want["tokens"] and got["text"] == want["text"]
        assert want["finish_reason"] == "stop"
        check(parse(got["text"]), schema)


def test_a_grammar_says_all_there_is_to_say(served):
    grammar = 'root ::= ("yes" | "no") " " [0-9]{3} "!"'
    for seed in range(5):
        result = served.call("generate", prompt="Is it?", grammar=grammar, seed=seed, temperature=2)
        assert re.fullmatch(r"(yes|no) [0-9]{3}!", result["text"])
        assert (result["finish_reason"], result["stop"]) == ("stop", None)
    result = served.call("generate", prompt="Is it?", grammar=grammar, max_tokens=2)
    assert result["finish_reason"] == "length"


def test_the_end_token_comes_just_where_the_text_may_end(served):
    for seed in range(4):
        result = served.call("generate", prompt="a", grammar='root ::= "ab"+', seed=seed, max_tokens=60,
                             temperature=1.5)
        assert re.fullmatch(r"(ab)*a?", result["text"])
        if result["finish_reason"] == "stop":
            assert re.fullmatch(r"(ab)+", result["text"]) and result["stop"] is not None
    result = served.call("generate", prompt="a", grammar='root ::= "ab"+', max_tokens=9, ignore_eos=True)
    assert result["finish_reason"] == "length"


def test_characters_come_whole(served):
    result = served.call("generate", prompt="a", grammar='root ::= [α-ωа-я😀-😏]{5}', seed=1)
    assert re.fullmatch("[α-ωа-я😀-😏]{5}", result["text"])


def test_bias_penalties_and_probabilities_go_with_it(served):
    ids = [served.call("tokenize", text=word, special=False)["tokens"][0] for word in ("x", "y")]
    result = served.call("generate", prompt="a", grammar='root ::= [a-z]', temperature=0, logprobs=3,
                         logit_bias={str(ids[0]): 100, str(ids[1]): 50})
    assert result["text"] == "x"
    entry = result["logprobs"][0]
    assert -100 <= entry["logprob"] <= 0 and len(entry["top"]) == 3
    free = served.call("generate", prompt="a", max_tokens=1, temperature=0, logprobs=3)
    assert [t["id"] for t in entry["top"]] == [t["id"] for t in free["logprobs"][0]["top"]]
    result = served.call("generate", prompt="a", grammar='root ::= [a-c]{30}', temperature=0,
                         frequency_penalty=50, repetition_penalty=1.1)
    assert all(result["text"].count(c) >= 8 for c in "abc")


def test_stop_strings_end_it_early(served):
    result = served.call("generate", prompt="a", grammar='root ::= "one two three"', stop=" three")
    assert (result["text"], result["stop"]) == ("one two", " three")


@pytest.mark.parametrize("params, field, word", [
    ({"grammar": 'root ::= "a'}, "grammar", "line 1, column 10"),
    ({"grammar": "x ::= \"a\""}, "grammar", "root"),
    ({"grammar": 7}, "grammar", "string"),
    ({"json_schema": {"properties": {"a": {"not": {}}}}}, "json_schema", "#/properties/a/not"),
    ({"json_schema": 3}, "json_schema", "schema"),
    ({"json_schema": {}, "grammar": "root ::= \"a\""}, "grammar", "json_schema"),
])
def test_what_is_wrong_is_told(served, params, field, word):
    with pytest.raises(RpcError) as refused:
        served.call("generate", prompt="a", max_tokens=1, **params)
    assert refused.value.code == -32602 and refused.value.data["field"] == field
    assert word in str(refused.value)


def test_response_format_of_the_openai_api(tpd):
    http = Connection(tpd.socket)
    schema = {"type": "json_schema", "json_schema": {"name": "p", "strict": True, "schema": PERSON}}
    body = {"messages": [{"role": "user", "content": "Who?"}], "max_tokens": 400, "temperature": 1.2, "seed": 3}
    answer = ask(http, "POST", "/v1/chat/completions", {**body, "response_format": schema, "n": 3}).json
    whole = [c for c in answer["choices"] if c["finish_reason"] == "stop"]
    assert whole
    for choice in whole:
        check(parse(choice["message"]["content"]), PERSON)
    events = ask(http, "POST", "/v1/chat/completions", {**body, "response_format": schema, "stream": True}).events
    text = "".join(e["choices"][0]["delta"].get("content", "") for e in events)
    assert text == answer["choices"][0]["message"]["content"]
    biased = {**body, "response_format": {"type": "json_object"}, "max_tokens": 60}
    text = ask(http, "POST", "/v1/chat/completions", biased).json["choices"][0]["message"]["content"]
    assert text.startswith("{")
    said = ask(http, "POST", "/v1/completions", {"prompt": "a", "response_format": {
        "type": "json_schema", "json_schema": {"schema": {"const": [1, None]}}}}).json["choices"][0]
    assert parse(said["text"]) == [1, None] and said["finish_reason"] == "stop"
    said = ask(http, "POST", "/v1/completions", {"prompt": "a", "grammar": 'root ::= "so"'}).json["choices"][0]
    assert said["text"] == "so"
    for wrong, param in (({"type": "json_schema"}, "response_format.json_schema.schema"),
                         ({"type": "xml"}, "response_format.type"),
                         ({"type": "json_schema", "json_schema": {"schema": {"not": {}}}},
                          "response_format.json_schema.schema")):
        answer = ask(http, "POST", "/v1/chat/completions", {**body, "response_format": wrong})
        assert answer.status == 400 and answer.json["error"]["param"] == param
    http.close()


def test_tpctl_reads_the_form_from_files(tmp_path):
    daemon = Daemon(tmp_path / "d")
    (tmp_path / "s.json").write_text(json.dumps({"enum": ["red", "green"]}))
    (tmp_path / "g.gbnf").write_text('root ::= "left" | "right"\n')
    (tmp_path / "bad.json").write_text("{")

    def tpctl(*words):
        return subprocess.run([str(BUILD / "tpctl"), "--socket", str(daemon.socket), "generate", "Go", *words],
                              capture_output=True, text=True, timeout=60)
    assert json.loads(tpctl("--json-schema", str(tmp_path / "s.json")).stdout) in ("red", "green")
    assert tpctl("--grammar", str(tmp_path / "g.gbnf")).stdout in ("left", "right")
    bad = tpctl("--json-schema", str(tmp_path / "bad.json"))
    assert bad.returncode == 65 and "bad.json: line 1" in bad.stderr
    assert tpctl("--grammar", str(tmp_path / "none")).returncode == 66
    assert daemon.stop() == 0
