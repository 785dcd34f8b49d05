"""A crowd of clients, good and bad, for as long as one likes: most are only connected, the others each
have a request live and end it in one of many ways. Answers that come whole are held to what the daemon
said when it was alone."""
import asyncio
import collections
import json
import random

TOKENS = 160          # of each known answer
PATIENCE_S = 120      # no answer takes longer, however slow the machine


class Wrong(Exception):
    """The daemon did what it must not."""


class Line:
    """One JSON-RPC connection."""

    @classmethod
    async def open(cls, path):
        self = cls()
        self.reader, self.writer = await asyncio.open_unix_connection(path, limit=1 << 22)
        return self

    def send(self, id, method, /, **params):
        self.raw(json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}) + "\n")

    def raw(self, text):
        self.writer.write(text.encode())

    async def message(self):
        line = await asyncio.wait_for(self.reader.readline(), PATIENCE_S)
        if not line.endswith(b"\n"):
            raise ConnectionResetError("the connection ended")
        return json.loads(line)

    async def reply(self):
        """A message that is about a request, as all are when none was broken."""
        message = await self.message()
        if message.get("id", 0) is None:
            raise Wrong(f"not asked for: {message}")
        return message

    async def answer(self, id):
        """(the answer to a request, the tokens of its notifications)"""
        tokens = []
        while True:
            message = await self.reply()
            if message.get("id") == id and "method" not in message:
                return message, tokens
            if message.get("method") == "token":
                tokens += message["params"]["tokens"]

    def vanish(self):
        self.writer.transport.abort()

    async def close(self):
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except (BrokenPipeError, ConnectionResetError):
            pass


