"""`tpd tokenize` and `tpd detokenize` from a shell: a JSON line in, a JSON line out."""

import json
import os
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TPD = os.path.join(ROOT, os.environ.get("TPD_BUILD", "build"), "tpd")
DATA = os.path.join(ROOT, "tests", "data", "text")
SPM = os.path.join(DATA, "spm.gguf")


def tpd(*args, lines=()):
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    return subprocess.run([TPD, *args], input=text, capture_output=True, text=True, timeout=20)


def answers(*args, lines):
    result = tpd(*args, lines=lines)
    assert result.returncode == 0 and result.stderr == ""
    return [json.loads(line) for line in result.stdout.splitlines()]


def cases():
    with open(os.path.join(DATA, "spm.cases.jsonl")) as f:
        return [json.loads(line) for line in f]


def test_ids_are_the_reference_ones_with_and_without_special_tokens():
    texts = [{"text": c["text"]} for c in cases()]
    plain, special = answers("tokenize", SPM, lines=texts), answers("tokenize", "--special", SPM,
                                                                    lines=texts)
    for case, p, s in zip(cases(), plain, special, strict=True):
        assert list(p) == ["ids", "decoded"]
        assert p["ids"] == case["ids"] and s["ids"] == case["ids_special"]
        assert s["decoded"].startswith("<s>")


def test_pieces_of_a_stream_are_the_text_and_one_for_each_id():
    lines = [{"ids": c["ids"]} for c in cases()]
    streamed, whole = answers("detokenize", SPM, "--stream", lines=lines), answers("detokenize", SPM,
                                                                                   lines=lines)
    for line, s, w in zip(lines, streamed, whole, strict=True):
        assert list(w) == ["text"] and s["text"] == w["text"]
        assert "".join(s["pieces"]) == s["text"] and len(s["pieces"]) == len(line["ids"])


def test_a_line_that_cannot_be_done_says_why_and_the_next_follows():
    got = answers("tokenize", SPM, lines=["{", "[1]", {"no": 1}, {"text": 5}, "", {"text": "a"}])
    assert [sorted(g) for g in got] == [["error", "offset"]] + [["error"]] * 3 + [["decoded", "ids"]]
    got = answers("detokenize", SPM, lines=[{"ids": [1, -1]}, {"ids": [10**6]}, {"ids": [1.5]},
                                            {"ids": "x"}, {"ids": []}])
    assert [sorted(g) for g in got] == [["error"]] * 4 + [["text"]]
    assert "ids[1]" in got[0]["error"] and "1000000 is out of range" in got[1]["error"]


def test_bad_and_missing_files_and_wrong_use_end_with_their_code(tmp_path):
    bad = tmp_path / "tokenizer.json"
    bad.write_text('{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}')
    for args, code, fault in (((str(bad),), 65, "model.merges[0]"),
                              ((str(tmp_path / "none.json"),), 66, "none.json"),
                              ((), 64, "path"), ((SPM, "--odd"), 64, "--odd")):
        result = tpd("tokenize", *args)
        assert result.returncode == code and result.stdout == ""
        assert result.stderr.count("\n") == 1 and fault in result.stderr
