"""The nightly round: the very command line of the cron file, night after night, against a daemon with a
model of toy size."""
import json
import os
import re
import shutil
import subprocess

import pytest

from daemon import BUILD, ROOT, TINY, Daemon, eventually

NO_FILE, NO_DAEMON, DEADLINE = 66, 69, 124
CRON = ROOT / "etc/cron.d/tpd-nightly"
LIVE = ("queued", "running", "paused")
# A job that is still there when the next night comes.
LONG = " --set=epochs=100000 --set=batch_size=1 --set=seq_len=64 --set=packing=false"


def cron_line():
    """The file's one job, switched on: (environment, user, command), as cron reads it."""
    variables, jobs = {}, []
    for line in CRON.read_text().splitlines():
        if match := re.fullmatch(r"(\w+)=(.*)", line):
            variables[match[1]] = match[2]
        elif match := re.fullmatch(r"#((?:[\d*/,-]+ ){5})(\w+) (.+)", line):
            jobs.append((match[2], match[3]))
        else:
            assert re.match(r"$|#( |$)", line), line
    assert len(jobs) == 1
    return variables, *jobs[0]


def record(i):
    return json.dumps({"prompt": f"What is {i}? ", "completion": f"It is {i}."}) + "\n"


class Nights:
    def __init__(self, folder):
        self.folder, self.daemon = folder, None
        folder.mkdir()
        self.data = folder / "tickets.jsonl"
        self.data.write_text("".join(record(i) for i in range(8)))
        self.start()

    def start(self):
        self.daemon = Daemon(self.folder / "tpd", TINY, "--data-dir", self.folder)

    def run(self, more="", change=lambda command: command):
        """One night of cron; what it would mail."""
        variables, _, command = cron_line()
        environment = {**variables, "DATA": str(self.data), "HOME": str(self.folder),
                       "TPD_SOCKET": str(self.folder / "tpd/tpd.sock"),
                       "PATH": f"{ROOT / BUILD}:{variables['PATH']}"}
        return subprocess.run([variables["SHELL"], "-c", change(command) + more], text=True,
                              env=environment, cwd=self.folder, capture_output=True, timeout=120)

    def quiet_night(self, *args, **kwargs):
        run = self.run(*args, **kwargs)
        assert (run.returncode, run.stdout, run.stderr) == (0, "", "")

    def jobs(self):
        with self.daemon.client() as client:
            return client.call("finetune.list")["jobs"]

    def newest(self):
        return self.jobs()[0]

    def ended(self):
        """The newest job, when it has ended."""
        with self.daemon.client() as client:
            return client.call("finetune.watch", job=self.newest()["job"])

    def events(self, kind):
        with self.daemon.client() as client:
            log = client.call("finetune.log", job=self.newest()["job"])
        return [e for e in log["events"] if e["event"] == kind]

    def examples(self):
        assert self.ended()["state"] == "done", self.ended()
        return self.events("data")[-1]["examples"]

    def append(self, text):
        with open(self.data, "a") as file:
            file.write(text)

    def until(self, *states):
        eventually(lambda: self.newest()["state"] in states)


@pytest.fixture
def nights(tmp_path):
    nights = Nights(tmp_path / "nights")
    yield nights
    assert nights.daemon.stop() in (0, -9), nights.daemon.log()


def test_the_cron_file_is_off_and_says_what_it_promises():
    variables, user, command = cron_line()
    assert user == "tpd" and variables["SHELL"] == "/bin/sh" and "%" not in command
    assert command == ('tpctl finetune "$DATA" --name nightly --once nightly --deadline 3h '
                       "--since-last --activate --quiet")
    timer = (ROOT / "etc/systemd/tpd-nightly.service").read_text()
    assert re.search(r"^ExecStart=/usr/local/bin/(.*) --wait$", timer, re.MULTILINE)[1] == \
        command.replace('"$DATA"', "${DATA}")


