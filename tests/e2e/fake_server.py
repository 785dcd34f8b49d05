"""A daemon's socket without a daemon: deterministic answers, and every kind of misbehaviour.

The prompt of `generate` says what happens (see FakeServer.generate). What came over the wire is kept
in `received`, so that a test can see what a client really sent. Run as a script it serves PATH until
it is killed: fake_server.py PATH [UID].
"""
import json
import os
import socket
import sys
import threading
import time

from fake_jobs import FakeJobs

PIECES = ["Once", " upon", " a", " time", ", a", " fox", " s\u00e4ng", " \u263a", "\n", "The end."]
STATUS = {
    "version": "9.9", "protocol": 1, "state": "READY", "pid": 42, "uptime_s": 93784.5,
    "model": {"path": "/models/tiny", "architecture": "llama", "dtype": "q4_1"}, "tp": 2,
    "connections": 1, "job": None,
    "devices": [
        {"rank": 0, "name": "cpu:0-1",
         "memory": {"used": 1610612736, "free": 0, "total": 2147483648}},
        {"rank": 1, "name": "cpu:2-3", "memory": {"used": 1024, "free": 5, "total": 2147483648}}],
    "ctx": 2048, "slots": {"total": 8, "busy": 1}, "queue": 3,
    "kv": {"type": "f16", "block_size": 16, "blocks": 516, "used": 12, "cached": 4, "free": 500},
    "tokens_per_s": {"prefill": 1234.5, "decode": 45.25, "train": 0}}
ERRORS = {  # a prompt "error WORD" fails with this: (code, kind, further data)
    "overloaded": (-32001, "overloaded", {"retry_after_s": 3}),
    "context": (-32002, "context_too_long", {"prompt_tokens": 900, "context": 512}),
    "notfound": (-32003, "not_found", {}), "memory": (-32004, "out_of_memory", {}),
    "cancelled": (-32005, "cancelled", {}), "badfile": (-32006, "bad_file", {}),
    "permission": (-32007, "not_permitted", {}), "stopping": (-32008, "shutting_down", {}),
    "conflict": (-32009, "conflict", {}), "device": (-32010, "device_failed", {}),
    "internal": (-32603, "internal", {}), "params": (-32602, "invalid_params", {"field": "top_p"}),
    "unknown": (-32999, "brand_new", {})}


# Answers without sense; ID stands for the request's id.
SENSELESS = [
    "", "null", "[]", "5", "{}", '{"id":ID}', '{"id":ID,"result":null}', '{"id":ID,"result":[1]}',
    '{"id":ID,"result":"x"}', '{"id":ID,"result":{}}', '{"id":ID,"error":{}}', '{"id":ID,"error":[]}',
    '{"id":ID,"error":{"code":"x","message":5,"data":[]}}',
    '{"id":ID,"error":{"code":99999999999,"message":"\\u001b[1m\\n","data":{"kind":5}}}',
    '{"id":null,"error":{"code":1}}', '{"method":"token"}\n{"id":ID,"result":{}}',
    '{"method":"token","params":[]}', '{"method":"token","params":{"id":ID,"text":[]}}',
    '{"method":5,"params":{}}', "[" * 100000, '{"a":' * 5000, '{"id":ID,"id":ID,"result":{}}',
    '{"id":ID,"result":{"text":5,"tokens":{},"pieces":[[]],"finish_reason":[],"usage":[],"sum":"x",'
    '"logprobs":[5,{"top":[5]}],"devices":[{},5],"slots":[{"a":[]},null],"n":[],"version":{}}}',
    '{"id":ID,"result":{"tokens":[1,"x",{"id":[],"token":5,"top":{}}],"devices":[{"a":{"b":1}}]}}',
    '{"id":ID,"result":{"text":"\\u0000\\ud800"}}', "\0", "\x80\xff", '{"id":ID,"result":1e999}']


