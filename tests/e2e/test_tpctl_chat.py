"""tpctl chat through a pseudo-terminal and through pipes, and tpctl template."""
import json
import os
import pty
import re
import select
import signal
import subprocess
import time

import pytest

from daemon import BUILD, need_terminals

ANSWER_S = 30
CONTEXT = 256 # tokens, of the test model
TPCTL = str(BUILD / "tpctl")
FEW = ("-n", "6", "-t", "0")


def environment(home):
    return {**os.environ, "HOME": str(home), "XDG_STATE_HOME": str(home / "state"), "TERM": "xterm",
            "LC_ALL": "C.UTF-8"}


class Terminal:
    """tpctl on a terminal of its own."""

    def __init__(self, home, *args):
        self.seen = ""
        need_terminals()
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(home)
            os.execve(TPCTL, [TPCTL, *args], environment(home))

    def read(self, seconds):
        """More of what is on the screen; False at the end."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.fd, 4096)
        except OSError:
            return False
        self.seen += data.decode("utf-8", "replace")
        return bool(data)

    def until(self, text):
        """Waits for text on the screen; gives what came up to it and forgets that."""
        end = time.monotonic() + ANSWER_S
        while text not in self.seen:
            assert time.monotonic() < end, self.seen
            assert self.read(0.2) or text in self.seen, self.seen
        before, _, self.seen = self.seen.partition(text)
        return before

    def say(self, text):
        """A message, up to the prompt behind its answer (which --timings makes sure of)."""
        self.type(text + "\n")
        self.until("from the cache]")
        self.until("> ")

    def type(self, text):
        os.write(self.fd, text.encode())

    def end(self):
        """The exit code."""
        end = time.monotonic() + ANSWER_S
        while self.read(0.2):
            assert time.monotonic() < end, self.seen
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def talk(tpd, tmp_path):
    """talk(*args): a conversation at its first prompt."""
    def talk(*args):
        terminal = Terminal(tmp_path, "--socket", str(tpd.socket), "chat", "--timings", *args)
        terminal.until("> ")
        return terminal
    return talk


def piped(tpd, home, text, *args):
    return subprocess.run([TPCTL, "--socket", str(tpd.socket), "chat", *args], input=text, text=True,
                          capture_output=True, timeout=ANSWER_S, env=environment(home), cwd=home)


def test_a_conversation_on_a_terminal(talk, tmp_path):
    t = talk(*FEW)
    t.type("Hello\n")
    assert "tokens/s" in t.until("from the cache]")
    t.until("> ")
    t.say("Again")
    t.type("/save talk.jsonl\n")
    t.until("are in talk.jsonl")
    t.until("> ")  # only there is Ctrl-D read as a key
    t.type("\x04")
    assert t.end() == 0
    record = json.loads((tmp_path / "talk.jsonl").read_text())
    assert [m["role"] for m in record["messages"]] == ["user", "assistant"] * 2
    assert record["messages"][2]["content"] == "Again"


def test_a_file_that_cannot_be_written_ends_no_conversation(talk, tmp_path):
    t = talk(*FEW)
    t.say("Hello")
    t.type("/save none/talk.jsonl\n")
    t.until("none/talk.jsonl: cannot write: No such file or directory")
    t.until("> ")
    t.type("/save /dev/full\n")
    t.until("/dev/full: cannot write: No space left on device")
    t.until("> ")
    t.type("/save talk.jsonl\n/quit\n")
    assert t.end() == 0
    assert json.loads((tmp_path / "talk.jsonl").read_text())["messages"][0]["content"] == "Hello"


def test_history_is_kept_for_the_user_alone(talk, tmp_path):
    t = talk(*FEW)
    t.say("a märchen, once")
    t.type("\x04")
    assert t.end() == 0
    path = tmp_path / "state/tpd/chat_history"
    assert path.stat().st_mode & 0o777 == 0o600
    t = talk(*FEW)
    t.say("\x1b[A")  # the key that goes up
    t.type("/save again.jsonl\n/quit\n")
    assert t.end() == 0
    assert json.loads((tmp_path / "again.jsonl").read_text())["messages"][0]["content"] == "a märchen, once"
    t = talk(*FEW, "--no-history")
    t.say("a secret")
    t.type("/quit\n")
    assert t.end() == 0
    assert "secret" not in path.read_text()


def test_several_lines_make_one_message(talk, tmp_path):
    t = talk(*FEW)
    t.type("one \\\n")
    t.until("…")
    t.say("two")
    t.say('"""\nthree\n\nfour\n"""')
    t.say("//slash")
    t.type("/save l.jsonl\n/quit\n")
    assert t.end() == 0
    said = [m["content"] for m in json.loads((tmp_path / "l.jsonl").read_text())["messages"][::2]]
    assert said == ["one \ntwo", "three\n\nfour", "/slash"]


def interrupt(t):
    """Ctrl-C once the answer begins; whether it came within the answer."""
    t.type("Speak\n")
    t.until("Speak")
    t.until("\n")
    while not t.seen:
        assert t.read(ANSWER_S)
    os.kill(t.pid, signal.SIGINT)
    timings = re.search(r"\[(\d+) tokens,.*of (\d+) prompt", t.until("from the cache]"))
    t.until("> ")
    tokens, prompt = int(timings[1]), int(timings[2])
    return 0 < tokens < CONTEXT - prompt


def test_ctrl_c_ends_the_answer_and_not_the_talk(talk, tmp_path):
    t = talk("-t", "1.5", "--ignore-eos")
    tries = 1
    while not interrupt(t): # a fast machine is sometimes done before, a slow one has not begun
        assert (tries := tries + 1) < 50
        time.sleep(0.2)
        t.type("/reset\n")
        t.until("/reset")
        t.until("> ")
    t.type("/save c.jsonl\n/quit\n")
    assert t.end() == 0
    messages = json.loads((tmp_path / "c.jsonl").read_text())["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant"] and messages[1]["content"]


def test_ctrl_c_at_the_prompt_takes_the_line_back(talk, tmp_path):
    t = talk(*FEW)
    t.type("never mind")
    t.until("never mind")
    t.type("\x03")
    t.until("> ")
    t.say("Hello")
    t.type("/save c.jsonl\n/quit\n")
    assert t.end() == 0
    assert json.loads((tmp_path / "c.jsonl").read_text())["messages"][0]["content"] == "Hello"


def test_commands(talk, tmp_path):
    t = talk(*FEW, "--system", "Be kind.")
    t.type("/system\n")
    t.until("Be kind.")
    t.say("Hello")
    t.type("/reset\n/save r.jsonl\n")
    t.until("1 messages are in")
    t.type("/system Be brief.\n/save r.jsonl\n")
    t.until("1 messages are in")
    t.type("/adapter\n")
    t.until("no adapter is loaded")
    t.type("/adapter nosuch\nHello\n")
    t.until("tpctl: ")
    assert "nosuch" in t.until("\n")
    t.type("/rest\n")
    t.until("did you mean /reset?")
    t.type("/help\n")
    t.until("/adapter [NAME]")
    t.type("/quit\n")
    assert t.end() == 0
    records = [json.loads(line)["messages"] for line in (tmp_path / "r.jsonl").open()]
    assert records == [[{"role": "system", "content": "Be kind."}], [{"role": "system", "content": "Be brief."}]]


def test_a_line_of_a_pipe_is_a_message(tpd, client, tmp_path):
    done = piped(tpd, tmp_path, "Hi\n\nAnd?\n/save p.jsonl\n", *FEW)
    assert done.returncode == 0, done.stderr
    first = client.call("chat", messages=[{"role": "user", "content": "Hi"}], max_tokens=6, temperature=0)
    messages = json.loads((tmp_path / "p.jsonl").read_text())["messages"]
    assert [m["content"] for m in messages[:3]] == ["Hi", first["text"], "And?"]
    assert done.stdout == first["text"] + "\n" + messages[3]["content"] + "\n"
    assert done.stderr == ""
    assert not (tmp_path / "state").exists()


def test_one_question_in_one_call(tpd, client, tmp_path):
    want = client.call("chat", messages=[{"role": "user", "content": "a\nb\n"}], max_tokens=6, temperature=0)
    done = piped(tpd, tmp_path, "a\nb\n", "-", *FEW)
    assert (done.returncode, done.stdout) == (0, want["text"] + "\n")
    done = piped(tpd, tmp_path, "", "Hi", *FEW, "--json")
    assert json.loads(done.stdout)["message"]["role"] == "assistant"


def test_failures_have_their_exit_codes(tpd, tmp_path):
    assert piped(tpd, tmp_path, "Hi\n", "--adapter", "nosuch").returncode == 66
    done = subprocess.run([TPCTL, "--socket", str(tmp_path / "none"), "chat"], input="Hi\n", text=True,
                          capture_output=True, timeout=ANSWER_S)
    assert done.returncode == 69


def test_template_prints_what_the_model_reads(tpd, client, tmp_path):
    def run(text, *args):
        done = subprocess.run([TPCTL, "--socket", str(tpd.socket), "template", *args], input=text, text=True,
                              capture_output=True, timeout=ANSWER_S)
        assert done.returncode == 0, done.stderr
        return done.stdout
    talk = [{"role": "system", "content": "S"}, {"role": "user", "content": "Hi"}]
    text = client.call("template", messages=talk)["text"]
    assert run("", "Hi", "--system", "S") == text
    assert run(json.dumps(talk)) == text
    assert run(json.dumps({"messages": talk, "tools": []}), "-") == text
    assert run("", "Hi", "--no-prompt") == "<|im_start|>user\nHi<|im_end|>\n"
    assert json.loads(run(json.dumps(talk), "--json"))["tokens"]
