"""Started with --quant: the weights are made once and kept, are the same at every tp, and what is kept is only
believed when it is whole and of these very files."""
import json
import os
import shutil
import subprocess

import pytest

from daemon import BUILD, ROOT, Daemon

ALDER = ROOT / "etc/models/alder"
PROMPT = "Once upon a time, a fox"


def kept(path):
    return sorted((path / "state/quant").glob("*.gguf"))


def log_of(path):
    return (path / "log").read_text()


def told(path, *flags, model=ALDER):
    """What the daemon says and is; its log begins anew. Sums are fp32: texts tell weights apart, not roundings."""
    (path / "log").unlink(missing_ok=True)
    daemon = Daemon(path, model, "--activations", "f32", *flags)
    with daemon.client() as client:
        text = client.call("generate", prompt=PROMPT, max_tokens=40, temperature=0)["text"]
        info = client.call("model.info")
        status = client.call("status")
    assert daemon.stop() == 0
    assert status["model"]["quant"] == info["quant"]
    return text, info


def test_the_second_start_maps_what_the_first_made_at_any_tp(tmp_path):
    plain, _ = told(tmp_path / "plain")
    first, info = told(tmp_path / "tpd", "--quant", "q4")
    assert info["quant"] == "q4" and info["bytes"] < 0.4 * 1859584
    assert "quantised to q4" in log_of(tmp_path / "tpd")
    [file] = kept(tmp_path / "tpd")
    made = file.read_bytes()
    second, _ = told(tmp_path / "tpd", "--quant", "q4", "--tp", 2)
    assert "mapped from" in log_of(tmp_path / "tpd") and "quantised to" not in log_of(tmp_path / "tpd")
    assert first == second and "." in first
    again, _ = told(tmp_path / "other", "--quant", "q4", "--threads", 1)
    assert kept(tmp_path / "other")[0].read_bytes() == made and again == first
    (tmp_path / "tpd/state/quant/of-a-killed-run.gguf.part").write_bytes(made[:1000])
    q8, info = told(tmp_path / "tpd", "--quant", "q8")
    assert not list((tmp_path / "tpd/state/quant").glob("*.part"))
    assert info["quant"] == "q8" and q8 == plain


def test_a_source_that_changed_or_a_file_cut_short_is_made_again(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(ALDER, model)
    text, _ = told(tmp_path / "tpd", "--quant", "q4", model=model)
    [before] = kept(tmp_path / "tpd")
    os.utime(model / "model.safetensors", (1, 1))
    assert told(tmp_path / "tpd", "--quant", "q4", model=model)[0] == text
    [after] = kept(tmp_path / "tpd")
    assert after.name != before.name and "quantised to" in log_of(tmp_path / "tpd")
    whole = after.read_bytes()
    os.truncate(after, len(whole) // 2)
    assert told(tmp_path / "tpd", "--quant", "q4", model=model)[0] == text
    assert "are made again" in log_of(tmp_path / "tpd") and after.read_bytes() == whole


def test_where_nothing_can_be_kept_the_model_is_served_all_the_same(tmp_path):
    text, _ = told(tmp_path / "good", "--quant", "q4")
    (tmp_path / "tpd/state").mkdir(0o700, parents=True)
    (tmp_path / "tpd/state/quant").write_text("in the way")
    (tmp_path / "tpd").chmod(0o700)
    assert told(tmp_path / "tpd", "--quant", "q4")[0] == text
    assert "cannot be kept" in log_of(tmp_path / "tpd")


def mode(path):
    return path.stat().st_mode & 0o777


def test_what_a_person_writes_follows_his_umask_and_the_daemon_s_own_is_his_alone(tmp_path):
    run = subprocess.run(["sh", "-c", "umask 027; exec \"$@\"", "sh", BUILD / "tpd", "quantize", ALDER,
                          tmp_path / "made", "q8"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert mode(tmp_path / "made") == 0o750 and mode(tmp_path / "made/model.gguf") == 0o640
    old = os.umask(0)
    try:
        told(tmp_path / "tpd", "--quant", "q8")
    finally:
        os.umask(old)
    [file] = kept(tmp_path / "tpd")
    assert mode(file) == 0o600 and mode(file.parent) == 0o700


def test_where_nothing_may_be_written_or_nothing_is_named_it_says_so(tmp_path):
    run = subprocess.run([BUILD / "tpd", "quantize", ALDER, "", "q8"], capture_output=True, text=True)
    assert run.returncode == 64 and "IN, OUT" in run.stderr


def test_quantised_and_unknown_are_refused(tmp_path):
    run = subprocess.run([BUILD / "tpd", "quantize", ALDER, tmp_path / "q4", "q4", "--json"],
                         capture_output=True, text=True)
    assert run.returncode == 0 and json.loads(run.stdout)["quantised"] == 36
    text, info = told(tmp_path / "made", model=tmp_path / "q4")
    assert info["dtype"] == "q4_1" and text == told(tmp_path / "asked", "--quant", "q4")[0]
    run = subprocess.run([BUILD / "tpd", "quantize", tmp_path / "q4", tmp_path / "twice", "q8"],
                         capture_output=True, text=True)
    assert run.returncode == 78 and "quantised already" in run.stderr
    assert not (tmp_path / "twice").exists() and not (tmp_path / "twice.part").exists()
    run = subprocess.run([BUILD / "tpd", "--model", ALDER, "--quant", "q3"], capture_output=True, text=True)
    assert run.returncode == 64 and "q8" in run.stderr and "q4" in run.stderr


@pytest.mark.parametrize("quant", ["q8", "q4"])
def test_the_plan_knows_the_bytes(tmp_path, quant):
    _, info = told(tmp_path / "tpd", "--quant", quant)
    plan = json.loads(subprocess.run([BUILD / "tpd", "plan", ALDER, "--quant", quant, "--json"],
                                     capture_output=True, text=True, check=True).stdout)
    assert plan["bytes"] == info["bytes"]
    assert plan["ranks"][0]["weights"] == info["ranks"][0]["weights"]
