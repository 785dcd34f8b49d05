#!/usr/bin/env python3
"""A client of tpd, the daemon that holds a language model, in one file on the standard library.

    import tpd
    with tpd.Client() as client:
        print(client.generate("Once upon a time", max_tokens=50)["text"])
        for piece in client.generate("Once upon a time", stream=True):
            print(piece, end="", flush=True)

Copy the file beside your program or onto PYTHONPATH. It needs Python 3.8 and Linux. Also a small
command: `python3 tpd.py generate "Once upon a time"`, `python3 tpd.py METHOD key=value …`.
"""
from __future__ import annotations

import ctypes
import json
import mmap
import os
import pwd
import socket
import struct
import sys
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Union

__version__ = "0.1.0"
__all__ = ["Client", "Stream", "Tensor", "TensorShard", "TpdError", "NoDaemon"]

Prompt = Union[str, List[int]]
Result = Dict[str, Any]
Job = Union[int, str]  # a number, or a name: then the newest of that name

MAX_LINE = 64 << 20  # bytes of the longest answer taken
CONNECT_TIMEOUT = 10.0  # seconds, for clients without a timeout of their own


class TpdError(Exception):
    """A call failed. `code` is the JSON-RPC code, `kind` a stable word, `data` further facts."""

    def __init__(self, code: int, kind: str, message: str, data: Optional[Dict[str, Any]] = None):
        super().__init__(message)
        self.code = code
        self.kind = kind
        self.message = message
        self.data = data or {}


class NoDaemon(TpdError):
    """Nobody answers on the socket."""

    def __init__(self, message: str):
        super().__init__(-32050, "no_daemon", message)


def _broken(message: str) -> TpdError:
    return TpdError(-32011, "io_error", message)


def default_sockets() -> List[str]:
    """Where a client looks when nobody names a socket, in order."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    places = [os.path.join(runtime, "tpd/tpd.sock")] if runtime else []
    return places + ["/run/tpd/tpd.sock", os.path.expanduser("~/.tpd/tpd.sock")]


def _trusted(uid: int) -> bool:
    if uid in (os.geteuid(), 0):
        return True
    try:
        return pwd.getpwnam("tpd").pw_uid == uid
    except KeyError:
        return False


class _Connection:
    """One connection with one call in flight."""

    def __init__(self, path: str, timeout: Optional[float]):
        self.path = path
        self.deadline: Optional[float] = None
        self._last_id = 0
        self._buffer = bytearray()
        self._scanned = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._socket.settimeout(timeout or CONNECT_TIMEOUT)
            self._socket.connect(path)
            credentials = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        except BaseException:
            self._socket.close()
            raise
        uid = struct.unpack("3i", credentials)[1]
        if not _trusted(uid):
            self._socket.close()
            raise TpdError(-32007, "not_permitted",
                           "%s is served by uid %d, who is neither you, root nor tpd" % (path, uid))

    def close(self) -> None:
        self._socket.close()

    def _allow_time(self) -> None:
        """Lets the next operation of the socket take what is left of the call's time."""
        if self.deadline is None:
            self._socket.settimeout(None)
            return
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise socket.timeout()
        self._socket.settimeout(left)

    def _send(self, message: Dict[str, Any]) -> None:
        data = memoryview(json.dumps(message, allow_nan=False, ensure_ascii=False).encode() + b"\n")
        while data:
            self._allow_time()
            data = data[self._socket.send(data):]

    def _read_line(self) -> bytes:
        while True:
            end = self._buffer.find(b"\n", self._scanned)
            if end >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[:end + 1]
                self._scanned = 0
                return line
            self._scanned = len(self._buffer)
            if self._scanned > MAX_LINE:
                raise _broken("%s: the daemon sent a line that is too long" % self.path)
            self._allow_time()
            data = self._socket.recv(1 << 16)
            if not data:
                raise _broken("%s: the daemon closed the connection" % self.path)
            self._buffer += data

    def start(self, method: str, params: Dict[str, Any], timeout: Optional[float]) -> None:
        """Sends a request; its answers come through `messages`."""
        self.deadline = time.monotonic() + timeout if timeout else None
        self._last_id += 1
        with self._failures(method):
            try:
                self._send({"jsonrpc": "2.0", "id": self._last_id, "method": method,
                            "params": params})
            except (BrokenPipeError, ConnectionResetError):
                pass  # a daemon that refuses a request unread says why; read that first

    def cancel(self) -> None:
        """Asks the daemon to end the call; short enough never to wait."""
        line = {"jsonrpc": "2.0", "method": "cancel", "params": {"id": self._last_id}}
        try:
            self._socket.send(json.dumps(line).encode() + b"\n", socket.MSG_DONTWAIT)
        except OSError:
            pass  # the daemon is gone, and the call with it

    def next_message(self, method: str) -> Dict[str, Any]:
        """The next notification or the response of the call in flight."""
        while True:
            with self._failures(method):
                line = self._read_line()
            try:
                message = json.loads(line.decode())
            except (ValueError, RecursionError):
                message = None
            if not isinstance(message, dict):
                raise _broken("%s: the daemon sent a line that is not a JSON object" % self.path)
            id_ = message.get("id")
            if "method" in message:
                if not isinstance(message.setdefault("params", {}), dict):
                    raise _broken("%s: the daemon sent a notification without sense" % self.path)
                id_ = message["params"].get("id", self._last_id)
            if id_ == self._last_id or (id_ is None and "error" in message):
                return message

    def _failures(self, method: str) -> "_Failures":
        return _Failures(self.path, method)