def test_each_night_learns_what_is_new(nights):
    nights.quiet_night()
    assert nights.examples() == 8 and nights.newest()["result"].endswith("/adapters/nightly")
    assert nights.newest()["deadline"] is not None
    nights.quiet_night()  # nothing new: no job
    run = nights.run(change=lambda command: command.replace(" --quiet", ""))
    assert (run.returncode, run.stdout, run.stderr) == (0, "nothing is new since job 1\n", "")
    assert [job["job"] for job in nights.jobs()] == [1]
    nights.append(record(8) + record(9) + record(10)[:20])
    nights.quiet_night()
    assert nights.examples() == 2
    nights.append(record(10)[20:])
    assert nights.daemon.stop() == 0
    nights.start()  # what was learnt outlives the daemon
    nights.quiet_night()
    assert nights.ended()["state"] == "done" and nights.ended()["result"] is None
    assert "too little to hold something out" in nights.events("note")[-1]["note"]
    nights.append(record(11))
    nights.quiet_night()
    assert nights.examples() == 2
    nights.data.write_text(record(20) + record(21))  # logrotate
    nights.quiet_night()
    assert nights.examples() == 2
    assert "rotated or rewritten" in nights.events("note")[0]["note"]
    nights.data.write_text("")
    nights.quiet_night()
    job = nights.ended()
    assert (job["state"], job["step"], job["result"]) == ("done", 0, None)
    assert nights.events("note")[-1]["note"] == "nothing is new in the data"


def test_a_night_without_a_daemon_says_so_in_one_line(nights):
    assert nights.daemon.stop() == 0
    run = nights.run()
    assert (run.returncode, run.stdout, run.stderr.count("\n")) == (NO_DAEMON, "", 1)
    assert "tpd.sock" in run.stderr


def test_a_night_without_its_file_says_so_in_one_line(nights):
    nights.data.unlink()
    run = nights.run()
    assert (run.returncode, run.stdout, run.stderr.count("\n")) == (NO_FILE, "", 1)
    assert str(nights.data) in run.stderr and nights.jobs() == []
    nights.data.write_text("")  # it will come
    nights.quiet_night()
    assert nights.ended()["state"] == "done"


def test_a_night_that_finds_the_last_one_running_leaves_it_alone(nights):
    nights.quiet_night(LONG)
    nights.until("running")
    before = nights.newest()
    nights.quiet_night(LONG)
    assert len(nights.jobs()) == 1 and nights.newest()["deadline"] == before["deadline"]
    with nights.daemon.client() as client:
        client.call("finetune.cancel", job=1)
    nights.quiet_night()  # a job that was cancelled has taught nothing
    assert nights.newest()["job"] == 2 and nights.examples() == 8


def test_a_night_after_a_failed_one_tells_and_tries_again(nights):
    nights.quiet_night()
    assert nights.examples() == 8
    good = nights.data.read_text()
    nights.append(record(8) + '{"prompt": 5}\n')
    nights.quiet_night()
    assert nights.ended()["state"] == "failed"
    run = nights.run()
    assert (run.returncode, run.stdout, run.stderr.count("\n")) == (0, "", 1)
    assert "job 2 (nightly), failed: " in run.stderr and "line 10: " in run.stderr
    assert nights.ended()["state"] == "failed"
    nights.data.write_text(good + record(8) + record(9))
    assert nights.run().stderr.startswith("tpctl: the last one, job 3 ")
    assert nights.examples() == 2
    nights.append(record(10) + record(11))
    nights.quiet_night()


def bits(nights):
    return (nights.folder / "tpd/state/adapters/nightly/adapter_model.safetensors").read_bytes()


def test_a_job_paused_at_the_deadline_goes_on_night_after_night_to_the_same_bits(tmp_path, nights):
    long = LONG.replace("100000", "400")
    calm = Nights(tmp_path / "calm")
    calm.quiet_night(long)
    assert calm.examples() == 8
    assert calm.daemon.stop() == 0
    for night in range(3):
        nights.quiet_night(long, lambda command: command.replace("3h", "50ms"))
        nights.until("paused", "done")
        assert night or nights.newest()["state"] == "paused"
        if night == 0:
            nights.append(record(8) + record(9))  # for the night after the job's end
        if night == 1:
            assert nights.daemon.stop() == 0  # and it outlives the daemon
            nights.start()
    if nights.newest()["state"] == "paused":
        nights.quiet_night(long)
    assert nights.examples() == 8
    assert len(nights.jobs()) == 1 and bits(nights) == bits(calm)
    nights.quiet_night()
    assert nights.examples() == 2


def test_with_wait_the_deadline_is_an_exit_code(nights):
    run = nights.run(LONG + " --wait", lambda command: command.replace("3h", "200ms"))
    assert run.returncode == DEADLINE and run.stdout == ""
    assert re.fullmatch(r"tpctl: job 1 is paused at the deadline, at step \d+ of \d+\n", run.stderr)
    assert nights.newest()["state"] == "paused"
    run = nights.run(" --wait", lambda command: command.replace("nightly", "other"))
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


