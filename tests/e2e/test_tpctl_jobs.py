"""tpctl finetune and jobs, and the same in tpd.py, against a scripted daemon."""
import json
import os
import pty
import re
import signal
import subprocess
import time

import pytest

from daemon import need_terminals
from fake_jobs import STEPS
from test_python_client import tpd
from test_tpctl import (BAD_DATA, BUSY, DEADLINE, INTERRUPTED, NO_FILE, TPCTL, USAGE, environment, one_line,
                        on_terminal, server, tpctl)  # noqa: F401  (server is a fixture)


def asked(server, method):
    return [m.get("params", {}) for m in server.received if m["method"] == "finetune." + method]


def submitted(server):
    return asked(server, "submit")[-1]


# --- finetune -----------------------------------------------------------------------------------


def test_finetune_submits_what_the_options_say(server):
    run = tpctl(server, "finetune", "tickets.jsonl", "--name", "n", "--out", "adapters/x", "--once",
                "k", "--set", "lr=1e-4", "--set", "lora.r=8", "--set", "lora.targets=[\"q_proj\"]",
                "--set", "method=full", "--set", "eval_data=null", "--activate")
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == "job 1 (n) is queued\n"
    assert submitted(server) == {
        "name": "n", "out": "adapters/x", "once": "k", "lr": 1e-4, "method": "full",
        "lora": {"r": 8, "targets": ["q_proj"]}, "eval_data": None, "data": "tickets.jsonl",
        "activate": {"when": "eval_improves", "as": "default"}}


def test_a_file_that_is_there_is_meant_by_its_whole_path(server, tmp_path):
    data = tmp_path / "here.jsonl"
    data.write_text('{"text": "x"}\n')
    link = tmp_path / "link"
    link.symlink_to(data)
    for name in (str(data), os.path.relpath(data), str(link)):
        assert tpctl(server, "finetune", name).returncode == 0
        assert submitted(server)["data"] == str(data.resolve())


def test_a_job_file_is_overridden_by_options(server, tmp_path):
    job = tmp_path / "job.json"
    job.write_text(json.dumps({"data": "a.jsonl", "name": "file", "lr": 1, "lora": {"r": 4, "alpha": 8},
                               "activate": {"when": "always"}}))
    tpctl(server, "finetune", "--file", str(job), "--name", "n", "--set", "lora.r=8", "--activate")
    assert submitted(server) == {"data": "a.jsonl", "name": "n", "lr": 1,
                                 "lora": {"r": 8, "alpha": 8}, "activate": {"when": "always"}}
    tpctl(server, "finetune", "b.jsonl", "--file", str(job))
    assert submitted(server)["data"] == "b.jsonl"
    job.write_text("{\n1}")
    run = tpctl(server, "finetune", "--file", str(job))
    assert run.returncode == BAD_DATA and "job.json:2: " in one_line(run)
    job.write_text("[]")
    assert tpctl(server, "finetune", "--file", str(job)).returncode == BAD_DATA
    assert tpctl(server, "finetune", "--file", str(job) + "x").returncode == NO_FILE


@pytest.mark.parametrize("words, says", [
    ([], "no DATA"), (["a", "b"], "one DATA"), (["a", "--set", "lr"], "KEY=VALUE"),
    (["a", "--set", "=1"], "KEY=VALUE"), (["a", "--nam", "x"], "did you mean '--name'"),
    (["a", "--set", "lora.r=1", "--set", "lora=5", "--set", "lora.r.x=1"], None),
])
def test_slips_are_named(server, words, says):
    run = tpctl(server, "finetune", *words)
    if says is None:
        assert run.returncode == 0 and submitted(server)["lora"] == {"r": {"x": 1}}
        return
    assert run.returncode == USAGE and says in one_line(run) and not server.received


def test_wait_ends_as_the_job_ends(server):
    run = tpctl(server, "finetune", "a", "--name", "good", "--wait")
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == ("job 1 (good) is done, step 20/20, loss 0.2000, eval loss 0.2500: "
                          "/state/adapters/good\n")
    run = tpctl(server, "finetune", "a", "--name", "bad", "--wait")
    assert (run.returncode, run.stdout) == (1, "")
    assert one_line(run) == "tpctl: job 2 (bad) failed: tickets.jsonl: line 7 is?no JSON\n"


def test_quiet_says_nothing_on_success(server):
    for words in (["--wait"], []):
        run = tpctl(server, "--quiet", "finetune", "a", *words)
        assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    assert tpctl(server, "-q", "finetune", "a", "--name", "bad", "--wait").stderr.count("\n") == 1


def test_json_and_plain(server):
    assert json.loads(tpctl(server, "--json", "finetune", "a").stdout)["job"] == 1
    assert tpctl(server, "--plain", "finetune", "a").stdout == "2\n"
    run = tpctl(server, "--json", "finetune", "a", "--wait")
    assert run.stdout.count("\n") == 1 and json.loads(run.stdout)["state"] == "done"
    run = tpctl(server, "--json", "finetune", "a", "--wait", "--name", "bad")
    assert run.returncode == 1 and json.loads(run.stdout)["state"] == "failed"


