"""Start, ownership, limits of access, signals, the end: the daemon as a process."""
import json
import os
import shutil
import signal
import socket
import subprocess
import time

import pytest

import schema
from daemon import BUILD, TINY, Client, RpcError, eventually

LONG = {"prompt": "Once upon a time", "n": 64, "max_tokens": 200, "ignore_eos": True}


def run(*arguments):
    return subprocess.run([BUILD / "tpd", *map(str, arguments)], capture_output=True, text=True,
                          timeout=60)


def fails(code, *arguments, says=""):
    """tpd ends by itself with this code and one line about it."""
    done = run(*arguments)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    complaint = [line for line in done.stderr.splitlines() if " info " not in line]
    assert len(complaint) == 1, done.stderr
    return complaint[0]


def test_help_and_version():
    for flag, says in [("--help", "--kv-type"), ("--version", "tpd ")]:
        done = run(flag)
        assert done.returncode == 0 and says in done.stdout and done.stderr == ""


def test_usage_errors_are_64_with_a_hint():
    fails(64, "--modle", "x", says="did you mean --model".replace("--", ""))
    fails(64, says="--model PATH")
    fails(64, "--model", TINY, "--tp", "zero", says="--tp")


def test_a_wrong_setting_is_78_with_file_and_line(tmp_path):
    conf = tmp_path / "tpd.conf"
    conf.write_text(f"model = {TINY}\nslotz = 3\n")
    line = fails(78, "--config", conf, says="did you mean slots?")
    assert f"{conf}:2:" in line
    fails(66, "--config", tmp_path / "absent.conf", says="absent.conf")


def test_the_file_is_read_and_flags_win(start, tmp_path):
    conf = tmp_path / "tpd.conf"
    conf.write_text("slots = 3\nctx = 100\nmax_queue = 5\n")
    with start("--config", conf, "--ctx", 64).client() as client:
        status = client.call("status")
        assert status["slots"]["total"] == 3 and status["ctx"] == 64


def own(tmp_path, *flags):
    return ["--socket", tmp_path / "s" / "t.sock", "--state-dir", tmp_path / "state", *flags]


def test_a_model_that_is_not_there_is_66_and_names_it(tmp_path):
    fails(66, *own(tmp_path), "--model", tmp_path / "nothing", says="nothing")
    assert not (tmp_path / "s" / "t.sock").exists()


def test_gpus_need_their_library_and_one_for_each_rank(tmp_path, monkeypatch):
    monkeypatch.setenv("TPD_CUDA_LIBRARY", str(tmp_path / "tpd-cuda.so"))
    fails(70, *own(tmp_path), "--model", TINY, "--device", "cuda:0",
          says=f"there is no tpd-cuda.so (looked for {tmp_path}/tpd-cuda.so): build it with `make CUDA=1`")
    (tmp_path / "tpd-cuda.so").write_bytes(b"no library")
    fails(70, *own(tmp_path), "--model", TINY, "--device", "cuda", says="tpd-cuda.so cannot be loaded")
    fails(78, *own(tmp_path), "--model", TINY, "--device", "cuda:0,1", "--tp", 3, says="names 2 devices")