class Crowd:
    """connections of them, live of which have a request. known: {prompt as a tuple: its tokens}."""

    def __init__(self, path, known, connections=1000, live=200, slow_client_s=2, seed=1):
        self.path, self.known, self.slow_client_s = str(path), known, slow_client_s
        self.connections, self.live = connections, live
        self.random = random.Random(seed)
        self.counts = collections.Counter()
        self.jobs = {}  # id: whether we cancelled it
        self.open = 0

    # --- what a client may do -------------------------------------------------------------------

    def ask(self, **more):
        prompt = self.random.choice(list(self.known))
        n = self.random.randrange(1, TOKENS)
        return {"prompt": list(prompt), "max_tokens": n, "temperature": 0, "ignore_eos": True,
                "stream": self.random.random() < 0.7, **more}

    def check(self, ask, tokens, whole):
        expected = self.known[tuple(ask["prompt"])][:ask["max_tokens"]]
        if tokens != (expected if whole else expected[:len(tokens)]):
            raise Wrong(f"{ask} was answered with {tokens} in place of {expected}")

    def check_answer(self, ask, message, told):
        """An answer to ask that nobody cut short, or a refusal that says so."""
        if "error" in message:
            if message["error"]["code"] != -32001:
                raise Wrong(f"{ask} was refused: {message}")
            self.counts["overloaded"] += 1
            return
        result = message["result"]
        if ask["stream"] and told != result["tokens"]:
            raise Wrong(f"{told} was told and {result['tokens']} is the answer")
        self.check(ask, result["tokens"], result["finish_reason"] == "length")

    async def whole(self, line):
        ask = self.ask(speculative=self.random.choice(["off", "ngram"]))
        line.send(1, "generate", **ask)
        self.check_answer(ask, *await line.answer(1))

    async def several(self, line):
        """Requests of all kinds at once."""
        asks = [self.ask(), self.ask(n=2, temperature=1, seed=self.random.randrange(99)),
                self.ask(grammar='root ::= [a-z ]+', temperature=1, max_tokens=9), self.ask()]
        for id, ask in enumerate(asks):
            line.send(id, "generate", **{**ask, "stream": False})
        left = set(range(len(asks)))
        while left:
            message = await line.reply()
            left.remove(message["id"])
            if message["id"] in (0, 3):
                self.check_answer({**asks[message["id"]], "stream": False}, message, [])

    async def cancels(self, line):
        ask = self.ask()
        line.send(1, "generate", **ask)
        if ask["stream"] and self.random.random() < 0.7:
            await line.reply()
        line.send("c", "cancel", id=1)
        tokens, left = [], {1, "c"}
        while left:
            message = await line.reply()
            if "method" in message:
                tokens += message["params"]["tokens"]
                continue
            left.discard(message["id"])
            if message["id"] == 1 and "result" in message:
                self.check(ask, message["result"]["tokens"], False)

    async def vanishes(self, line):
        line.send(1, "generate", **self.ask(stream=True))
        if self.random.random() < 0.8:
            await line.reply()
        line.vanish()

    async def half_a_line(self, line):
        text = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "generate", "params": self.ask()})
        line.raw(text[:self.random.randrange(1, len(text))])
        await asyncio.sleep(self.random.random())
        if self.random.random() < 0.5:
            line.vanish()

    async def broken_lines(self, line):
        for _ in range(3):
            line.raw(self.random.choice(["{]\n", "{\"id\":1}\n", "{\"x\": \"\\ud800\"}\n"]))
            if "error" not in await line.message():
                raise Wrong("a broken line was taken")
        await self.whole(line)

    async def slow_reader(self, line):
        """Reads nothing for a while: paused, perhaps dropped."""
        ask = self.ask(stream=True, logprobs=20, max_tokens=TOKENS)
        for id in range(3):
            line.send(id, "generate", **ask)
        line.writer.transport.pause_reading()
        await asyncio.sleep(self.random.uniform(0, 2 * self.slow_client_s))
        line.writer.transport.resume_reading()
        if self.random.random() < 0.3:
            line.vanish()
            return
        try:
            left = {0, 1, 2}
            while left:
                message = await line.message()
                if "method" not in message:
                    left.discard(message["id"])
                    self.check_answer({**ask, "stream": False}, message, [])
        except ConnectionResetError:  # the loop of this process may be slower than the pause was meant
            self.counts["dropped for being slow"] += 1

    async def http(self, line):
        ask = self.ask(stream=True)
        body = json.dumps(ask)
        half = self.random.random() < 0.2
        line.raw(f"POST /v1/completions HTTP/1.1\r\nHost: tpd\r\nContent-Type: application/json\r\n"
                 f"Content-Length: {len(body) + (5 if half else 0)}\r\n\r\n{body}")
        if half:
            line.vanish()
            return
        vanish = self.random.random() < 0.3
        while True:
            text = await asyncio.wait_for(line.reader.readline(), PATIENCE_S)
            if not text:
                raise ConnectionResetError("the connection ended")
            if vanish and text.startswith(b"data"):
                line.vanish()
                return
            if text.startswith(b"data: [DONE]") or text.startswith(b"HTTP/1.1 429"):
                return

    async def worker(self, end):
        ways = {self.whole: 8, self.several: 2, self.cancels: 4, self.vanishes: 4,
                self.half_a_line: 2, self.broken_lines: 1, self.slow_reader: 2, self.http: 3}
        loop = asyncio.get_running_loop()
        while loop.time() < end:
            way, = self.random.choices(list(ways), list(ways.values()))
            line = await self.connect()
            try:
                await way(line)
                self.counts[way.__name__] += 1
            finally:
                await self.leave(line)

    async def idler(self, end):
        loop = asyncio.get_running_loop()
        while loop.time() < end:
            line = await self.connect()
            try:
                if self.random.random() < 0.5:
                    line.send(1, "ping")
                    await line.message()
                await asyncio.sleep(min(self.random.expovariate(0.1), max(0, end - loop.time())))
            finally:
                await self.leave(line)

    async def connect(self):
        line = await Line.open(self.path)
        self.open += 1
        self.counts["connections"] += 1
        self.counts["most at once"] = max(self.counts["most at once"], self.open)
        return line

    async def leave(self, line):
        self.open -= 1
        await line.close()

    async def job_maker(self, end, job):
        """One job after the other; every third is cancelled."""
        loop = asyncio.get_running_loop()
        line = await Line.open(self.path)
        while loop.time() < end:
            cancel = len(self.jobs) % 3 == 2
            line.send(1, "finetune.submit", **job)
            id = (await line.answer(1))[0]["result"]["job"]
            self.jobs[id] = cancel
            await asyncio.sleep(1)
            if cancel:
                line.send(2, "finetune.cancel", job=id)
                await line.answer(2)
        await line.close()

    async def stay(self, seconds, job):
        end = asyncio.get_running_loop().time() + seconds
        tasks = [self.worker(end) for _ in range(self.live)]
        tasks += [self.idler(end) for _ in range(self.connections - self.live)]
        tasks += [self.job_maker(end, job)]
        async with asyncio.TaskGroup() as group:
            for task in tasks:
                group.create_task(task)

    def run(self, seconds, job):
        """Comes, stays, and goes. What went wrong is raised."""
        try:
            asyncio.run(self.stay(seconds, job))
        except* Exception as several:
            raise several.exceptions[0] from None
