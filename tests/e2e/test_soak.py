"""A thousand connections, two hundred with a request: after them the daemon is as it was before.

TPD_SOAK_SECONDS says how long they stay (`make soak`: ten minutes)."""
import json
import os
import resource
import signal
import socket

import pytest

from daemon import eventually
from soak import TOKENS, Crowd

SECONDS = float(os.environ.get("TPD_SOAK_SECONDS", "12"))
CONNECTIONS, LIVE = 1000, 200
SLOW_CLIENT_S = 2
JOB = {"data": "d.jsonl", "max_steps": 3, "batch_size": 2, "seq_len": 32, "save_every": 0,
       "eval_fraction": 0}
MIB = 1 << 20


def raise_descriptor_limit():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < CONNECTIONS + 100:
        pytest.skip(f"this process may open only {hard} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, CONNECTIONS + 100), hard))


def held(daemon):
    """What the daemon has of the system."""
    return {what: len(os.listdir(f"/proc/{daemon.process.pid}/{what}")) for what in ("fd", "task")}


def metric(client, name):
    lines = client.call("metrics")["text"].splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def prompts():
    """Some begin alike, so that they share blocks of the cache."""
    return [tuple(10 + (i * (k % 3 + 1) + (k if i > 20 else 0)) % 280 for i in range(2 + 3 * k))
            for k in range(20)]


def known_answers(client):
    return {p: client.call("generate", prompt=list(p), max_tokens=TOKENS, temperature=0,
                           ignore_eos=True)["tokens"] for p in prompts()}


def quiet(client):
    """Whether nothing of anybody else is left."""
    status = client.call("status")
    return (status["connections"], status["slots"]["busy"], status["queue"], status["kv"]["used"],
            status["job"]) == (1, 0, 0, 0, None)


def check_books(client):
    kv = client.call("status")["kv"]
    assert kv["cached"] + kv["free"] == kv["blocks"]


def check_jobs(client, jobs):
    """Every job that was ever submitted is there, and ended as it should."""
    listed = {j["job"]: j["state"] for j in client.call("finetune.list")["jobs"]}
    assert set(listed) == set(jobs)
    for job, cancelled in jobs.items():
        assert listed[job] in (("cancelled", "done") if cancelled else ("done",)), job


def test_a_thousand_may_knock_at_once(start):
    raise_descriptor_limit()
    if int(open("/proc/sys/net/core/somaxconn").read()) < CONNECTIONS:
        pytest.skip("the system lets fewer wait (net.core.somaxconn)")
    daemon = start()
    daemon.signal(signal.SIGSTOP)
    clients = [socket.socket(socket.AF_UNIX) for _ in range(CONNECTIONS)]
    try:
        for client in clients:
            client.setblocking(False)
            client.connect(str(daemon.socket))  # refused with EAGAIN where no more may wait
    finally:
        daemon.signal(signal.SIGCONT)
    for client in clients:
        client.setblocking(True)
        client.sendall(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
        assert b'"protocol":1' in client.recv(4096)
        client.close()


def test_a_crowd_leaves_nothing_behind(start, tmp_path):
    raise_descriptor_limit()
    data = tmp_path / "data"
    data.mkdir()
    (data / "d.jsonl").write_text(json.dumps({"text": "so it was, and is. "}) + "\n")
    daemon = start("--data-dir", data, "--slots", 64, "--max-queue", 1000, "--kv-memory", "600K",
                   "--slow-client-s", SLOW_CLIENT_S, "--max-outbound", "32K", "--max-connections", 4000,
                   "--log-level", "error")
    with daemon.client() as client:
        known = known_answers(client)
        before, jobs, rss = held(daemon), {}, []
        # The first part is warm-up: buffers reach the size that such a crowd asks for.
        for seconds in (SECONDS * 0.4, SECONDS * 0.6):
            crowd = Crowd(daemon.socket, known, CONNECTIONS, LIVE, SLOW_CLIENT_S, seed=len(jobs))
            crowd.run(seconds, JOB)
            jobs.update(crowd.jobs)
            eventually(lambda: quiet(client), timeout=120)
            rss.append(daemon.rss())
            print(f"{seconds:.0f} s: {dict(crowd.counts)}, {len(jobs)} jobs, "
                  f"{metric(client, 'tpd:num_preemptions_total'):.0f} times blocks ran out, "
                  f"{rss[-1] / MIB:.1f} MiB, {held(daemon)}", flush=True)
            assert crowd.counts["most at once"] > CONNECTIONS * 0.9
            assert held(daemon) == before
            check_books(client)
            check_jobs(client, jobs)
        assert rss[1] - rss[0] < 8 * MIB
        assert metric(client, "tpd:num_preemptions_total") > 0
        assert known_answers(client) == known
    assert daemon.process.poll() is None, daemon.log()
    assert daemon.stop() == 0, daemon.log()
