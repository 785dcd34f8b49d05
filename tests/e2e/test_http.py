"""HTTP on the socket and over TCP: the paths that need no chat, and clients that mean no good."""
import gzip
import json
import re
import socket
import time
from http.client import HTTPConnection

import pytest

from daemon import ANSWER_S, RpcError, TINY


class Connection(HTTPConnection):
    """http.client over a Unix socket."""

    def __init__(self, path):
        super().__init__("tpd", timeout=ANSWER_S)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(ANSWER_S)
        self.sock.connect(self.path)


class Answer:
    def __init__(self, response):
        self.status, self.headers, self.body = response.status, response.headers, response.read()

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json["error"]

    @property
    def events(self):
        """The data of a stream's events; the last must be [DONE]."""
        lines = self.body.decode().split("\n\n")
        assert lines.pop() == ""
        assert all(line.startswith("data: ") for line in lines)
        assert lines.pop() == "data: [DONE]"
        return [json.loads(line[len("data: "):]) for line in lines]


def ask(http, verb, path, body=None, **headers):
    if body is not None and not isinstance(body, (bytes, str)):
        body, headers["Content-Type"] = json.dumps(body), "application/json"
    http.request(verb, path, body, headers)
    return Answer(http.getresponse())


@pytest.fixture
def http(tpd):
    connection = Connection(tpd.socket)
    yield connection
    connection.close()


def raw(tpd, data, shut=False):
    """What comes back until the daemon closes."""
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(ANSWER_S)
        s.connect(str(tpd.socket))
        s.sendall(data)
        if shut:
            s.shutdown(socket.SHUT_WR)
        got = b""
        while data := s.recv(65536):
            got += data
        return got


def completion(http, **body):
    return ask(http, "POST", "/v1/completions", {"prompt": "hello", "temperature": 0, **body})


# --- completions ---

def test_a_completion_is_what_generate_says(http, client):
    rpc = client.call("generate", prompt="hello", temperature=0, max_tokens=12)
    answer = completion(http, max_tokens=12).json
    assert answer["object"] == "text_completion" and answer["model"] == "tiny-chat"
    assert answer["id"].startswith("cmpl-") and abs(answer["created"] - time.time()) < 3600
    choice, = answer["choices"]
    assert choice["text"] == rpc["text"]
    assert choice["finish_reason"] == rpc["finish_reason"]
    assert choice["logprobs"] is None
    assert answer["usage"]["prompt_tokens"] == rpc["usage"]["prompt_tokens"]
    assert answer["usage"]["completion_tokens"] == rpc["usage"]["completion_tokens"]
    assert (answer["usage"]["total_tokens"] ==
            rpc["usage"]["prompt_tokens"] + rpc["usage"]["completion_tokens"])


def test_sixteen_tokens_are_made_where_nothing_is_said(http):
    assert completion(http, ignore_eos=True).json["usage"]["completion_tokens"] == 16
    assert completion(http, ignore_eos=True, max_tokens=None).json["usage"]["completion_tokens"] == 16


def test_one_connection_serves_many_requests(http):
    first = completion(http).json["choices"]
    for _ in range(3):
        assert completion(http).json["choices"] == first


def test_a_stream_says_the_same_and_ends_with_done(http):
    whole = completion(http, max_tokens=20).json["choices"][0]
    answer = completion(http, max_tokens=20, stream=True)
    assert answer.headers["Content-Type"] == "text/event-stream"
    events = answer.events
    assert "".join(e["choices"][0]["text"] for e in events) == whole["text"]
    assert [e["choices"][0]["finish_reason"] for e in events][-1] == whole["finish_reason"]
    assert all(e["choices"][0]["finish_reason"] is None for e in events[:-1])
    assert len({e["id"] for e in events}) == 1
    assert all("usage" not in e for e in events)


def test_a_stream_tells_its_usage_when_asked(http):
    events = completion(http, max_tokens=5, stream=True, ignore_eos=True,
                        stream_options={"include_usage": True}).events
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 5


