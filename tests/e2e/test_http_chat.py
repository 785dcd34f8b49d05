"""/v1/chat/completions: the model's own template, streams, and calls of tools."""
import json
import shutil

import pytest

from daemon import TINY

from test_http import Connection, ask, ended, upload

HELLO = [{"role": "user", "content": "hello"}]
TOOLS = [{"type": "function", "function": {"name": "sky", "description": "The weather.",
                                           "parameters": {"type": "object", "properties": {"in": {"type": "string"}}}}}]
CALL = '<tool_call>{"name":"sky","arguments":{"in":"Bo"}}</tool_call>'
# A template with a place for tools, so small that the tiny model's context holds them.
TEMPLATE = ("{{ bos_token }}{%- if tools %}{{ tools[0].function.name }};{% endif %}"
            "{%- for m in messages %}{{ m.role[0] }}:{{ m.content or '' }}"
            "{%- for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments.in }}){% endfor %}{{ '\\n' }}{% endfor %}"
            "{%- if add_generation_prompt %}a:{% endif %}")


def chat(http, **body):
    return ask(http, "POST", "/v1/chat/completions", {"messages": HELLO, "temperature": 0, **body})


@pytest.fixture
def http(tpd):
    connection = Connection(tpd.socket)
    yield connection
    connection.close()


def test_a_chat_is_what_the_method_chat_says(http, client):
    rpc = client.call("chat", messages=HELLO, temperature=0, max_tokens=12)
    answer = chat(http, max_tokens=12).json
    assert answer["object"] == "chat.completion" and answer["id"].startswith("chatcmpl-")
    choice, = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": rpc["message"]["content"], "refusal": None}
    assert choice["finish_reason"] == rpc["finish_reason"] and choice["logprobs"] is None
    assert answer["usage"]["prompt_tokens"] == rpc["usage"]["prompt_tokens"]
    assert chat(http, max_completion_tokens=12).json["choices"] == answer["choices"]


def test_a_stream_says_the_same(http):
    whole = chat(http, max_tokens=20, n=2).json["choices"]
    events = chat(http, max_tokens=20, n=2, stream=True, stream_options={"include_usage": True}).events
    assert events.pop()["usage"]["completion_tokens"] > 0
    for choice in whole:
        mine = [e["choices"][0] for e in events if e["choices"][0]["index"] == choice["index"]]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(c["delta"].get("content", "") for c in mine) == choice["message"]["content"]
        assert [c["finish_reason"] for c in mine] == [None] * (len(mine) - 1) + [choice["finish_reason"]]


def test_log_probabilities_come_with_their_tokens(http):
    whole = chat(http, max_tokens=6, logprobs=True, top_logprobs=3).json["choices"][0]["logprobs"]["content"]
    assert len(whole) == 6 and all(len(t["top_logprobs"]) == 3 for t in whole)
    assert all(bytes(t["bytes"]).decode(errors="replace") == t["token"] for t in whole)
    events = chat(http, max_tokens=6, logprobs=True, top_logprobs=3, stream=True).events
    assert [t for e in events for t in e["choices"][0]["logprobs"]["content"]] == whole
    plain = chat(http, max_tokens=6, logprobs=True).json["choices"][0]["logprobs"]["content"]
    assert [t["token"] for t in plain] == [t["token"] for t in whole] and all(t["top_logprobs"] == [] for t in plain)


def test_content_may_come_as_parts(http):
    parts = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    assert chat(http, messages=parts, max_tokens=5).json["choices"] == chat(http, max_tokens=5).json["choices"]


@pytest.mark.parametrize("body, param", [
    ({"messages": []}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"messages": [{"content": "x"}]}, "messages[0]"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
    ({"tools": {}}, "tools"),
    ({"tools": [{"type": "function"}]}, "tools[0]"),
    ({"tool_choice": "perhaps"}, "tool_choice"),
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": 3}, "logprobs"),
    ({"max_token": 3}, "max_token"),
])
def test_a_wrong_parameter_is_named(http, body, param):
    answer = chat(http, **body)
    assert answer.status == 400 and answer.error["param"] == param, answer.body


