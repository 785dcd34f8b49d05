"""Conversations: the model's own template by `chat` and `template`, and what jobs learn of messages."""
import json
import subprocess

import pytest

from daemon import BUILD, TINY, RpcError

HI = [{"role": "user", "content": "Hi"}]


def offline(line, path=TINY, *flags):
    done = subprocess.run([str(BUILD / "tpd"), "template", str(path), *flags], text=True,
                          input=json.dumps(line) + "\n", capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_template_is_what_the_model_reads(client):
    result = client.call("template", messages=HI)
    assert result["text"] == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert result["text"] == offline({"messages": HI, "add_generation_prompt": True})["text"]
    assert result["tokens"] == client.call("tokenize", text=result["text"])["tokens"]
    assert client.call("template", messages=HI, add_generation_prompt=False)["text"] \
        == "<|im_start|>user\nHi<|im_end|>\n"


def test_chat_answers_as_generate_does_on_the_same_tokens(client):
    prompt = client.call("template", messages=HI)["tokens"]
    said = client.call("chat", messages=HI, temperature=0, max_tokens=12)
    same = client.call("generate", prompt=prompt, temperature=0, max_tokens=12)
    assert said["text"] == same["text"] and said["tokens"] == same["tokens"]
    assert said["message"] == {"role": "assistant", "content": said["text"]}
    assert said["usage"]["prompt_tokens"] == len(prompt)


def test_chat_streams_and_its_pieces_are_the_text(client):
    id = client.send("chat", {"messages": HI, "temperature": 0, "max_tokens": 12, "stream": True})
    result = client.result(id)
    pieces = "".join(m["params"]["text"] for m in client.notifications(id))
    assert pieces == result["text"] == result["message"]["content"]


def test_an_answer_ends_where_the_template_ends_a_turn(client):
    end = client.call("tokenize", text="<|im_end|>")["tokens"]
    assert len(end) == 1
    said = client.call("chat", messages=HI, logit_bias={str(end[0]): 1000}, max_tokens=5)
    assert (said["text"], said["finish_reason"], said["stop"]) == ("", "stop", end[0])
    said = client.call("chat", messages=HI, logit_bias={str(end[0]): 1000}, max_tokens=5,
                       ignore_eos=True)
    assert said["finish_reason"] == "length" and said["tokens"] == end * 5


def test_the_next_turn_finds_the_last_one_in_the_cache(client):
    talk = [{"role": "user", "content": "Tell me about the sea, the hills and the long way home, " * 4}]
    said = client.call("chat", messages=talk, temperature=0, max_tokens=8)
    talk += [said["message"], {"role": "user", "content": "And then?"}]
    again = client.call("chat", messages=talk, temperature=0, max_tokens=8)
    assert again["usage"]["cached_tokens"] > 0.5 * said["usage"]["prompt_tokens"]


@pytest.mark.parametrize("messages, field", [
    ([], "messages"), ("Hi", "messages"), ([1], "messages[0]"), ([{"content": "a"}], "messages[0]"),
    ([{"role": "user"}], "messages[0].content"), ([{"role": "user", "content": 7}], "messages[0].content"),
    (HI + [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[1].content"),
])
def test_messages_that_are_none_are_refused(client, messages, field):
    with pytest.raises(RpcError) as refused:
        client.call("chat", messages=messages, max_tokens=1)
    assert refused.value.code == -32602 and refused.value.data["field"] == field


def test_contents_of_parts_and_null_members_are_taken(client):
    parts = [{"role": "user", "name": None, "content": [{"type": "text", "text": "one"},
                                                        {"type": "text", "text": "two"}]}]
    assert client.call("template", messages=parts)["text"].startswith(
        "<|im_start|>user\none\ntwo<|im_end|>")


def test_a_template_can_be_chosen(start, tmp_path):
    own = tmp_path / "own.jinja"
    own.write_text("{% if messages|length > 1 %}{{ raise_exception('one at a time') }}{% endif %}\n"
                   "{{ bos_token }}[{{ style|default('plain') }}] {{ messages[0].content }}")
    with start(f"--chat-template={own}").client() as client:
        made = client.call("template", messages=HI, chat_template_kwargs={"style": "odd"})
        assert made["text"] == "<s>[odd] Hi"
        with pytest.raises(RpcError) as refused:
            client.call("chat", messages=HI * 2)
        assert "one at a time" in refused.value.message and refused.value.data["line"] == 1
    with start("--chat-template=zephyr").client() as client:
        assert client.call("template", messages=HI)["text"] == "<|user|>\nHi<|im_end|>\n<|assistant|>\n"


def test_a_model_without_a_template_says_what_to_do(start):
    with start(model=TINY.parent / "tiny-spm").client() as client:
        with pytest.raises(RpcError) as refused:
            client.call("chat", messages=HI)
        assert refused.value.code == -32003 and "chat_template" in refused.value.message


def test_tools_reach_the_template(start, tmp_path):
    own = tmp_path / "tools.jinja"
    own.write_text("{% for t in tools or [] %}{{ t|tojson }}\n{% endfor %}{% for m in messages %}{{ m.role }}:"
                   "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.arguments.x }}"
                   "{% endfor %};{% endfor %}")
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 5}"}}
    talk = HI + [{"role": "assistant", "content": None, "tool_calls": [call]},
                 {"role": "tool", "tool_call_id": "c", "content": "ok"}]
    with start(f"--chat-template={own}").client() as client:
        text = client.call("template", messages=talk, tools=[tool])["text"]
        assert text == json.dumps(tool) + "\nuser:Hi;assistant:5;tool:ok;"


def test_offline_template_tells_of_faults(tmp_path):
    own = tmp_path / "t.jinja"
    own.write_text("a\n{{ raise_exception('no') }}")
    assert offline({"messages": []}, own) == {"error": "TemplateError: no", "line": 2, "column": 19}
    own.write_text("{% if %}")
    done = subprocess.run([str(BUILD / "tpd"), "template", str(own)], input="", text=True,
                          capture_output=True, timeout=60)
    assert done.returncode == 65 and str(own) in done.stderr and "line 1" in done.stderr
    assert done.stderr.count("\n") == 1