class _Failures:
    """Failures of the socket as TpdError."""

    def __init__(self, path: str, method: str):
        self.path, self.method = path, method

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, socket.timeout):
            raise TpdError(-32051, "deadline", "%s: the time given is over" % self.method) from None
        if isinstance(error, OSError):
            raise _broken("%s: %s" % (self.path, error.strerror or error)) from None


def _result_of(response: Dict[str, Any]) -> Any:
    error = response.get("error")
    if isinstance(error, dict):
        data = error.get("data") if isinstance(error.get("data"), dict) else {}
        raise TpdError(error.get("code", -32603), data.get("kind", "internal"),
                       str(error.get("message", "the daemon failed and did not say why")), data)
    if "result" not in response:
        raise _broken("the daemon's answer has no result and no error")
    return response["result"]


class Stream:
    """The pieces of a generation as they come. `result` is the whole answer once it has ended.

    Leaving the iteration early, by `close()` or a `with` block, cancels the generation; `cancel()`
    (from any thread) ends it too, but leaves what has come to be read, and `result` with it.
    """

    def __init__(self, client: "Client", connection: _Connection, method: str):
        self._client = client
        self._connection: Optional[_Connection] = connection
        self._method = method
        self.result: Optional[Result] = None

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if self._connection is None:
            raise StopIteration
        try:
            while True:
                message = self._connection.next_message(self._method)
                if "method" not in message:
                    break
                text = message["params"].get("text")
                if message["method"] == "token" and isinstance(text, str):
                    return text
            self.result = _result_of(message)
        except BaseException:
            self.close()
            raise
        self._client._give_back(self._connection)
        self._connection = None
        raise StopIteration

    def cancel(self) -> None:
        connection = self._connection
        if connection:
            connection.cancel()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection:
            connection.cancel()
            connection.close()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()


# --- weights, mapped --------------------------------------------------------------------------

_TYPES = {"f32": "<f4", "f16": "<f2", "bf16": "<u2", "u8": "|u1", "u32": "<u4"}  # numpy has no bf16


def _numpy() -> Any:
    try:
        import numpy
    except ImportError:
        return None
    return numpy