def test_prompts_come_as_text_ids_or_lists_of_them(http, client):
    ids = client.call("tokenize", text="hello", special=True)["tokens"]
    one = completion(http).json["choices"][0]["text"]
    assert completion(http, prompt=ids).json["choices"][0]["text"] == one
    several = completion(http, prompt=["hello", "the cat"]).json
    assert [c["index"] for c in several["choices"]] == [0, 1]
    assert several["choices"][0]["text"] == one
    assert several["choices"][1]["text"] == completion(http, prompt="the cat").json["choices"][0]["text"]
    lists = completion(http, prompt=[ids, ids], n=2).json["choices"]
    assert [c["text"] for c in lists] == [one] * 4
    events = completion(http, prompt=["hello", "the cat"], stream=True).events
    for choice in several["choices"]:
        mine = [e["choices"][0] for e in events if e["choices"][0]["index"] == choice["index"]]
        assert "".join(c["text"] for c in mine) == choice["text"]


def test_log_probabilities_are_parallel_arrays_that_fit_the_text(http):
    choice = completion(http, prompt="the cat sat", echo=True, logprobs=2, max_tokens=6).json["choices"][0]
    logprobs = choice["logprobs"]
    lengths = {len(logprobs[k]) for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}
    assert len(lengths) == 1
    assert choice["text"].startswith("the cat sat")
    assert all(isinstance(x, float) for x in logprobs["token_logprobs"][-6:])
    streamed = completion(http, logprobs=2, max_tokens=6, stream=True).events
    plain = completion(http, logprobs=2, max_tokens=6).json["choices"][0]["logprobs"]
    for key in plain:
        told = [x for e in streamed if e["choices"][0]["logprobs"] for x in e["choices"][0]["logprobs"][key]]
        assert told == plain[key]


@pytest.mark.parametrize("body, param, words", [
    ({"temperature": "warm"}, "temperature", "number"),
    ({"prompt": {}}, "prompt", "string"),
    ({"prompt": [[1, "x"]]}, "prompt[1]", "token id"),
    ({"n": 0}, "n", "1 to 64"),
    ({"best_of": 3}, "best_of", "at most n"),
    ({"suffix": "end"}, "suffix", "continues"),
    ({"max_token": 3}, "max_token", "max_tokens"),
    ({"prompt": ["a"] * 129}, "prompt", "128"),
    ({"prompt": ["a"] * 100, "n": 2}, "n", "128"),
    ({"prompt": [99999999]}, None, "99999999"),
    ({"logit_bias": {"hello": 1}}, "logit_bias.hello", 'not the string "hello"'),
])
def test_a_wrong_parameter_is_named(http, body, param, words):
    answer = completion(http, **body)
    assert answer.status == 400
    assert answer.error["type"] == "invalid_request_error"
    if param:
        assert answer.error["param"] == param
    assert words in answer.error["message"]
    assert completion(http).status == 200


def test_a_prompt_over_the_context_says_both_lengths(http):
    answer = completion(http, prompt="word " * 2000)
    assert answer.status == 400 and answer.error["code"] == "context_too_long"
    assert answer.error["prompt_tokens"] > answer.error["context"]


def test_an_unknown_model_is_not_found_and_the_base_may_be_named(http):
    answer = completion(http, model="gpt-4")
    assert answer.status == 404 and answer.error["param"] == "model" and "tiny-chat" in answer.error["message"]
    assert completion(http, model="tiny-chat").status == 200
    assert completion(http, model="base").status == 200


# --- the other paths ---

