"""`tpd inspect` from a shell: what it prints, where, and how it ends."""

import json
import os
import struct
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TPD = os.path.join(ROOT, os.environ.get("TPD_BUILD", "build"), "tpd")
MODELS = os.path.join(ROOT, "tests", "data", "models")


def inspect(*args, **options):
    return subprocess.run([TPD, "inspect", *args], capture_output=True, text=True, timeout=20,
                          **options)


def test_a_model_directory_is_told_as_json_and_as_a_table():
    path = os.path.join(MODELS, "qwen3")
    report = json.loads(inspect(path, "--json").stdout)
    assert report["model"]["architecture"] == "qwen3"
    assert report["tensor_count"] == len(report["tensors"])
    assert report["bytes"] == sum(t["bytes"] for t in report["tensors"])
    assert report["bytes"] == sum(report["bytes_by_dtype"].values())
    table = inspect(path)
    assert table.returncode == 0 and table.stderr == ""
    for tensor in report["tensors"]:
        assert tensor["name"] in table.stdout


def test_a_bad_file_is_65_and_one_line_that_names_file_and_fault(tmp_path):
    path = tmp_path / "odd.safetensors"
    path.write_bytes(struct.pack("<Q", 1 << 40) + b"{}")
    result = inspect(str(path))
    assert result.returncode == 65 and result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert str(path) in result.stderr and "header too large" in result.stderr


def test_missing_files_are_66_and_wrong_use_is_64(tmp_path):
    assert inspect(str(tmp_path / "absent.gguf")).returncode == 66
    assert inspect().returncode == 64
    assert inspect(str(tmp_path), "--yaml").returncode == 64


def test_an_output_that_cannot_be_written_is_74():
    with open("/dev/full", "w") as full:
        result = subprocess.run([TPD, "inspect", os.path.join(MODELS, "qwen3")], stdout=full,
                                stderr=subprocess.PIPE, text=True, timeout=20)
    assert result.returncode == 74 and "standard output" in result.stderr