class _CudaMemory:
    """What a CUDA IPC handle opens, through the driver alone."""

    def __init__(self, handle: bytes, device: int):
        class Handle(ctypes.Structure):
            _fields_ = [("reserved", ctypes.c_char * 64)]
        self._driver = ctypes.CDLL("libcuda.so.1")
        context, at = ctypes.c_void_p(), ctypes.c_uint64()
        given = Handle.from_buffer_copy(handle)
        self._check("cuInit", 0)
        self._check("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._check("cuCtxSetCurrent", context)
        self._check("cuIpcOpenMemHandle_v2", ctypes.byref(at), given, 1)
        self.address = at.value

    def _check(self, name: str, *args: Any) -> None:
        rc = getattr(self._driver, name)(*args)
        if rc:
            raise _broken("%s failed with CUDA's error %d" % (name, rc))

    def close(self) -> None:
        address, self.address = self.address, 0
        if address:
            self._check("cuIpcCloseMemHandle", ctypes.c_uint64(address))


class _CudaArray:
    """An array in a GPU's memory: torch.as_tensor and cupy.asarray take it without a copy."""

    def __init__(self, memory: _CudaMemory, about: Dict[str, Any]):
        self._memory = memory
        self.__cuda_array_interface__ = {
            "version": 3, "typestr": _TYPES[about["type"]], "shape": tuple(about["shape"]),
            "strides": tuple(about["stride"]), "data": (memory.address + about["offset"], True)}


class TensorShard:
    """One rank's part of a tensor: rows and cols (None: a vector) are half-open ranges, layout says
    how it stands in memory (docs/tensors.md), memory is the mapping, which nobody can write to."""

    def __init__(self, about: Dict[str, Any], dtype: str):
        self.rank: int = about["rank"]
        self.rows = about["rows"]
        self.cols = about.get("cols")
        self.layout: Dict[str, Any] = about["layout"]
        self._dtype = dtype
        handle = about["handle"]
        if handle["kind"] == "cuda":
            self.memory: Any = _CudaMemory(bytes.fromhex(handle["ipc"]), handle["device"])
            return
        try:
            fd = os.open("/dev/shm" + handle["name"], os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise _broken("%s: %s" % (handle["name"], error.strerror)) from None
        try:
            self.memory = mmap.mmap(fd, about["offset"] + about["bytes"], mmap.MAP_SHARED,
                                    mmap.PROT_READ)
        finally:
            os.close(fd)

    def array(self, name: str = "values", which: int = 0) -> Any:
        """The layout's array of that name, of four axes (panel, block, lane, word), as a view without
        a copy: numpy's; without numpy a memoryview of its bytes from the first to the last; in a GPU's
        memory an object for torch.as_tensor or cupy.asarray. which: 1 for the second of two."""
        about = [a for a in self.layout["arrays"] if a["name"] == name][which]
        if isinstance(self.memory, _CudaMemory):
            return _CudaArray(self.memory, about)
        numpy = _numpy()
        if numpy:
            return numpy.ndarray(about["shape"], _TYPES[about["type"]], self.memory,
                                 about["offset"], about["stride"])
        size = sum((n - 1) * step for n, step in zip(about["shape"], about["stride"]))
        size += int(_TYPES[about["type"]][-1])
        return memoryview(self.memory)[about["offset"]:about["offset"] + size]

    def _rows(self, name: str, which: int = 0) -> Any:
        """An array as [row, block, word]."""
        a = self.array(name, which)
        panels, blocks, lanes, words = a.shape
        return a.transpose(0, 2, 1, 3).reshape(panels * lanes, blocks, words)[:self.n_rows]

    @property
    def n_rows(self) -> int:
        return self.rows[1] - self.rows[0]

    @property
    def n_cols(self) -> int:
        return self.cols[1] - self.cols[0] if self.cols else 1

    def codes(self) -> Any:
        """The codes of a quantised part as [row, block, column of the block]: unsigned, as they stand
        in a GGUF file (q8_0: + 128)."""
        numpy = _numpy()
        out: Any = 0
        for which, about in enumerate(a for a in self.layout["arrays"] if a["name"] == "codes"):
            words, bits = self._rows("codes", which), about["bits"]
            at = numpy.arange(0, 32, bits, dtype="<u4")
            if self.layout["by_bytes"]:
                i = numpy.arange(32 // bits, dtype="<u4")
                at = i % 4 * 8 + i // 4 * bits
            each = words[..., None] >> at & ((1 << bits) - 1)
            each = each.reshape(*words.shape[:2], self.layout["columns"])
            out = out | each << about["shift"]
        return out

    def sub_scales(self) -> Any:
        """The packed sub-scales of a K-quant as [row, block, byte], as they stand in a GGUF file."""
        return _numpy().ascontiguousarray(self._rows("sub_scales")).view("u1")

    def floats(self) -> Any:
        """This part as plain float32 [rows, cols], in memory of your own. Needs numpy."""
        numpy = _numpy()
        if numpy is None or isinstance(self.memory, _CudaMemory):
            raise TypeError("floats() needs numpy and memory of the CPU; see layout and array()")
        names = [a["name"] for a in self.layout["arrays"]]
        if "values" in names:
            values = self._rows("values").reshape(self.n_rows, -1)[:, :self.n_cols]
            if self.layout["arrays"][0]["type"] == "bf16":
                return (values.astype("<u4") << 16).view("<f4")
            return values.astype("<f4")
        scale = self._rows("scale").astype("<f4")
        minimum = self._rows("minimum").astype("<f4") if "minimum" in names else None
        packed = self.sub_scales() if "sub_scales" in names else None
        scale, offset = _run_scales(numpy, self._dtype, scale, minimum, packed)
        codes = self.codes().astype("<f4")
        runs = codes.reshape(*scale.shape, -1)
        return (scale[..., None] * runs + offset[..., None]).reshape(self.n_rows, self.n_cols)


def _run_scales(np: Any, dtype: str, d: Any, m: Any, packed: Any) -> Any:
    """value = scale * code + offset, both [row, block, run], from the block's own and the packed ones."""
    if packed is None:
        zero = {"q8_0": 128, "q4_0": 8, "q5_0": 16}.get(dtype)
        return (d, m) if zero is None else (d, np.float32(-zero) * d)
    b = packed.astype("<i4")
    if dtype == "q2_k":
        return d * (b & 15), -(m * (b >> 4))
    if dtype == "q6_k":
        scale = d * (b - 256 * (b > 127))
        return scale, np.float32(-32) * scale
    if dtype == "q3_k":
        low = np.concatenate([b[..., :8] & 15, b[..., :8] >> 4], -1)
        high = np.concatenate([b[..., 8:] >> shift & 3 for shift in (0, 2, 4, 6)], -1)
        scale = d * ((low | high << 4) - 32)
        return scale, np.float32(-4) * scale
    first, second, third = b[..., :4], b[..., 4:8], b[..., 8:]  # q4_k and q5_k
    scale = np.concatenate([first & 63, third & 15 | first >> 6 << 4], -1)
    minimum = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], -1)
    return d * scale, -(m * minimum)


class Tensor:
    """A tensor of the model that is loaded, mapped from the ranks' own memory: no copy is made, and
    nothing can be written. It stays readable when the daemon unloads the model or ends."""

    def __init__(self, about: Dict[str, Any]):
        self.about = about
        self.name: str = about["name"]
        self.shape = tuple(about["shape"])
        self.dtype: str = about["dtype"]
        self.shards = [TensorShard(shard, self.dtype) for shard in about["shards"]]

    def floats(self) -> Any:
        """All of it as plain float32 of its shape, in memory of your own. Needs numpy."""
        numpy = _numpy()
        whole = self.shape if len(self.shape) == 2 else (self.shape[0], 1)
        out = numpy.empty(whole, "<f4") if numpy else None
        for shard in self.shards:
            part = shard.floats()
            cols = shard.cols or (0, 1)
            out[shard.rows[0]:shard.rows[1], cols[0]:cols[1]] = part
        return out.reshape(self.shape)

    def close(self) -> None:
        """Lets the mappings go; one that views still use goes with the last of them. Views of a GPU's
        memory end here."""
        for shard in self.shards:
            if isinstance(shard.memory, _CudaMemory):
                shard.memory.close()
            shard.memory = None

    def __enter__(self) -> "Tensor":
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()


class Client:
    """Speaks with one daemon. Any thread may call at any time: each call in flight has a connection
    of its own, and connections are kept for later calls.

    socket: a path; else $TPD_SOCKET, else the usual places. timeout: seconds for each call (for a
    stream: from its start to its end), None for no limit.
    """

    def __init__(self, socket: Optional[str] = None, timeout: Optional[float] = None):
        self.timeout = timeout
        self._lock = threading.Lock()
        self._idle: List[_Connection] = []
        self._closed = False
        named = socket or os.environ.get("TPD_SOCKET")
        first = self._find([named] if named else default_sockets())
        self.socket = first.path
        self._give_back(first)

    def _find(self, places: List[str]) -> _Connection:
        refused: Optional[TpdError] = None
        for path in places:
            try:
                return self._connect(path)
            except NoDaemon:
                continue
            except TpdError as error:
                if not isinstance(error.__cause__, PermissionError):
                    raise
                refused = refused or error
        raise refused or NoDaemon("no daemon at %s; start one with: tpd --model PATH"
                                  % ", ".join(places))

    def _connect(self, path: str) -> _Connection:
        try:
            return _Connection(path, self.timeout)
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            raise NoDaemon("no daemon at %s; start one with: tpd --model PATH --socket %s"
                           % (path, path)) from None
        except PermissionError as error:
            raise TpdError(-32007, "not_permitted", "%s: not permitted to connect" % path) from error
        except socket.timeout:
            raise TpdError(-32051, "deadline", "%s: the daemon took no connection" % path) from None
        except OSError as error:
            raise _broken("%s: cannot connect: %s" % (path, error.strerror or error)) from None

    def _take(self) -> _Connection:
        with self._lock:
            if self._closed:
                raise _broken("the client is closed")
            if self._idle:
                return self._idle.pop()
        return self._connect(self.socket)

    def _give_back(self, connection: _Connection) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Closes what is idle; calls in flight end as they would."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    def call(self, method: str, /, **params: Any) -> Any:
        """Any method of the protocol; notifications on the way are passed over."""
        connection = self._take()
        try:
            connection.start(method, params, self.timeout)
            while True:
                message = connection.next_message(method)
                if "method" not in message:
                    break
        except BaseException:
            connection.close()  # which cancels what it still does
            raise
        self._give_back(connection)
        return _result_of(message)

    def _stream(self, method: str, params: Dict[str, Any]) -> Stream:
        connection = self._take()
        try:
            connection.start(method, dict(params, stream=True), self.timeout)
        except BaseException:
            connection.close()
            raise
        return Stream(self, connection, method)

    def generate(self, prompt: Prompt, stream: bool = False, **sampling: Any) -> Any:
        """Continues a prompt (text or token ids). Returns the result with "text", "tokens",
        "finish_reason", "usage" …; with stream=True a Stream of pieces of text.

        sampling: max_tokens, temperature, top_k, top_p, min_p, seed, stop, logprobs, json_schema (a
        dict), grammar (GBNF) … as the protocol names them.
        """
        if not stream:
            return self.call("generate", prompt=prompt, **sampling)
        return self._stream("generate", dict(sampling, prompt=prompt))

    def chat(self, messages: List[Dict[str, Any]], stream: bool = False, **sampling: Any) -> Any:
        """Answers a conversation: a list of {"role", "content"}. Returns the result, which has the
        answer as "message" to go on with; with stream=True a Stream of pieces of text.

        sampling: as for generate, and tools, chat_template_kwargs, add_generation_prompt.
        """
        if not stream:
            return self.call("chat", messages=messages, **sampling)
        return self._stream("chat", dict(sampling, messages=messages))

    def template(self, messages: List[Dict[str, Any]], **more: Any) -> Result:
        """What chat gives the model to read: {"text", "tokens"}."""
        return self.call("template", messages=messages, **more)

    def score(self, prompt: Prompt, completion: Prompt) -> Result:
        """Log-probabilities of a completion after a prompt, their sum and the perplexity."""
        return self.call("score", prompt=prompt, completion=completion)

    def embed(self, input: Union[Prompt, List[Prompt]], pooling: str = "mean",
              adapter: Optional[str] = None) -> List[List[float]]:
        """Vectors of length 1, one a text. pooling: "mean" of a text's tokens, or "last"."""
        params = {} if adapter is None else {"adapter": adapter}
        return self.call("embed", input=input, pooling=pooling, **params)["vectors"]

    def tokenize(self, text: str, special: Optional[bool] = None) -> Result:
        """{"tokens": ids, "pieces": texts}. special: whether special tokens are added and read;
        the daemon's own choice when it is None."""
        params = {} if special is None else {"special": special}
        return self.call("tokenize", text=text, **params)

    def detokenize(self, tokens: List[int]) -> str:
        """The text of token ids."""
        return self.call("detokenize", tokens=tokens)["text"]

    def ping(self) -> Result:
        """{"version", "protocol"} of a daemon that answers."""
        return self.call("ping")

    def status(self) -> Result:
        """Model, devices, slots, queue, speeds."""
        return self.call("status")

    def model_info(self) -> Result:
        """What is loaded: architecture, shapes, dtype, bytes a rank."""
        return self.call("model.info")

    def model_load(self, path: Optional[str] = None, tp: Optional[int] = None,
                   ctx: Optional[int] = None) -> Result:
        """Loads a model into a daemon that has none; answers as model_info when it serves."""
        given = {"path": path, "tp": tp, "ctx": ctx}
        return self.call("model.load", **{k: v for k, v in given.items() if v is not None})

    def model_unload(self, timeout_s: Optional[float] = None) -> Result:
        """Lets live requests end (for at most timeout_s seconds) and frees the model; the daemon stays."""
        return self.call("model.unload", **({} if timeout_s is None else {"timeout_s": timeout_s}))

    def model_merge(self, adapter: str, out: str) -> Result:
        """Writes the model and an adapter as one model, the Hugging Face directory `out` under state_dir."""
        return self.call("model.merge", adapter=adapter, out=out)

    def tensor_list(self) -> List[Result]:
        """The model's tensors: name, shape, dtype, and which rank holds which rows and columns."""
        return self.call("tensor.list")["tensors"]

    def tensor_map(self, name: str) -> Tensor:
        """Maps a tensor read-only and without a copy; see Tensor and TensorShard."""
        return Tensor(self.call("tensor.export", name=name))

    def plan(self, path: Optional[str] = None, **question: Any) -> Result:
        """What each rank holds and does when a model is served, and trained: bytes by kind, whether
        it fits, the cost of a step.

        path: a directory, a .gguf file or a config.json; None: the model that is loaded. question:
        tp, ctx, batch, train, memory … as the protocol names them."""
        return self.call("plan", **(question if path is None else dict(question, path=path)))

    def metrics(self) -> str:
        """The daemon's counters as Prometheus reads them."""
        result = self.call("metrics")
        return result["text"] if isinstance(result, dict) else result

    def finetune_submit(self, data: str, **job: Any) -> Result:
        """Queues a fine-tune job: data is a file under the daemon's data_dir, job what the protocol
        names (name, epochs, lr, lora={"r": 8} …). Returns it with "job", its number."""
        return self.call("finetune.submit", data=data, **job)

    def jobs(self) -> List[Result]:
        """All fine-tune jobs, the newest first."""
        return self.call("finetune.list")["jobs"]

    def job(self, job: Job) -> Result:
        """A job (by number or name) and, as "spec", what it asks for."""
        return self.call("finetune.get", job=job)

    def job_log(self, job: Job, after: int = 0) -> List[Result]:
        """Its events behind the cursor `after`, each with "cursor", "time" and "event"."""
        events: List[Result] = []
        while True:
            page = self.call("finetune.log", job=job, after=after)
            events += page["events"]
            job, after = page["job"], page["after"]
            if not page["more"]:
                return events

    def job_watch(self, job: Job, on_event: Optional[Callable[[Result], None]] = None,
                  after: int = 0) -> Result:
        """Waits until the job has ended, however, and returns it; on_event is given each event."""
        connection = self._take()
        try:
            connection.start("finetune.watch", {"job": job, "after": after}, self.timeout)
            while True:
                message = connection.next_message("finetune.watch")
                if "method" not in message:
                    break
                if message["method"] == "job" and on_event:
                    on_event(message["params"])
        except BaseException:
            connection.close()
            raise
        self._give_back(connection)
        return _result_of(message)

    def job_cancel(self, job: Job) -> Result:
        """Ends a job for good."""
        return self.call("finetune.cancel", job=job)

    def job_pause(self, job: Job) -> Result:
        """Stops a job so that job_resume can let it go on."""
        return self.call("finetune.pause", job=job)

    def job_resume(self, job: Job) -> Result:
        """Lets a paused job go on."""
        return self.call("finetune.resume", job=job)

    def job_delete(self, job: Job, result: bool = False) -> Result:
        """Forgets an ended job with its log and checkpoints; its result goes, too, if that is asked for
        and nobody uses it."""
        return self.call("finetune.delete", job=job, **({"result": True} if result else {}))

    def shutdown(self, drain: bool = False, timeout_s: Optional[float] = None) -> Result:
        """Ends the daemon; with drain after its live work, for at most timeout_s seconds."""
        params = {} if timeout_s is None else {"timeout_s": timeout_s}
        return self.call("shutdown", drain=drain, **params)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _main(words: List[str]) -> int:
    if not words:
        print("usage: tpd.py generate PROMPT [key=value]… | tpd.py METHOD [key=value]…",
              file=sys.stderr)
        return 64
    method, rest = words[0], words[1:]
    prompt = rest.pop(0) if method == "generate" and rest else None
    params = {key: _value(value) for key, _, value in (word.partition("=") for word in rest)}
    try:
        with Client() as client:
            if prompt is None:
                print(json.dumps(client.call(method, **params), ensure_ascii=False))
                return 0
            for piece in client.generate(prompt, stream=True, **params):
                print(piece, end="", flush=True)
            return 0
    except NoDaemon as error:
        print("tpd.py:", error, file=sys.stderr)
        return 69
    except TpdError as error:
        print("tpd.py:", error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    try:
        sys.exit(_main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