def test_a_model_without_a_template_says_so(start, tmp_path):
    model = tmp_path / "bare"
    shutil.copytree(TINY, model)
    config = json.loads((model / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    answer = chat(Connection(start(model=model).socket))
    assert answer.status == 404 and "chat_template" in answer.error["message"]


def test_tools_that_the_template_cannot_show_are_refused(start, tmp_path):
    plain = tmp_path / "plain.jinja"
    plain.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    http = Connection(start("--chat-template", plain).socket)
    answer = chat(http, tools=TOOLS)
    assert answer.status == 400 and answer.error["param"] == "tools"
    assert chat(http, tools=TOOLS, tool_choice="none").status == 200
    assert chat(http, tools=[]).status == 200


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "sum"}}], ids=str)
def test_a_call_may_be_asked_for_whatever_the_model_would_say(start, tmp_path, choice):
    template = tmp_path / "tools.jinja"
    template.write_text(TEMPLATE)
    http = Connection(start("--chat-template", template).socket)
    number = {"type": "integer", "minimum": 0, "maximum": 9}
    tools = TOOLS + [{"type": "function", "function": {"name": "sum", "parameters": {
        "type": "object", "properties": {"a": number, "b": number}, "required": ["a", "b"], "additionalProperties": False}}}]
    for seed in range(3):
        body = {"tools": tools, "tool_choice": choice, "temperature": 1, "seed": seed, "max_tokens": 200}
        got, = chat(http, **body).json["choices"]
        if got["finish_reason"] == "length":
            continue  # a string that a random model does not end
        assert got["finish_reason"] == "tool_calls" and got["message"]["content"] is None
        call = got["message"]["tool_calls"][0]["function"]
        arguments = json.loads(call["arguments"])
        if choice != "required":
            assert call["name"] == "sum"
        if call["name"] == "sum":
            assert set(arguments) == {"a", "b"} and all(v in range(10) for v in arguments.values())
        deltas = [e["choices"][0]["delta"] for e in chat(http, **body, stream=True).events]
        streamed = [c["function"] for d in deltas for c in d.get("tool_calls", [])]
        assert streamed == [call]


@pytest.mark.parametrize("choice, param", [
    ({"type": "function", "function": {"name": "moon"}}, "tool_choice.function.name"), ({"type": "function"}, "tool_choice"),
    ("any", "tool_choice")])
def test_a_choice_of_no_tool_is_refused(http, choice, param):
    answer = chat(http, tools=TOOLS, tool_choice=choice)
    assert answer.status == 400 and answer.error["param"] == param


def test_json_is_what_response_format_asks_for(http):
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
              "required": ["ok", "n"], "additionalProperties": False}
    asked = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
    for seed in range(3):
        choice, = chat(http, response_format=asked, temperature=1, seed=seed).json["choices"]
        value = json.loads(choice["message"]["content"])
        assert choice["finish_reason"] == "stop" and set(value) == {"ok", "n"} and 0 <= value["n"] <= 99
    some, = chat(http, response_format={"type": "json_object"}, max_tokens=30).json["choices"]
    assert some["message"]["content"].lstrip().startswith("{")
    wrong = chat(http, response_format={"type": "json_schema", "json_schema": {"schema": {"type": "color"}}})
    assert wrong.status == 400


def test_a_model_that_learnt_to_call_a_tool_calls_it(start, tmp_path):
    template = tmp_path / "tools.jinja"
    template.write_text(TEMPLATE)
    http = Connection(start("--chat-template", template).socket)
    question = [{"role": "user", "content": "sky?"}]
    record = {"prompt": "sky;u:sky?\na:", "completion": CALL}
    file = upload(http, json.dumps(record).encode()).json
    job = ask(http, "POST", "/v1/fine_tuning/jobs", {"training_file": file["id"], "tpd": {
        "seq_len": 128, "epochs": 100, "lr": 0.01, "batch_size": 1, "schedule": "constant", "eval_fraction": 0}}).json
    model = ended(http, job)["fine_tuned_model"]
    assert model
    body = {"messages": question, "tools": TOOLS, "model": model, "max_tokens": 80}
    choice, = chat(http, **body).json["choices"]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    call, = choice["message"]["tool_calls"]
    assert call["type"] == "function" and call["id"].startswith("call_")
    assert call["function"] == {"name": "sky", "arguments": '{"in":"Bo"}'}
    events = chat(http, **body, stream=True).events
    deltas = [e["choices"][0]["delta"] for e in events]
    assert not any(d.get("content") for d in deltas)
    streamed, = [c for d in deltas for c in d.get("tool_calls", [])]
    assert streamed["index"] == 0 and streamed["function"] == call["function"]
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"
    # What the tool said goes back into the conversation.
    more = question + [choice["message"], {"role": "tool", "tool_call_id": call["id"], "content": "blue"}]
    assert chat(http, messages=more, tools=TOOLS, model=model, max_tokens=4).status == 200