@pytest.mark.parametrize("prefix, etc", [("/usr", "etc"), ("/opt/tpd", "opt/tpd/etc")])
def test_installed_it_is_off_and_an_edited_file_is_left(tmp_path, prefix, etc):
    def install():
        subprocess.run(["make", "-s", "-o", "all", "install", f"B={os.path.relpath(ROOT / BUILD, ROOT)}",
                        f"PREFIX={prefix}", f"DESTDIR={tmp_path}"], cwd=ROOT, check=True)
    install()
    cron = tmp_path / etc / "cron.d/tpd-nightly"
    assert f"\nPATH={prefix}/bin:" in cron.read_text() and cron.stat().st_mode & 0o777 == 0o644
    assert not re.search(r"^[\d*]", cron.read_text(), re.MULTILINE)
    units = tmp_path / prefix[1:] / "lib/systemd/system"
    assert f"\nExecStart={prefix}/bin/tpctl " in (units / "tpd-nightly.service").read_text()
    assert (units / "tpd-nightly.timer").exists()
    cron.write_text("# mine\n")
    install()
    assert cron.read_text() == "# mine\n"


def test_systemd_takes_the_units(tmp_path):
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is absent")
    for name in ("tpd.service", "tpd-nightly.service", "tpd-nightly.timer"):
        text = (ROOT / "etc/systemd" / name).read_text()
        # verify wants programs that are there
        text = re.sub(r"/usr/local/bin/\w+", shutil.which("true"), text)
        (tmp_path / name).write_text(text)
    run = subprocess.run(["systemd-analyze", "verify", "--man=no", *map(str, tmp_path.iterdir())],
                         capture_output=True, text=True, env={**os.environ, "SYSTEMD_LOG_COLOR": "0"})
    mine = [line for line in run.stderr.splitlines() if "tpd" in line]
    assert run.returncode == 0 and not mine, run.stderr


# What a night may learn by heart: the same few words, often.
BY_HEART = (" --set=epochs=60 --set=batch_size=4 --set=seq_len=64 --set=lr=0.01 --set=packing=false"
            " --set=lora.r=8 --set=lora.alpha=16 --set=loss_on=all")


def lesson(prompt, answer):
    return (json.dumps({"prompt": prompt, "completion": answer}) + "\n") * 12


def ask(nights, prompt, **params):
    with nights.daemon.client() as client:
        return client.call("generate", prompt=prompt, max_tokens=12, temperature=0, **params)["text"]


def default(nights):
    with nights.daemon.client() as client:
        return client.call("adapter.list")["default"]


def test_nights_build_upon_what_is_in_use_and_one_rolled_back_has_no_heirs(nights):
    nights.data.write_text(lesson("Who are you? ", "The daemon."))
    nights.quiet_night(BY_HEART)
    assert nights.ended()["activated"] is True, nights.ended()
    assert ask(nights, "Who are you? ") == "The daemon."
    assert nights.events("start") == []  # from the base
    first = default(nights)

    nights.append(lesson("What is it? ", "A night."))
    nights.quiet_night(BY_HEART)
    assert nights.ended()["activated"] is True and nights.examples() == 12
    assert nights.events("start")[0]["from"].endswith("/adapters/nightly")
    assert ask(nights, "What is it? ") == "A night."

    subprocess.run([ROOT / BUILD / "tpctl", "--quiet", "--socket", nights.daemon.socket, "adapters",
                    "rollback"], check=True)
    assert default(nights) == first and ask(nights, "Who are you? ") == "The daemon."
    nights.append(lesson("Where? ", "Here."))
    nights.quiet_night(BY_HEART)
    assert nights.examples() == 12
    assert nights.events("start")[0]["from"].endswith("/adapters/nightly")  # the first night's

    nights.append(lesson("When? ", "Now."))
    nights.quiet_night(BY_HEART.replace("lora.r=8", "lora.r=4"))
    assert nights.examples() == 12
    assert "another r, alpha or other targets" in nights.events("note")[0]["note"]


def test_without_activation_a_night_goes_on_from_the_last_result(nights):
    def plain(command):
        return command.replace(" --activate", "")
    nights.quiet_night(change=plain)
    assert nights.examples() == 8 and nights.events("start") == []
    first = nights.newest()["result"]
    nights.append(record(8) + record(9))
    nights.quiet_night(change=plain)
    assert nights.examples() == 2 and nights.events("start")[0]["from"] == first
    shutil.rmtree(first)
    shutil.rmtree(nights.newest()["result"], ignore_errors=True)
    nights.append(record(10))
    nights.quiet_night(change=plain)
    assert nights.examples() == 1  # without a part to judge on, one record is enough
    assert nights.events("note")[0]["note"].startswith("begins anew, not where ")
