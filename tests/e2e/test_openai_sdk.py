"""The official OpenAI SDK, unchanged, over TCP and over the Unix socket. It is a test dependency of its
own: found in $TPD_OPENAI_PYTHON or in build/openai-venv, which tests/openai_venv.sh makes when it can;
skipped with a word where there is none."""
import json
import os
import re
import subprocess

import pytest

from daemon import ANSWER_S, BUILD, ROOT, TINY

PYTHON = os.environ.get("TPD_OPENAI_PYTHON", str(BUILD / "openai-venv/bin/python"))

# Run by the SDK's own interpreter: argv is the base URL, the socket ("" for TCP) and the model.
SCRIPT = r'''
import json, sys, time
import httpx, openai

base, uds, base_model = sys.argv[1:4]
http = httpx.Client(transport=httpx.HTTPTransport(uds=uds)) if uds else None
client = openai.OpenAI(base_url=base, api_key="secret", http_client=http, max_retries=0, timeout=60)
LONG = {"ignore_eos": True}
hello = [{"role": "user", "content": "hello"}]

# models
assert [m.id for m in client.models.list()][0] == base_model
assert client.models.retrieve(base_model).owned_by == "tpd"

# completions
whole = client.completions.create(model=base_model, prompt="hello", max_tokens=8, temperature=0, logprobs=2)
assert len(whole.choices[0].logprobs.tokens) == 8
stream = client.completions.create(model=base_model, prompt="hello", max_tokens=8, temperature=0, stream=True)
assert "".join(e.choices[0].text for e in stream) == whole.choices[0].text
several = client.completions.create(model=base_model, prompt=["hello", "the cat"], n=2, max_tokens=4, temperature=0,
                                    extra_body={"top_k": 5})
assert len(several.choices) == 4

# chat
answer = client.chat.completions.create(model=base_model, messages=hello, max_tokens=8, temperature=0, extra_body=LONG,
                                        logprobs=True, top_logprobs=2)
assert answer.choices[0].message.role == "assistant" and len(answer.choices[0].logprobs.content) == 8
assert answer.usage.total_tokens == answer.usage.prompt_tokens + 8
text, usage = "", None
for event in client.chat.completions.create(model=base_model, messages=hello, max_tokens=8, temperature=0, extra_body=LONG,
                                            stream=True, stream_options={"include_usage": True}):
    text += (event.choices[0].delta.content or "") if event.choices else ""
    usage = event.usage or usage
assert text == answer.choices[0].message.content and usage.completion_tokens == 8
ended = client.chat.completions.create(model=base_model, messages=hello, temperature=0)
with client.chat.completions.stream(model=base_model, messages=hello, temperature=0) as events:
    for _ in events:
        pass
    assert ended.choices[0].finish_reason == "length" or \
        events.get_final_completion().choices[0].message.content == ended.choices[0].message.content

# structured output, and a call that must be made
schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"],
          "additionalProperties": False}
held = client.chat.completions.create(model=base_model, messages=hello, temperature=0, response_format={
    "type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": schema}})
assert 0 <= json.loads(held.choices[0].message.content)["n"] <= 9

tools = [{"type": "function", "function": {"name": "dice", "description": "Throws one.", "parameters": {
    "type": "object", "properties": {"sides": {"type": "integer", "minimum": 2, "maximum": 9}}, "required": ["sides"],
    "additionalProperties": False}}}]
must = dict(model=base_model, messages=hello, tools=tools, tool_choice="required", temperature=0)
called = client.chat.completions.create(**must).choices[0]
assert called.finish_reason == "tool_calls" and called.message.content is None
call = called.message.tool_calls[0]
assert call.function.name == "dice" and 2 <= json.loads(call.function.arguments)["sides"] <= 9
with client.chat.completions.stream(**must) as events:
    for _ in events:
        pass
    assert events.get_final_completion().choices[0].message.tool_calls[0].function.arguments == call.function.arguments
reply = client.chat.completions.create(model=base_model, temperature=0, max_tokens=4, tools=tools, messages=hello + [
    called.message, {"role": "tool", "tool_call_id": call.id, "content": "3"}])
assert reply.choices[0].message.role == "assistant"

# embeddings (asked for as base64 by the SDK)
vectors = client.embeddings.create(model=base_model, input=["hello", "the cat"])
assert abs(sum(x * x for x in vectors.data[0].embedding) - 1) < 1e-4

# files and fine-tuning jobs, to an adapter that answers
records = b"".join(json.dumps({"prompt": "hi", "completion": " there you are"}).encode() + b"\n" for _ in range(40))
file = client.files.create(file=("train.jsonl", records), purpose="fine-tune")
assert client.files.retrieve(file.id).bytes == len(records) and client.files.content(file.id).read() == records
job = client.fine_tuning.jobs.create(model=base_model, training_file=file.id, suffix="sdk",
                                     hyperparameters={"n_epochs": 3}, extra_body={"tpd": {"seq_len": 64}})
while job.status not in ("succeeded", "failed", "cancelled"):
    time.sleep(0.05)
    job = client.fine_tuning.jobs.retrieve(job.id)
assert job.status == "succeeded", job.error
assert job.id in [j.id for j in client.fine_tuning.jobs.list()]
assert any(e.type == "metrics" for e in client.fine_tuning.jobs.list_events(job.id, limit=100))
assert job.fine_tuned_model in [m.id for m in client.models.list()]
assert client.completions.create(model=job.fine_tuned_model, prompt="hi", max_tokens=4).choices[0].text
assert client.files.delete(file.id).deleted

# errors are the SDK's own classes
for wrong, call in [
    (openai.NotFoundError, lambda: client.chat.completions.create(model="gpt-4", messages=hello)),
    (openai.BadRequestError, lambda: client.chat.completions.create(model=base_model, messages=[])),
    (openai.BadRequestError, lambda: client.completions.create(model=base_model, prompt="a " * 5000)),
    (openai.ConflictError, lambda: client.fine_tuning.jobs.cancel(job.id)),
    (openai.NotFoundError, lambda: client.files.retrieve("file-00")),
]:
    try:
        call()
    except wrong as error:
        assert error.body["message"] and error.body["type"]
    else:
        raise AssertionError(f"no {wrong.__name__}")
if not uds:
    try:
        openai.OpenAI(base_url=base, api_key="wrong", max_retries=0).models.list()
    except openai.AuthenticationError:
        pass
    else:
        raise AssertionError("a wrong key was taken")
print("all well")
'''