def test_models_health_metrics_tokens_and_the_page(http, client):
    models = ask(http, "GET", "/v1/models").json
    assert models["object"] == "list" and models["data"][0]["id"] == "tiny-chat"
    assert ask(http, "GET", "/v1/models/tiny-chat").json["object"] == "model"
    assert ask(http, "GET", "/v1/models/none").status == 404
    assert ask(http, "GET", "/health").json == {"status": "ok"}
    metrics = ask(http, "GET", "/metrics")
    assert metrics.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert re.search(rb'^tpd:http_requests_total\{status="2xx"\} [1-9]', metrics.body, re.M)
    tokens = ask(http, "POST", "/tokenize", {"prompt": "hello cat"}).json
    assert tokens["tokens"] == client.call("tokenize", text="hello cat", special=True)["tokens"]
    assert tokens["count"] == len(tokens["tokens"])
    bare = ask(http, "POST", "/tokenize", {"prompt": "hello cat", "add_special_tokens": False}).json
    assert ask(http, "POST", "/detokenize", {"tokens": bare["tokens"]}).json == {"prompt": "hello cat"}
    page = ask(http, "GET", "/")
    assert page.status == 200 and b"<html" in page.body
    head = ask(http, "HEAD", "/")
    assert head.body == b"" and head.headers["Content-Length"] == str(len(page.body))


def test_unknown_paths_and_methods_are_told_apart(http):
    assert ask(http, "GET", "/v1/nothing").status == 404
    answer = ask(http, "DELETE", "/v1/completions")
    assert answer.status == 405 and answer.headers["Allow"] == "POST"


# --- bodies and heads that are not right ---

def test_a_body_must_be_json_and_say_so(http):
    for headers in ({}, {"Content-Type": "text/plain"}, {"Content-Type": "application/jsonp"}):
        assert ask(http, "POST", "/v1/completions", b'{"prompt":"a"}', **headers).status == 415
    for body in (b"{", b"[]", b'{"prompt":"a"} x', b'{"prompt":"\xff"}', b'{"a":1,"a":2}', b"[" * 100000):
        answer = ask(http, "POST", "/v1/completions", body, **{"Content-Type": "application/json"})
        assert answer.status == 400, body[:20]
    assert ask(http, "POST", "/v1/completions").status == 400
    packed = ask(http, "POST", "/v1/completions", gzip.compress(b'{"prompt":"hello"}'),
                 **{"Content-Type": "application/json", "Content-Encoding": "gzip"})
    assert packed.status == 415 and "gzip" in packed.error["message"]
    ok = ask(http, "POST", "/v1/completions", b'{"prompt":"hello"}', **{"Content-Type": "Application/JSON; charset=utf-8"})
    assert ok.status == 200


def test_a_body_over_the_limit_is_refused_before_it_comes(tpd, http):
    head = b"POST /v1/completions HTTP/1.1\r\nHost: tpd\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    assert raw(tpd, head % (1 << 30)).startswith(b"HTTP/1.1 413 ")
    chunk = b"POST /v1/completions HTTP/1.1\r\nHost: tpd\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert raw(tpd, chunk + b"A00000\r\n" + b" " * 0xA00000 + b"\r\n").startswith(b"HTTP/1.1 413 ")
    assert completion(http).status == 200


def test_chunked_bodies_and_continue_are_taken(tpd):
    body = b'{"prompt":"hello","temperature":0}'
    chunks = b"".join(b"%x\r\n%c\r\n" % (1, c) for c in body) + b"0\r\n\r\n"
    answer = raw(tpd, b"POST /v1/completions HTTP/1.1\r\nHost: tpd\r\nConnection: close\r\nContent-Type: application/json\r\n"
                 b"Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")


def test_pipelined_requests_are_answered_in_order(tpd):
    one = b"GET /v1/models HTTP/1.1\r\nHost: tpd\r\n\r\n"
    body = b'{"prompt":"hello","max_tokens":3}'
    two = b"POST /v1/completions HTTP/1.1\r\nHost: tpd\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    last = b"GET /nothing HTTP/1.1\r\nHost: tpd\r\nConnection: close\r\n\r\n"
    answer = raw(tpd, one + two + one + two + last)
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"200"] * 4 + [b"404"]
    kinds = re.findall(rb'"object":"(list|text_completion)"', answer)
    assert kinds == [b"list", b"text_completion"] * 2


