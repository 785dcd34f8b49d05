"""Connections when there is no room for them: the listener never stalls, and says once what is the matter."""
import os
import resource
import socket
import subprocess

import pytest

from daemon import BUILD, RpcError, eventually

# calloc of about what a connection takes fails on the loop's thread while the file is there.
NO_MEMORY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>
void *calloc(size_t n, size_t size) {
    static void *(*real)(size_t, size_t);
    static char early[4096];
    static size_t used;
    if (!real) {
        if (used) { used += n * size; return early + used - n * size; }
        used = 1024;
        real = (void *(*)(size_t, size_t))dlsym(RTLD_NEXT, "calloc");
    }
    const char *file = getenv("NO_MEMORY_WHILE");
    if (n == 1 && size > 400 && size < 4096 && file && gettid() == getpid() && access(file, F_OK) == 0) return NULL;
    return real(n, size);
}
"""


def answers(daemon):
    with daemon.client() as client:
        return client.call("ping")["protocol"] == 1


@pytest.mark.skipif("asan" in str(BUILD) or "tsan" in str(BUILD), reason="sanitizers have an allocator of their own")
def test_a_connection_without_memory_waits_for_it(start, tmp_path):
    (tmp_path / "no.c").write_text(NO_MEMORY)
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", tmp_path / "no.so", tmp_path / "no.c", "-ldl"], check=True)
    switch = tmp_path / "on"
    daemon = start(env={"LD_PRELOAD": str(tmp_path / "no.so"), "NO_MEMORY_WHILE": str(switch)})
    assert answers(daemon)
    switch.touch()
    waiting = [daemon.client() for _ in range(5)]
    ids = [client.send("ping") for client in waiting]
    eventually(lambda: "cannot accept a connection: no memory" in daemon.log())
    switch.unlink()
    assert [client.result(id)["protocol"] for client, id in zip(waiting, ids)] == [1] * 5
    assert daemon.log().count("cannot accept") == 1
    for client in waiting:
        client.close()
    assert daemon.stop() == 0


def test_without_descriptors_connections_end_and_later_ones_are_served(start):
    daemon = start()
    open_now = len(os.listdir(f"/proc/{daemon.process.pid}/fd"))
    resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (open_now + 8, open_now + 8))
    many = []
    for _ in range(40):
        many.append(socket.socket(socket.AF_UNIX))
        many[-1].settimeout(30)
        many[-1].connect(str(daemon.socket))
    assert many[-1].recv(1) == b"", "it is closed, not left to wait"
    for one in many:
        one.close()
    eventually(lambda: len(os.listdir(f"/proc/{daemon.process.pid}/fd")) <= open_now)
    assert answers(daemon)
    assert daemon.stop() == 0


def test_connections_are_no_more_than_descriptors_allow(start):
    daemon = start(before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60)))
    assert "max_connections = 1024, but 60 descriptors are allowed" in daemon.log()
    clients = [daemon.client() for _ in range(30)]
    assert all(client.call("ping") for client in clients)
    with daemon.client() as refused, pytest.raises(RpcError) as e:
        refused.result(None)
    assert e.value.code == -32001
    for client in clients:
        client.close()
    eventually(lambda: answers_at_all(daemon))


def answers_at_all(daemon):
    try:
        return answers(daemon)
    except RpcError:
        return False