@pytest.fixture(scope="module")
def sdk():
    done = subprocess.run([PYTHON, "-c", "import openai, httpx"], capture_output=True, text=True) \
        if os.path.exists(PYTHON) else None
    if done is None or done.returncode != 0:
        pytest.skip("the OpenAI SDK is not there: tests/openai_venv.sh makes a place for it")


@pytest.mark.parametrize("over", ["tcp", "unix"])
def test_the_sdk_works_unchanged(sdk, start, tmp_path, over):
    template = tmp_path / "tools.jinja"  # a place for tools, so small that the tiny model's context holds them
    template.write_text("{{ bos_token }}{% if tools %}{{ tools[0].function.name }};{% endif %}{% for m in messages %}"
                        "{{ m.role[0] }}:{{ m.content or '' }}{% for c in m.tool_calls or [] %}{{ c.function.name }}"
                        "{% endfor %} {% endfor %}{% if add_generation_prompt %}a:{% endif %}")
    tpd = start("--listen", "127.0.0.1:0", "--api-key", "secret", "--chat-template", template)
    base = re.search(r"http://127\.0\.0\.1:\d+", tpd.log()).group(0) if over == "tcp" else "http://tpd"
    done = subprocess.run([PYTHON, "-c", SCRIPT, base + "/v1", "" if over == "tcp" else str(tpd.socket), TINY.name],
                          capture_output=True, text=True, timeout=4 * ANSWER_S, cwd=ROOT)
    assert done.returncode == 0 and done.stdout == "all well\n", done.stdout + done.stderr