def test_a_client_of_http_1_0_gets_a_stream_that_ends_with_the_connection(tpd):
    body = b'{"prompt":"hello","stream":true}'
    answer = raw(tpd, b"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    head, _, events = answer.partition(b"\r\n\r\n")
    assert b"chunked" not in head and events.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("data, status", [
    (b"GET\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nBad header\r\n\r\n", 400),
    (b"POST /v1/completions HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
    (b"POST /v1/completions HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", 400),
    (b"POST /v1/completions HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n", 400),
    (b"GET /%zz HTTP/1.1\r\nConnection: close\r\n\r\n", 400),
    (b"GET /a%00b HTTP/1.1\r\nConnection: close\r\n\r\n", 400),
    (b"GET /v1/models?a=%f HTTP/1.1\r\nConnection: close\r\n\r\n", 400),
    (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n", 413),
    (b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: %s\r\n" % (i, b"y" * 900) for i in range(200)) + b"\r\n", 413),
    (b"BREW /coffee HTTP/1.1\r\n\r\n", 400),
])
def test_what_is_not_http_gets_an_answer_and_an_end(tpd, http, data, status):
    assert raw(tpd, data).startswith(b"HTTP/1.1 %d " % status)
    assert ask(http, "GET", "/health").status == 200


def test_an_offer_to_upgrade_is_passed_over(tpd):
    answer = raw(tpd, b"GET /health HTTP/1.1\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")


def test_half_a_request_is_ended_and_the_rest_never_waited_for(start):
    tpd = start("--slow-client-s", 1)
    assert raw(tpd, b"GET / HT").startswith(b"HTTP/1.1 408 ")
    assert raw(tpd, b"POST /v1/completions HTTP/1.1\r\nContent-Length: 9\r\n\r\n{").startswith(b"HTTP/1.1 408 ")
    assert raw(tpd, b"GET /health HT", shut=True) == b""


def test_a_client_that_goes_away_frees_its_generation(tpd, client):
    body = b'{"prompt":"hello","max_tokens":100000,"ignore_eos":true,"stream":true}'
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(str(tpd.socket))
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert s.recv(100).startswith(b"HTTP/1.1 200")
    end = time.monotonic() + ANSWER_S
    while client.call("status")["slots"]["busy"] > 0:
        assert time.monotonic() < end
        time.sleep(0.01)


# --- TCP ---

def over_tcp(tpd):
    port = int(re.search(r"http://127\.0\.0\.1:(\d+)", tpd.log()).group(1))
    return HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)


def test_tcp_speaks_http_alone(start):
    tpd = start("--listen", "127.0.0.1:0")
    tcp = over_tcp(tpd)
    assert completion(tcp).json["choices"] == completion(Connection(tpd.socket)).json["choices"]
    with socket.create_connection((tcp.host, tcp.port), timeout=ANSWER_S) as s:
        s.sendall(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
        assert s.recv(100).startswith(b"HTTP/1.1 400 ")


def test_tcp_asks_for_the_key_where_there_is_one(start):
    tcp = over_tcp(start("--listen", "127.0.0.1:0", "--api-key", "first,second"))
    answer = completion(tcp)
    assert answer.status == 401 and answer.headers["WWW-Authenticate"] == "Bearer"
    for key, status in (("first", 200), ("second", 200), ("firs", 401), ("first,second", 401), ("", 401), ("x" * 5000, 401)):
        answer = ask(tcp, "GET", "/v1/models", Authorization=f"Bearer {key}")
        assert answer.status == status, key
    assert ask(tcp, "GET", "/health").status == 200


def test_web_pages_of_others_may_not_use_a_server_without_a_key(start):
    tcp = over_tcp(start("--listen", "127.0.0.1:0"))
    assert ask(tcp, "GET", "/v1/models", Host="evil.example").status == 403
    assert ask(tcp, "GET", "/v1/models", Origin="http://evil.example").status == 403
    own = f"127.0.0.1:{tcp.port}"
    assert ask(tcp, "GET", "/v1/models", Host=own, Origin=f"http://{own}").status == 200


@pytest.mark.parametrize("flags, words", [
    (["--listen", "0.0.0.0:0"], "api_key"),
    (["--listen", "0.0.0.0:0", "--api-key", ","], "no key in it"),
    (["--listen", "127.0.0.1:0", "--allow-uid", "0"], "allow_uid"),
    (["--listen", "8080"], "HOST:PORT"),
    (["--listen", "127.0.0.1:99999"], "HOST:PORT"),
    (["--listen", "example.com:80"], "numbers"),
])
def test_an_address_that_would_let_strangers_in_is_refused(start, flags, words):
    tpd = start(*flags, wait=False)
    assert tpd.process.wait(ANSWER_S) == 78
    assert words in tpd.log()


def test_an_address_in_use_is_said(start):
    tcp = over_tcp(start("--listen", "127.0.0.1:0"))
    tpd = start("--listen", f"127.0.0.1:{tcp.port}", wait=False)
    assert tpd.process.wait(ANSWER_S) == 75
    assert "another program" in tpd.log()


def test_adapters_are_models(start):
    tpd = start()
    with tpd.client() as client, pytest.raises(RpcError):
        client.call("adapter.load", name="x", path="nowhere")
    assert ask(Connection(tpd.socket), "GET", "/v1/models/x").status == 404


# --- files ---

def form(*parts, boundary="xYz"):
    """A multipart body of (name, filename or None, data) and its Content-Type."""
    body = b""
    for name, filename, data in parts:
        body += f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"'.encode()
        body += f'; filename="{filename}"\r\nContent-Type: text/plain'.encode() if filename else b""
        body += b"\r\n\r\n" + data + b"\r\n"
    return body + f"--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"


def upload(http, data, name="train.jsonl", purpose=b"fine-tune"):
    body, content_type = form(("purpose", None, purpose), ("file", name, data))
    return ask(http, "POST", "/v1/files", body, **{"Content-Type": content_type})


def test_a_file_is_kept_listed_read_and_deleted(tpd, http):
    data = b'{"text":"a"}\n--xYz is no boundary here\r\n' + bytes(range(256)) * 40
    made = upload(http, data, name="../etc/my data.jsonl").json
    assert made["object"] == "file" and made["bytes"] == len(data) and made["filename"] == "my data.jsonl"
    assert made in ask(http, "GET", "/v1/files").json["data"]
    assert ask(http, "GET", f"/v1/files/{made['id']}").json == made
    assert ask(http, "GET", f"/v1/files/{made['id']}/content").body == data
    empty = upload(http, b"").json
    assert empty["bytes"] == 0
    assert len(ask(http, "GET", "/v1/files?limit=1").json["data"]) == 1
    for file in (made, empty):
        assert ask(http, "DELETE", f"/v1/files/{file['id']}").json["deleted"] is True
        assert ask(http, "GET", f"/v1/files/{file['id']}").status == 404
    assert not list((tpd.directory / "state/data/uploads").iterdir())


@pytest.mark.parametrize("body, kind, status", [
    (b"", "multipart/form-data", 400),
    (b"", "multipart/form-data; boundary=" + "b" * 71, 400),
    (b"x", "multipart/form-data; boundary=x", 400),
    (b"--x", "multipart/form-data; boundary=x", 400),
    (b"--x\r\n", "multipart/form-data; boundary=x", 400),
    (b'--x\r\nContent-Disposition: form-data; name="file\r\n\r\na\r\n--x--', "multipart/form-data; boundary=x", 400),
    (b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\na\r\n--x', "multipart/form-data; boundary=x", 400),
    (b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\na\r\n--x--', "multipart/form-data; boundary=x", 400),
    (b"{}", "application/json", 415),
])
def test_a_broken_form_is_refused(http, body, kind, status):
    assert ask(http, "POST", "/v1/files", body, **{"Content-Type": kind}).status == status
    assert ask(http, "GET", "/v1/files").json["data"] == []


def test_a_file_for_another_purpose_or_over_the_limit_is_refused(start):
    http = Connection(start("--max-upload", "64K").socket)
    assert upload(http, b"a", purpose=b"vision").error["param"] == "purpose"
    answer = upload(http, b"a" * 70000)
    assert answer.status == 413 and "max_upload" in answer.error["message"]
    for odd in ("..", "file-", "file-zz", "file-0123/../..", "%2e%2e"):
        assert ask(Connection(http.path), "GET", f"/v1/files/{odd}").status == 404


# --- fine-tuning jobs ---

RECORDS = b'{"prompt":"hi","completion":" there you are"}\n' * 40
SMALL = {"seq_len": 64}  # tiny-chat's context holds no more than 256


def ended(http, job):
    end = time.monotonic() + ANSWER_S
    while (state := ask(http, "GET", f"/v1/fine_tuning/jobs/{job['id']}").json)["finished_at"] is None:
        assert time.monotonic() < end, state
        time.sleep(0.05)
    return state


def test_a_job_from_its_file_to_an_adapter_that_answers(start):
    http = Connection(start().socket)
    file = upload(http, RECORDS).json
    job = ask(http, "POST", "/v1/fine_tuning/jobs", {
        "model": "tiny-chat", "training_file": file["id"], "suffix": "greet", "seed": 3, "tpd": SMALL,
        "method": {"type": "supervised", "supervised": {"hyperparameters": {
            "n_epochs": 4, "batch_size": "auto", "learning_rate_multiplier": 5}}}}).json
    assert job["object"] == "fine_tuning.job" and job["status"] in ("queued", "running")
    assert job["training_file"] == file["id"] and job["validation_file"] is None and job["seed"] == 3
    assert job["hyperparameters"] == {"n_epochs": 4, "batch_size": 8, "learning_rate_multiplier": 5}
    done = ended(http, job)
    assert done["status"] == "succeeded" and done["error"] is None and done["trained_tokens"] > 0
    model = done["fine_tuned_model"]
    assert model.startswith("ft-greet-")
    assert model in [m["id"] for m in ask(http, "GET", "/v1/models").json["data"]]
    tuned = completion(http, prompt="hi", model=model).json["choices"][0]["text"]
    assert tuned != completion(http, prompt="hi").json["choices"][0]["text"]
    events = ask(http, "GET", f"/v1/fine_tuning/jobs/{job['id']}/events?limit=3").json
    assert [e["object"] for e in events["data"]] == ["fine_tuning.job.event"] * 3 and events["has_more"]
    more = ask(http, "GET", f"/v1/fine_tuning/jobs/{job['id']}/events?limit=1000&after={events['data'][-1]['id']}").json
    assert not more["has_more"] and any(e["type"] == "metrics" and e["data"]["loss"] > 0 for e in more["data"])
    assert ask(http, "GET", "/v1/fine_tuning/jobs").json["data"][0]["id"] == job["id"]
    assert ask(http, "GET", f"/v1/fine_tuning/jobs/{job['id']}/checkpoints").json["data"] == []
    assert ask(http, "POST", f"/v1/fine_tuning/jobs/{job['id']}/cancel").status == 409


def test_a_job_is_paused_resumed_and_cancelled(start):
    http = Connection(start().socket)
    file = upload(http, RECORDS).json
    job = ask(http, "POST", "/v1/fine_tuning/jobs", {"training_file": file["id"], "tpd": {**SMALL, "epochs": 100000}}).json
    path = f"/v1/fine_tuning/jobs/{job['id']}"
    assert ask(http, "POST", path + "/pause").json["status"] == "paused"
    assert ask(http, "POST", path + "/resume").json["status"] in ("queued", "running")
    assert ask(http, "POST", path + "/cancel").json["status"] == "cancelled"
    assert ended(http, job)["fine_tuned_model"] is None


@pytest.mark.parametrize("body, param", [
    ({}, "training_file"),
    ({"training_file": "file-00"}, "training_file"),
    ({"training_file": "../../etc/passwd"}, "training_file"),
    ({"model": "gpt-4"}, "model"),
    ({"suffix": "a/b"}, "suffix"),
    ({"method": {"type": "dpo"}}, "method.type"),
    ({"hyperparameters": {"n_epochs": "many"}}, "hyperparameters.n_epochs"),
    ({"hyperparameters": {"beta": 1}}, "beta"),
    ({"tpd": {"lora": {"r": 0}}}, "lora.r"),
])
def test_a_wrong_job_is_refused_by_name(http, body, param):
    file = upload(http, RECORDS).json["id"]
    if body:
        body = {"training_file": file, **body}
    answer = ask(http, "POST", "/v1/fine_tuning/jobs", body)
    assert answer.status in (400, 404) and answer.error["param"] == param
    assert ask(http, "DELETE", f"/v1/files/{file}").status == 200


def test_a_job_that_fails_says_why(start):
    http = Connection(start().socket)
    file = upload(http, b'{"prompt":"a","completion":"b"}\n{"prompt":\n').json
    job = ended(http, ask(http, "POST", "/v1/fine_tuning/jobs", {"training_file": file["id"]}).json)
    assert job["status"] == "failed" and "line 2" in job["error"]["message"]


# --- embeddings ---

def test_embeddings_are_those_of_embed(http, client):
    import base64
    import struct
    texts = ["hello", "the cat"]
    want = client.call("embed", input=texts)["vectors"]
    got = ask(http, "POST", "/v1/embeddings", {"model": "tiny-chat", "input": texts}).json
    assert got["object"] == "list" and [d["embedding"] for d in got["data"]] == want
    assert [d["index"] for d in got["data"]] == [0, 1]
    assert got["usage"]["prompt_tokens"] == got["usage"]["total_tokens"] > 0
    packed = ask(http, "POST", "/v1/embeddings", {"input": texts[0], "encoding_format": "base64"}).json
    data = base64.b64decode(packed["data"][0]["embedding"])
    assert all(abs(a - b) < 1e-7 for a, b in zip(struct.unpack(f"<{len(data) // 4}f", data), want[0]))
    answer = ask(http, "POST", "/v1/embeddings", {"input": "a", "dimensions": 7})
    assert answer.status == 400 and answer.error["param"] == "dimensions"


# --- slow readers ---

def test_a_stream_that_is_not_read_holds_and_its_client_is_dropped(start):
    tpd = start("--slow-client-s", 1, "--max-outbound", "4K")
    body = b'{"prompt":"hello","max_tokens":240,"ignore_eos":true,"stream":true,"n":8}'
    with socket.socket(socket.AF_UNIX) as s, tpd.client() as client:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect(str(tpd.socket))
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        end = time.monotonic() + ANSWER_S
        while b"tpd:slow_clients_total 1" not in ask(Connection(tpd.socket), "GET", "/metrics").body:
            assert time.monotonic() < end
            time.sleep(0.05)
        while client.call("status")["slots"]["busy"] > 0:
            assert time.monotonic() < end
            time.sleep(0.01)


# --- curl ---

def test_curl_takes_what_the_docs_say(tpd):
    import shutil
    import subprocess
    if not shutil.which("curl"):
        pytest.skip("curl is not installed")

    def curl(*words, stdin=b""):
        done = subprocess.run(["curl", "-sS", "--unix-socket", str(tpd.socket), *words], input=stdin, capture_output=True,
                              timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout
    assert json.loads(curl("http://tpd/v1/models"))["data"]
    body = '{"prompt": "Once upon a time", "max_tokens": 20, "stream": true}'
    assert curl("-N", "http://tpd/v1/completions", "-H", "Content-Type: application/json", "-d", body).endswith(b"data: [DONE]\n\n")
    big = json.dumps({"prompt": "word " * 400000}).encode()
    answer = json.loads(curl("http://tpd/v1/completions", "-H", "Content-Type: application/json", "--data-binary", "@-", stdin=big))
    assert answer["error"]["code"] == "context_too_long"