class FakeServer:
    def __init__(self, path):
        self.path = str(path)
        self.says = None         # a line for every request, whatever it asks; then the end
        self.received = []       # every message, in order
        self.connections = []
        self.closed = threading.Event()  # a client closed its connection
        self.cancelled = {}      # (connection, id) -> Event
        self.jobs = FakeJobs()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self.path)
        self.listener.listen(16)
        self.threads = []
        self.start(self.accept)

    def start(self, target, *args):
        thread = threading.Thread(target=target, args=args, daemon=True)
        self.threads.append(thread)
        thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        """Nothing is closed before its threads have ended: one that was about to accept would else do so on the
        next server's listener, which may get the same descriptor, and answer in its place."""
        self.closed.set()
        for event in list(self.cancelled.values()):
            event.set()
        for end in [self.listener, *self.connections]:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for thread in self.threads:
            thread.join(10)
            assert not thread.is_alive(), thread
        for end in [self.listener, *self.connections]:
            end.close()

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            self.start(self.serve, connection)

    def serve(self, connection):
        lock = threading.Lock()

        def send(message):
            data = message if isinstance(message, bytes) else \
                json.dumps(message, ensure_ascii=False).encode() + b"\n"
            with lock:
                try:
                    connection.sendall(data)
                except OSError:
                    pass

        try:
            with connection.makefile("rb") as lines:
                for line in lines:
                    self.take(connection, send, json.loads(line))
        except OSError:
            pass
        self.closed.set()

    def take(self, connection, send, message):
        self.received.append(message)
        if message["method"] == "cancel":
            event = self.cancelled.get((connection, message["params"]["id"]))
            if event:
                event.set()
            return
        self.cancelled[connection, message["id"]] = threading.Event()
        self.start(self.answer, connection, send, message)

    def answer(self, connection, send, message):
        if self.says is not None:
            send(self.says.replace("ID", str(message["id"])).encode("latin-1") + b"\n")
            connection.shutdown(socket.SHUT_RDWR)
            return
        if message["method"].startswith("finetune."):
            self.finetune(connection, send, message["id"], message["method"][9:],
                          message.get("params", {}))
            return
        method = getattr(self, message["method"].replace(".", "_"), None)
        if method is None:
            send({"jsonrpc": "2.0", "id": message["id"],
                  "error": {"code": -32601, "message": "unknown method"}})
            return
        result = method(connection, send, message["id"], message.get("params", {}))
        if result is not None:
            send({"jsonrpc": "2.0", "id": message["id"], "result": result})

    def finetune(self, connection, send, id_, method, params):
        result, error = self.finetune_answer(connection, send, id_, method, params)
        answer = {"jsonrpc": "2.0", "id": id_}
        if error:
            code, kind, data = error
            answer["error"] = {"code": code, "message": "it failed: " + kind,
                               "data": dict(data, kind=kind)}
        else:
            answer["result"] = result
        send(answer)

    def finetune_answer(self, connection, send, id_, method, params):
        if method == "submit":
            return self.jobs.submit(params)
        if method == "list":
            jobs = [self.jobs.public(j) for j in reversed(list(self.jobs.jobs.values()))]
            return {"jobs": jobs}, None
        job = self.jobs.find(params["job"])
        if not job:
            return None, (-32003, "not_found", {})
        if method == "get":
            return self.jobs.public(job, spec=job["spec"]), None
        if method == "log":  # pages of 7
            events = [e for e in self.jobs.logs[job["job"]] if e["cursor"] > params.get("after", 0)]
            page = events[:7]
            return {"job": job["job"], "events": page, "more": len(events) > 7,
                    "after": page[-1]["cursor"] if page else params.get("after", 0)}, None
        if method == "watch":
            def notify(event):
                send({"jsonrpc": "2.0", "method": "job", "params": dict(event, id=id_)})
            cancelled = self.cancelled[connection, id_]
            return self.jobs.watch(job, notify,
                                   lambda: cancelled.is_set() or self.closed.is_set()), None
        return self.jobs.change(job, method)

    def ping(self, *_):
        return {"version": "9.9", "protocol": 1}

    def status(self, *_):
        return STATUS

    def model_info(self, *_):
        return {"architecture": "llama", "bytes": 3145728, "shape": {"layers": 2, "heads": 4},
                "draft": {"path": "/models/small", "shape": {"layers": 1, "heads": 2}, "tp": 1}, "note": "",
                "ranks": [{"rank": 0, "weights": 2048, "kv": 0}, {"rank": 1, "weights": 1024, "kv": 1}]}

    def metrics(self, *_):
        return {"text": "# TYPE tpd_requests_total counter\ntpd_requests_total 7\n"}

    def shutdown(self, *_):
        return {"drain": False, "live_requests": 3}

    def tokenize(self, _connection, _send, _id, params):
        pieces = list(params["text"])
        return {"tokens": [ord(c) for c in pieces], "pieces": pieces}

    def detokenize(self, _connection, _send, _id, params):
        return {"text": "".join(chr(c) for c in params["tokens"])}

    @staticmethod
    def logprob_entry(i, text):
        return {"id": i, "token": text, "bytes": list(text.encode()), "logprob": -0.5 * (i + 1)}

    def score(self, _connection, _send, _id, params):
        tokens = [self.logprob_entry(i, w) for i, w in enumerate(params["completion"].split())]
        total = sum(t["logprob"] for t in tokens)
        return {"tokens": tokens, "sum": total, "mean": total / len(tokens), "perplexity": 1.5,
                "n": len(tokens)}

    def generate(self, connection, send, id_, params):
        prompt = params.get("prompt", "")
        word = prompt.split(" ")[0]
        if word == "error":
            code, kind, data = ERRORS[prompt.split(" ")[1]]
            send({"jsonrpc": "2.0", "id": id_, "error": {
                "code": code, "message": "it failed: " + kind, "data": dict(data, kind=kind)}})
            return None
        if word == "raw":        # a line of garbage
            send(b"this is not JSON\n")
            return None
        if word == "half":       # half a line, then the end
            send(b'{"jsonrpc": "2.0", "id"')
            connection.shutdown(socket.SHUT_RDWR)
            return None
        if word == "flood":      # a line that never ends
            while connection.fileno() >= 0 and not self.closed.is_set():
                send(b"x" * (1 << 20))
            return None
        if word == "silent":     # no answer, and cancel is not heard
            return None
        if word == "refuse":     # what max_message does: an error without id, then the end
            send({"jsonrpc": "2.0", "id": None,
                  "error": {"code": -32600, "message": "the message is over 8 MiB"}})
            connection.shutdown(socket.SHUT_RDWR)
            return None
        if word == "hostile":    # a text that would command a terminal
            return self.result("\x1b[31mred\x07\u009b1m", 1)
        if word == "huge":
            return self.result("\u263a" * (int(prompt.split(" ")[1]) // 3), 1)
        return self.stream(connection, send, id_, params, word)

    @staticmethod
    def result(text, n, reason="length", error=None):
        result = {"text": text, "tokens": list(range(n)), "finish_reason": reason, "stop": None,
                  "usage": {"prompt_tokens": 3, "cached_tokens": 0, "completion_tokens": n},
                  "timings": {"queue_ms": 0.0, "prefill_ms": 1.5, "decode_ms": 2.5,
                              "tokens_per_s": 45.2}}
        if error:
            result["error"] = error
        return result

    def stream(self, connection, send, id_, params, word):
        cancelled = self.cancelled[connection, id_]
        endless = word in ("slow", "mad")
        limit = params.get("max_tokens", len(PIECES))
        done, reason = [], "length"
        while endless or len(done) < limit:
            piece = PIECES[len(done) % len(PIECES)]
            done.append(piece)
            if params.get("stream"):
                note = json.dumps({"jsonrpc": "2.0", "method": "token", "params": {
                    "id": id_, "text": piece, "tokens": [len(done)]}}).encode() + b"\n"
                for part in [note[i:i + 1] for i in range(len(note))] if word == "drip" else [note]:
                    send(part)
            if word == "die" and len(done) == 3:
                connection.shutdown(socket.SHUT_RDWR)
                return None
            if word == "mad":    # never stops, whatever is said
                if self.closed.is_set():
                    return None
            elif cancelled.wait(0.02 if word == "slow" else 0):
                reason = "cancelled"
                break
        if word == "failing":
            return self.result("".join(done), len(done), "error", {"message": "rank 1 is gone"})
        result = self.result("".join(done), len(done), reason)
        if "logprobs" in params:
            result["logprobs"] = [dict(self.logprob_entry(i, p), top=[
                self.logprob_entry(i, p), self.logprob_entry(i + 1, "?")])
                for i, p in enumerate(done)]
        return result


if __name__ == "__main__":
    server = FakeServer(sys.argv[1])
    if len(sys.argv) > 2:  # who listens is whom a client sees: take the user, then listen again
        os.chmod(sys.argv[1], 0o666)
        os.setuid(int(sys.argv[2]))
        server.listener.listen(16)
    print("ready", flush=True)
    while True:
        time.sleep(60)