def test_once_is_a_success_that_does_nothing(server):
    assert tpctl(server, "finetune", "a", "--once", "k").returncode == 0
    run = tpctl(server, "finetune", "a", "--once", "k")
    assert (run.returncode, run.stdout) == (0, "job 1 (job) is queued\n")
    assert len(server.jobs.jobs) == 1


def test_the_deadline_pauses_the_job_and_the_next_run_resumes_it(server):
    words = ["finetune", "a", "--name", "stuck", "--once", "k", "--wait", "--deadline", "300ms"]
    run = tpctl(server, *words)
    assert run.returncode == DEADLINE and run.stdout == ""
    assert one_line(run) == "tpctl: job 1 is paused at the deadline, at step 3 of 20\n"
    assert server.jobs.jobs[1]["state"] == "paused"
    assert submitted(server)["deadline_s"] == 0.3  # the daemon keeps it, too
    assert tpctl(server, *words[:6]).stdout.startswith("job 1 (stuck) is queued")


def test_ctrl_c_ends_the_waiting_and_not_the_job(server):
    run = subprocess.Popen([TPCTL, "finetune", "a", "--name", "stuck", "--wait"],
                           env=environment(TPD_SOCKET=server.path), stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE)
    while not asked(server, "watch"):
        time.sleep(0.01)
    time.sleep(0.1)
    run.send_signal(signal.SIGINT)
    assert run.communicate(timeout=30) == (b"", b"")
    assert run.returncode == INTERRUPTED
    assert server.jobs.jobs[1]["state"] == "running" and not asked(server, "cancel")