def test_a_model_that_is_no_file_is_65_and_keeps_nobody_waiting(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    fails(65, *own(tmp_path), "--model", tmp_path / "fifo", says="fifo")
    done = subprocess.run([BUILD / "tpd", "tokenize", tmp_path / "fifo"], input="", text=True,
                          capture_output=True, timeout=60)
    assert done.returncode == 65 and "fifo" in done.stderr


def test_a_broken_model_is_65_and_names_the_file(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(TINY, model)
    (model / "model.safetensors").write_bytes((TINY / "model.safetensors").read_bytes()[:5000])
    fails(65, *own(tmp_path), "--model", model, says="model.safetensors")


def test_a_cut_tokenizer_file_is_65_and_names_it(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(TINY, model)
    (model / "tokenizer.json").write_bytes((TINY / "tokenizer.json").read_bytes()[:100])
    fails(65, *own(tmp_path), "--model", model, says="tokenizer.json")


def test_an_absent_shard_is_one_line_with_its_name(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(TINY.parent / "llama-sharded", model)
    shutil.copy(TINY / "tokenizer.json", model)
    shard = sorted(model.glob("model-*.safetensors"))[-1]
    shard.unlink()
    code = run(*own(tmp_path), "--model", model, "--tp", 2).returncode
    assert code in (65, 66)
    fails(code, *own(tmp_path), "--model", model, "--tp", 2, says=shard.name)


def test_more_ranks_than_heads_is_one_line_at_start(tmp_path):
    fails(78, *own(tmp_path), "--model", TINY, "--tp", 5, says="4")


@pytest.mark.parametrize("tp", [1, 2, 3, 4])
def test_any_split_up_to_the_heads_gives_the_same_tokens(start, tp):
    expected = json.loads((TINY / "expected_text.json").read_text())["prompts"][0]
    with start("--tp", tp).client() as client:  # 2 KV heads: at 3 and 4 ranks share them
        got = client.call("generate", prompt=expected["prompt"], temperature=0,
                          max_tokens=len(expected["tokens"]))
        assert got["tokens"] == expected["tokens"] and got["text"] == expected["text"]
        info, status = client.call("model.info"), client.call("status")
        assert info["tp"] == tp == len(info["ranks"]) == len(status["devices"])


def test_end_tokens_of_both_files_count(start, tmp_path):
    """generation_config.json lists one end token; the tokenizer's own stays one."""
    model = tmp_path / "model"
    shutil.copytree(TINY, model)
    config = json.loads((model / "config.json").read_text())
    own, other = config["eos_token_id"], 1
    (model / "config.json").write_text(json.dumps({**config, "eos_token_id": other}))
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": other}))
    with start(model=model).client() as client:
        for eos in (own, other):
            got = client.call("generate", prompt="a", max_tokens=5, logit_bias={str(eos): 1000})
            assert (got["finish_reason"], got["stop"], len(got["tokens"])) == ("stop", eos, 1)


def test_a_long_socket_path_is_78_and_names_the_limit(tmp_path):
    path = tmp_path / ("x" * 200)
    line = fails(78, "--model", TINY, "--state-dir", tmp_path / "s", "--socket", path)
    assert "107" in line and str(path) in line
    assert not list(tmp_path.glob("x*"))


def test_the_second_daemon_is_75_and_names_the_first(start, tmp_path):
    first = start()
    line = fails(75, "--model", TINY, "--socket", first.socket, "--state-dir", tmp_path / "other")
    assert f"pid {first.process.pid}" in line
    line = fails(75, "--model", TINY, "--socket", tmp_path / "t.sock", "--state-dir",
                 first.directory / "state")
    assert f"pid {first.process.pid}" in line
    with first.client() as client:
        assert client.call("ping")


def test_after_a_kill_the_next_one_starts(start):
    first = start()
    first.signal(signal.SIGKILL)
    first.wait()
    assert first.socket.exists()
    second = run_at(first)
    with second.client() as client:
        assert client.call("ping")
    assert second.stop() == 0
    assert not first.socket.exists()


def run_at(other):
    from daemon import Daemon
    return Daemon(other.directory)


def test_the_socket_is_0660_whatever_the_umask(start):
    old = os.umask(0)
    try:
        daemon = start()
    finally:
        os.umask(old)
    assert daemon.socket.stat().st_mode & 0o777 == 0o660
    daemon = start("--socket-mode", "0600")
    assert daemon.socket.stat().st_mode & 0o777 == 0o600


def test_who_is_not_listed_is_told_so(start):
    stranger = os.getuid() + 12345
    daemon = start("--allow-uid", stranger, wait=False)
    eventually(daemon.socket.exists)

    def connects():
        try:
            daemon.client().close()
            return True
        except ConnectionRefusedError:
            return False
    eventually(connects)
    with daemon.client() as client:
        error = client.message()["error"]
        assert error["code"] == -32007 and "allow_uid" in error["message"]
        assert client.line() is None
    daemon.signal()
    assert daemon.wait() == 0


def test_who_is_no_administrator_may_not_shut_down(start):
    daemon = start("--admin-uid", os.getuid() + 12345)
    with daemon.client() as client:
        with pytest.raises(RpcError) as e:
            client.call("shutdown")
        assert e.value.code == -32007
        assert client.call("generate", prompt="a", max_tokens=1)
    daemon = start("--admin-gid", os.getgid())
    with daemon.client() as client:
        client.call("shutdown")
    assert daemon.wait() == 0


def test_while_loading_requests_wait_and_status_says_so(start):
    daemon = start(wait=False)
    eventually(daemon.socket.exists)
    while True:
        try:
            client = daemon.client()
            break
        except ConnectionRefusedError:
            pass
    with client:
        id = client.send("generate", {"prompt": "Once", "max_tokens": 3, "ignore_eos": True})
        info = client.send("model.info")
        status = client.call("status")
        schema.check("status", status)
        assert status["state"] in ("LOADING", "READY")
        assert len(client.result(id)["tokens"]) == 3
        schema.check("model.info", client.result(info))


def test_sigterm_lets_live_requests_end(start):
    daemon = start()
    with daemon.client() as client, daemon.client() as other:
        id = client.send("generate", {**LONG, "stream": True})
        client.waiting.append(client.message())
        daemon.signal()
        eventually(lambda: other.call("status")["state"] == "DRAINING")
        with pytest.raises(RpcError) as e:
            other.call("generate", prompt="a", max_tokens=1)
        assert e.value.code == -32008 and e.value.data["kind"] == "shutting_down"
        result = client.result(id)
        assert all(len(choice["tokens"]) == 200 for choice in result["choices"])
        assert client.line() is None
    assert daemon.wait() == 0
    assert not daemon.socket.exists()


@pytest.mark.parametrize("how", [{"n": 32, "stream": True}, {"n": 8, "logprobs": 20}])
def test_who_reads_the_last_answer_slowly_gets_it_whole(start, how):
    """Of many messages or of one long one."""
    daemon = start()
    with daemon.client() as client, daemon.client() as other:
        id = client.send("generate", {**LONG, **how})
        eventually(lambda: other.call("status")["slots"]["busy"] > 0)
        daemon.signal()
        assert other.at_end() # all is generated; much of it waits for its reader
        end = time.monotonic() + 3.5 # longer than one who does not read at all is given
        while time.monotonic() < end:
            time.sleep(0.3)
            client.buffer += client.socket.recv(1 << 14)
        assert all(len(choice["tokens"]) == 200 for choice in client.result(id)["choices"])
    assert daemon.wait() == 0


def test_breakpoints_outlive_the_start(tmp_path):
    """Code that only starting needed leaves the process when it is ready, but not what a debugger wrote into it."""
    gdb = shutil.which("gdb")
    if not gdb:
        pytest.skip("no gdb here")
    (tmp_path / "commands").write_text("break handle_status\ncommands\nsilent\necho stopped there\\n\nkill\nend\nrun\n")
    run = subprocess.Popen([gdb, "-q", "-nx", "-batch", "-x", tmp_path / "commands", "--args", BUILD / "tpd", "--model", TINY,
                            "--device", "cpu", *own(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        said = ""
        for line in run.stdout:
            said += line
            if "READY on" in line:
                break
        if "ptrace" in said:
            pytest.skip("no debugging here")
        assert "READY on" in said
        with Client(tmp_path / "s" / "t.sock") as client:
            client.send("status")
            client.send("shutdown")
            assert client.at_end()
        assert "stopped there" in run.communicate(timeout=60)[0]
    finally:
        run.kill()
        run.wait()


def test_settings_that_cannot_be_are_78(tmp_path):
    fails(78, *own(tmp_path), "--model", TINY, "--device", "cpu:1023", says="core 1023")
    for group in ("-5", "99999999999", "no-such-group"):
        fails(78, *own(tmp_path), "--model", TINY, "--socket-group", group, says=group)


def test_a_settings_file_may_begin_with_a_byte_order_mark(start, tmp_path):
    conf = tmp_path / "tpd.conf"
    conf.write_bytes(b"\xef\xbb\xbfslots = 3\r\nctx = 100\r\n")
    with start("--config", conf).client() as client:
        assert client.call("status")["slots"]["total"] == 3


def held(daemon):
    """A client whose generation cannot end by itself: it does not read."""
    client = daemon.client()
    client.send("generate", {**LONG, "stream": True, "logprobs": 20})
    client.message()
    return client


def test_a_drain_ends_at_its_timeout(start):
    daemon = start("--drain-timeout-s", 1, "--max-outbound", "4K")
    with held(daemon):
        daemon.signal()
        assert daemon.wait() == 0


def test_a_second_signal_ends_at_once(start):
    daemon = start("--drain-timeout-s", 1000, "--max-outbound", "4K")
    with held(daemon), daemon.client() as other:
        daemon.signal()
        eventually(lambda: other.call("status")["state"] == "DRAINING")
        daemon.signal(signal.SIGINT)
        assert daemon.wait() == 0


def test_shutdown_answers_then_ends(start):
    daemon = start()
    with daemon.client() as client, daemon.client() as other:
        id = other.send("generate", LONG)
        eventually(lambda: client.call("status")["slots"]["busy"] > 0)
        result = client.call("shutdown")
        schema.check("shutdown", result)
        assert result == {"drain": False, "live_requests": 1}
        ends = {choice["finish_reason"] for choice in other.result(id)["choices"]}
        assert "cancelled" in ends
    assert daemon.wait() == 0


def test_shutdown_with_drain_waits(start):
    daemon = start()
    with daemon.client() as client, daemon.client() as other:
        id = other.send("generate", LONG)
        eventually(lambda: client.call("status")["slots"]["busy"] > 0)
        client.call("shutdown", drain=True, timeout_s=60)
        assert all(len(choice["tokens"]) == 200 for choice in other.result(id)["choices"])
    assert daemon.wait() == 0


def test_sighup_and_broken_pipes_do_not_end_it(start):
    daemon = start()
    daemon.signal(signal.SIGHUP)
    daemon.signal(signal.SIGPIPE)
    with daemon.client() as client:
        assert client.call("generate", prompt="a", max_tokens=1)


def test_systemd_is_told_of_ready_and_of_the_end(start, tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(tmp_path / "notify"))
        notify.settimeout(60)
        daemon = start(env={"NOTIFY_SOCKET": str(tmp_path / "notify")}, wait=False)
        heard = ""
        while "READY=1" not in heard:
            heard += notify.recv(4096).decode() + "\n"
        assert "STATUS=" in heard
        with daemon.client() as client:
            assert client.call("status")["state"] == "READY"
        daemon.signal()
        while "STOPPING=1" not in heard:
            heard += notify.recv(4096).decode() + "\n"
        assert daemon.wait() == 0


def test_a_socket_made_by_systemd_is_taken_and_left(tmp_path):
    path = tmp_path / "t.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(path))
        listening.listen(5)
        script = 'export LISTEN_FDS=1 LISTEN_PID=$$; exec "$@" 3<&%d' % listening.fileno()
        process = subprocess.Popen(
            ["/bin/bash", "-c", script, "sh", BUILD / "tpd", "--model", TINY, "--state-dir",
             tmp_path / "state"], pass_fds=[listening.fileno()], stderr=subprocess.DEVNULL)
        from daemon import Client
        with Client(path) as client:
            assert client.call("ping")
            client.call("shutdown")
        assert process.wait(60) == 0
        assert path.exists()


def test_the_log_tells_what_runs_and_can_be_json(start):
    log = start("--tp", 2).log()
    for word in ["tpd ", "llama", "tp 2", "KV cache", "context", "socket", "READY"]:
        assert word in log
    daemon = start("--log-json")
    lines = [json.loads(line) for line in daemon.log().splitlines()]
    assert lines and all(set(line) == {"time", "level", "message"} for line in lines)
    assert start("--log-level", "error").log() == ""


def test_the_log_never_goes_to_a_client(tmp_path):
    """With stdin, stdout and stderr closed the first descriptors would be theirs."""
    command = " ".join(map(str, [BUILD / "tpd", "--log-level", "debug", "--model", TINY,
                                 *own(tmp_path)]))
    process = subprocess.Popen(["sh", "-c", f"exec {command} <&- >&- 2>&-"])
    try:
        eventually(lambda: (tmp_path / "s" / "t.sock").exists())
        for fd in range(3):
            assert os.readlink(f"/proc/{process.pid}/fd/{fd}") == "/dev/null"
    finally:
        process.terminate()
        assert process.wait(60) == 0


def test_metrics_count_what_happened(start):
    daemon = start()
    with daemon.client() as client:
        client.call("generate", prompt="Once upon a time", max_tokens=7, ignore_eos=True)
        text = client.call("metrics")["text"]
    values = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            values[name] = float(value)
    assert values["tpd:generation_tokens_total"] == 7
    assert values["tpd:prompt_tokens_total"] == 5
    assert values['tpd:request_success_total{finished_reason="length"}'] == 1
    assert values["tpd:e2e_request_latency_seconds_count"] == 1
    assert values['tpd:e2e_request_latency_seconds_bucket{le="+Inf"}'] == 1
    assert values["tpd:connections"] == 1
    helped = {line.split()[2] for line in text.splitlines() if line.startswith("# HELP")}
    for name in values:
        base = name.split("{")[0]
        for suffix in ("_bucket", "_sum", "_count"):
            base = base[:-len(suffix)] if base.endswith(suffix) and base not in helped else base
        assert base in helped
