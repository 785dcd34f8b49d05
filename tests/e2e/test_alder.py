"""The bundled model (etc/models/alder) and the demo that shows it: what it says is whole, the same at every
tp, made by the scripts beside it; the demo shows what it promises and leaves nothing behind."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

from daemon import BUILD, ROOT, Daemon, eventually

ALDER = ROOT / "etc/models/alder"
EXPECTED = json.loads((ROOT / "tests/data/alder.json").read_text())


def texts(count, seed):
    run = subprocess.run([sys.executable, "-B", ALDER / "make_text.py", str(count), str(seed)],
                         capture_output=True, text=True, check=True)
    return run.stdout


@pytest.mark.parametrize("tp", [1, 2, 3])
def test_the_bundled_model_says_what_it_said(tmp_path, tp):
    daemon = Daemon(tmp_path / "tpd", ALDER, "--tp", tp)
    with daemon.client() as client:
        for case in EXPECTED:
            answer = client.call("generate", prompt=case["prompt"], max_tokens=case["max_tokens"],
                                 temperature=0)
            assert answer["text"] == case["text"]
    assert daemon.stop() == 0


def test_the_first_thing_to_try_answers(tmp_path):
    """What README shows a newcomer first, word by word."""
    shown = re.search(r"the first thing to try:\n```\n(.*?)```", (ROOT / "README.md").read_text(), re.S)[1]
    start, ask = shown.splitlines()
    assert re.fullmatch(r"tpd --model \S+/models/alder &", start)
    daemon = Daemon(tmp_path / "tpd", ALDER)
    run = subprocess.run(["sh", "-c", ask], capture_output=True, text=True, timeout=60,
                         env={**os.environ, "PATH": f"{BUILD}:{os.environ['PATH']}", "TPD_SOCKET": str(daemon.socket)})
    assert (run.returncode, run.stdout.strip()) == (0, "Mira lives in a den under the old oak."), run.stderr
    assert daemon.stop() == 0


def test_its_stories_are_whole_at_every_temperature(tmp_path):
    """Words are words of the valley, quotation marks come in pairs, and a story has an end."""
    known = set(re.findall(r"[A-Za-z]+", texts(2000, 99)))
    daemon = Daemon(tmp_path / "tpd", ALDER)
    words = strange = unpaired = unended = 0
    with daemon.client() as client:
        for seed in range(24):
            prompt = "<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\n"
            story = client.call("generate", prompt=prompt, max_tokens=300, seed=seed,
                                temperature=(0.7, 0.85, 1.0)[seed % 3])["text"]
            found = re.findall(r"[A-Za-z]+", story)
            words += len(found)
            strange += sum(word not in known for word in found)
            unpaired += story.count('"') % 2
            unended += not re.search(r'[.!?]"?$', story)
    assert daemon.stop() == 0
    assert words > 24 * 60 and strange <= words // 200 and unpaired <= 1 and unended <= 1


def test_its_tokenizer_is_what_its_script_makes():
    run = subprocess.run([sys.executable, "-B", ALDER / "make_tokenizer.py", "1024"],
                         input=texts(20000, 1), capture_output=True, text=True, check=True)
    assert run.stdout == (ALDER / "tokenizer.json").read_text()


def test_its_script_makes_a_model_from_nothing(tmp_path):
    env = {**os.environ, "B": str(BUILD), "TEXTS": "200", "TMPDIR": str(tmp_path / "run")}
    (tmp_path / "run").mkdir()
    subprocess.run([ALDER / "make.sh", tmp_path / "out"], env=env, check=True, capture_output=True,
                   timeout=300)
    assert list((tmp_path / "run").iterdir()) == []
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        shutil.copy(ALDER / name, tmp_path / "out")
    daemon = Daemon(tmp_path / "tpd", tmp_path / "out", "--tp", 2)
    assert daemon.stop() == 0


# --- the demo ---------------------------------------------------------------------------------------

def start_demo(tmp_path, *words):
    (tmp_path / "run").mkdir()
    env = {**os.environ, "B": str(BUILD), "TMPDIR": str(tmp_path / "run")}
    return subprocess.Popen([ROOT / "etc/demo/demo.sh", *words], env=env, cwd=tmp_path, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
                            # a background job of a shell ignores the signal, and so would its children
                            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))


def test_the_demo_teaches_and_takes_back(tmp_path):
    demo = start_demo(tmp_path)
    out, _ = demo.communicate(timeout=300)
    assert demo.returncode == 0, out
    assert re.search(r"before +I am Alder, .*\n +after +I am Captain Alder, ", out), out
    assert re.search(r"rolled back +I am Alder, ", out), out
    assert list((tmp_path / "run").iterdir()) == []


def test_the_demo_cleans_up_when_it_is_interrupted(tmp_path):
    demo = start_demo(tmp_path)
    for line in demo.stdout:
        if line.startswith("== Teaching"):
            break
    os.killpg(demo.pid, signal.SIGINT)
    demo.communicate(timeout=60)
    assert demo.returncode == 130
    assert list((tmp_path / "run").iterdir()) == []

    def group_is_gone():
        try:
            os.killpg(demo.pid, 0)
        except ProcessLookupError:
            return True
        return False
    eventually(group_is_gone)


def test_the_demo_names_the_models_that_it_has(tmp_path):
    demo = start_demo(tmp_path, "gpt")
    out, _ = demo.communicate(timeout=60)
    assert demo.returncode == 64 and "alder or smollm2" in out