def on_error_terminal(server, *words):
    """What stderr shows when it is a terminal."""
    need_terminals()
    leader, follower = pty.openpty()
    run = subprocess.Popen([TPCTL, *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                           stderr=follower, env=environment(TPD_SOCKET=server.path))
    os.close(follower)
    shown = b""
    while True:
        try:
            data = os.read(leader, 65536)
        except OSError:
            break
        if not data:
            break
        shown += data
    run.wait(30)
    os.close(leader)
    return shown.decode()


def test_progress_is_for_terminals(server):
    shown = on_error_terminal(server, "finetune", "a", "--wait")
    assert "\rstep 3/20, loss 1.3333, 345 tokens/s, ETA 3m 2s" in shown
    assert shown.endswith("\r\033[K")  # and then it is gone
    assert on_error_terminal(server, "-q", "finetune", "a", "--wait") == ""
    assert on_error_terminal(server, "--json", "finetune", "a", "--wait") == ""


# --- jobs ---------------------------------------------------------------------------------------


@pytest.fixture
def two_jobs(server):
    tpctl(server, "finetune", "a", "--name", "first", "--wait")
    tpctl(server, "finetune", "a", "--name", "second")
    return server


def test_list(two_jobs):
    for words in (["jobs"], ["jobs", "list"]):
        lines = tpctl(two_jobs, *words).stdout.splitlines()
        assert re.fullmatch(r" +2  second +queued +0/0 +- +-", lines[1])
        assert re.fullmatch(r" +1  first +done +20/20 +0.2000 +0.2500", lines[2])
    assert len(json.loads(tpctl(two_jobs, "--json", "jobs").stdout)["jobs"]) == 2
    rows = [line.split("\t") for line in tpctl(two_jobs, "jobs", "--plain").stdout.splitlines()]
    assert rows[1] == ["1", "first", "done", "20", "20", "0.2", "0.25", "/state/adapters/first", ""]


def test_no_jobs_are_an_empty_list(server):
    run = tpctl(server, "jobs")
    assert (run.returncode, run.stdout) == (0, "")
    run = tpctl(server, "jobs", "show")
    assert run.returncode == NO_FILE and "no jobs" in one_line(run)


def test_show_by_number_by_name_and_the_newest(two_jobs):
    for words, name in ((["1"], "first"), (["first"], "first"), ([], "second")):
        assert re.search(rf"^name +{name}$", tpctl(two_jobs, "jobs", "show", *words).stdout,
                         re.MULTILINE)
    assert tpctl(two_jobs, "jobs", "show", "7").returncode == NO_FILE


def test_log_reads_every_page(two_jobs):
    lines = tpctl(two_jobs, "jobs", "log", "first").stdout.splitlines()
    assert len(lines) == 3 + STEPS + 2
    assert lines[2].split("  ", 1)[1].startswith("step        step=1 steps=20 loss=4 ")
    rows = [line.split("\t") for line in
            tpctl(two_jobs, "jobs", "log", "first", "--plain", "--after", "4").stdout.splitlines()]
    assert [int(row[0]) for row in rows] == list(range(5, 26)) and rows[0][2] == "step"
    assert len(json.loads(tpctl(two_jobs, "jobs", "log", "1", "--json").stdout)["events"]) == 25


def test_watch(two_jobs):
    assert tpctl(two_jobs, "jobs", "watch").stdout.startswith("job 2 (second) is done, step 20/20")
    assert tpctl(two_jobs, "jobs", "watch", "first").returncode == 0
    tpctl(two_jobs, "finetune", "a", "--name", "bad")
    assert tpctl(two_jobs, "jobs", "watch").returncode == 1


def test_cancel_pause_resume_rm(two_jobs):
    assert tpctl(two_jobs, "jobs", "pause", "second").stdout == "job 2 (second) is paused\n"
    assert tpctl(two_jobs, "jobs", "pause", "second").returncode == BUSY
    assert tpctl(two_jobs, "jobs", "resume", "2").stdout == "job 2 (second) is queued\n"
    assert tpctl(two_jobs, "jobs", "rm", "2").returncode == BUSY
    assert tpctl(two_jobs, "-q", "jobs", "cancel", "2").stdout == ""
    assert tpctl(two_jobs, "jobs", "rm", "2").stdout == "job 2 is gone\n"
    for word in ("cancel", "pause", "resume", "rm"):
        assert tpctl(two_jobs, "jobs", word).returncode == USAGE  # never a job by accident
        assert tpctl(two_jobs, "jobs", word, "none").returncode == NO_FILE
    assert tpctl(two_jobs, "jobs", "cancle").returncode == USAGE


def test_plot(two_jobs, tmp_path):
    shown = tpctl(two_jobs, "jobs", "plot", "first").stdout
    lines = shown.splitlines()
    assert lines[0] == "first: loss 4.0000 to 0.2000" and len(lines) == 1 + 12 + 2
    assert lines[1].startswith("    4.0000 █") and "▁" in shown and "eval loss 0.5000 to 0.2500" in shown
    assert "\033[1m" in on_terminal(two_jobs, "jobs", "plot", "1")
    svg = tmp_path / "x.svg"
    run = tpctl(two_jobs, "jobs", "plot", "1", "-o", str(svg))
    assert (run.returncode, run.stdout) == (0, "")
    text = svg.read_text()
    assert text.startswith("<svg ") and text.endswith("</svg>\n") and text.count("<polyline") == 2
    rows = tpctl(two_jobs, "--plain", "jobs", "plot", "1").stdout.splitlines()
    assert rows[0] == "loss\t1\t4" and rows[-1] == "eval_loss\t20\t0.25"
    assert len(json.loads(tpctl(two_jobs, "--json", "jobs", "plot", "1").stdout)["loss"]) == STEPS
    run = tpctl(two_jobs, "jobs", "plot", "second")
    assert run.returncode == 1 and "no step yet" in one_line(run)
    assert tpctl(two_jobs, "jobs", "plot", "1", "-o", str(tmp_path / "no/x")).returncode == 74


@pytest.mark.parametrize("says", [
    '{"id":ID,"result":{}}', '{"id":ID,"result":{"jobs":5}}', '{"id":ID,"result":{"jobs":[5,{}]}}',
    '{"id":ID,"result":{"job":"x","state":5,"error":[],"events":{},"more":false}}',
    '{"id":ID,"result":{"job":1,"events":[5,{"event":"step","step":"x","loss":1e300}]}}',
    '{"id":ID,"result":{"job":1,"events":[{}],"after":0,"more":true}}',
    '{"method":"job","params":{"id":ID,"event":5}}\n{"id":ID,"result":{"state":"done"}}'])
def test_answers_without_sense_do_no_harm(server, says):
    server.says = says
    for words in (["jobs"], ["jobs", "show", "1"], ["jobs", "log", "1"], ["jobs", "watch", "1"],
                  ["jobs", "plot", "1"], ["finetune", "a", "--wait"], ["jobs", "cancel", "1"]):
        assert 0 <= tpctl(server, *words).returncode <= 130


# --- tpd.py -------------------------------------------------------------------------------------


def test_the_python_client_speaks_of_jobs_too(server):
    with tpd.Client(server.path, timeout=30) as client:
        job = client.finetune_submit("a.jsonl", name="first", lora={"r": 8})
        assert submitted(server) == {"data": "a.jsonl", "name": "first", "lora": {"r": 8}}
        events = []
        assert client.job_watch("first", events.append)["state"] == "done"
        assert [e["step"] for e in events if e["event"] == "step"] == list(range(1, STEPS + 1))
        assert len(client.job_log(job["job"])) == len(events)
        assert client.job("first")["spec"]["lora"] == {"r": 8}
        second = client.finetune_submit("a.jsonl")["job"]
        assert [j["job"] for j in client.jobs()] == [second, job["job"]]
        assert client.job_pause(second)["state"] == "paused"
        assert client.job_resume(second)["state"] == "queued"
        assert client.job_cancel(second)["state"] == "cancelled"
        assert client.job_delete(second)["deleted"] is True
        with pytest.raises(tpd.TpdError):
            client.job(99)
