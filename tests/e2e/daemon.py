"""A tpd of the tests' own: started in a directory of its own, spoken to over its raw socket."""
import json
import os
import pathlib
import signal
import socket
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / os.environ.get("TPD_BUILD", "build")
SHARED = ROOT / os.environ.get("TPD_SHARED", "../shared")
TINY = ROOT / "tests/data/models/tiny-chat"
START_S = 60   # sanitizers and loaded machines are slow; nothing asserts on time
ANSWER_S = 60


def need_terminals():
    """Skips a test that wants a pseudo-terminal where the machine gives none."""
    import pty
    import pytest
    try:
        ends = pty.openpty()
    except OSError as error:
        pytest.skip(f"no pseudo-terminals here: {error}")
    for end in ends:
        os.close(end)


class RpcError(Exception):
    def __init__(self, error):
        super().__init__(f"{error['code']}: {error['message']}")
        self.code, self.message, self.data = error["code"], error["message"], error["data"]


class Client:
    """One connection. Messages come in the order of the wire; `call` sets others aside."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(ANSWER_S)
        self.socket.connect(str(path))
        self.buffer = bytearray()
        self.waiting = []
        self.last_id = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    def raw(self, data):
        self.socket.sendall(data)

    def send(self, method, params=None, id=None, notify=False):
        message = {"jsonrpc": "2.0", "method": method}
        if params is not None:
            message["params"] = params
        if not notify:
            if id is None:
                self.last_id += 1
                id = self.last_id
            message["id"] = id
        self.raw(json.dumps(message).encode() + b"\n")
        return id

    def line(self):
        """The next line as bytes, or None at the end of the connection."""
        while b"\n" not in self.buffer:
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            if not data:
                return None
            self.buffer += data
        line, _, rest = bytes(self.buffer).partition(b"\n")
        self.buffer = bytearray(rest)
        return line

    def message(self):
        """The next message that came, strictly read: no NaN, valid UTF-8."""
        line = self.line()
        assert line is not None, "the connection has ended"

        def refuse(word):
            raise AssertionError(f"not JSON: {word}")
        return json.loads(line.decode("utf-8"), parse_constant=refuse)

    def wait(self, id):
        """The answer to a request; what comes before it is set aside in self.waiting."""
        for i, message in enumerate(self.waiting):
            if message.get("id", self) == id and "method" not in message:
                return self.waiting.pop(i)
        while True:
            message = self.message()
            if "method" not in message and message.get("id") == id:
                return message
            self.waiting.append(message)

    def result(self, id):
        answer = self.wait(id)
        assert answer["jsonrpc"] == "2.0"
        if "error" in answer:
            raise RpcError(answer["error"])
        return answer["result"]

    def call(self, method, **params):
        return self.result(self.send(method, params))

    def notifications(self, id):
        """Those about a request, taken out of what was set aside."""
        mine = [m for m in self.waiting if "method" in m and m["params"]["id"] == id]
        self.waiting = [m for m in self.waiting if m not in mine]
        return mine

    def at_end(self):
        """Reads to the end of the connection; True when there is one."""
        while self.line() is not None:
            pass
        return True


class Daemon:
    def __init__(self, directory, model=TINY, *flags, env=None, wait=True, before=None):
        """before: called in the new process, ahead of tpd."""
        self.directory = pathlib.Path(directory)
        self.directory.mkdir(0o700, parents=True, exist_ok=True)
        self.socket = self.directory / "tpd.sock"
        self.log_path = self.directory / "log"
        command = [str(BUILD / "tpd"), "--model", str(model), "--socket", str(self.socket),
                   "--state-dir", str(self.directory / "state"), *map(str, flags)]
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(command, stderr=log, stdout=log, cwd=ROOT,
                                            preexec_fn=before,
                                            env={**os.environ, **(env or {})})
        if wait:
            self.wait_ready()

    def wait_ready(self):
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            assert self.process.poll() is None, self.log()
            try:
                with self.client() as client:
                    if client.call("status")["state"] == "READY":
                        return
            except (FileNotFoundError, ConnectionRefusedError):
                pass
            time.sleep(0.02)
        raise AssertionError(f"not ready after {START_S} s: {self.log()}")

    def client(self):
        return Client(self.socket)

    def log(self):
        return self.log_path.read_text(errors="replace")

    def rss(self):
        """Bytes of memory that the process holds now."""
        for line in open(f"/proc/{self.process.pid}/status"):
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmRSS")

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def wait(self, timeout=60):
        return self.process.wait(timeout)

    def stop(self):
        """Ends it, whatever it does, and returns its exit code."""
        if self.process.poll() is None:
            self.signal()
            try:
                self.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.wait()
                raise
        return self.process.returncode


def eventually(check, timeout=30):
    """Waits until check() is true."""
    end = time.monotonic() + timeout
    while not check():
        assert time.monotonic() < end, "did not come true"
        time.sleep(0.02)
