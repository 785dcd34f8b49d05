"""tensor.list and tensor.export: the ranks' own memory, mapped by other processes."""
import json
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

import blocks
import schema
from daemon import BUILD, ROOT, TINY, RpcError

sys.path.insert(0, str(ROOT / "client/python"))
import tpd as tpd_client  # noqa: E402  (needs the path above)

GGUF = ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k",
        "biases-f16"]


def shared_names(daemon):
    """What is there in shared memory of a daemon with this state directory."""
    st = os.stat(daemon.directory / "state")
    prefix = f"tpd-{st.st_dev:x}-{st.st_ino:x}-"
    return [name for name in os.listdir("/dev/shm") if name.startswith(prefix)]


def mapped_fields(shard):
    """As blocks.fields has them, of a part."""
    names = {a["name"] for a in shard.layout["arrays"]}
    if "values" in names:
        return {"values": shard._rows("values").reshape(shard.n_rows, -1)[:, :shard.n_cols]}
    out = {"codes": shard.codes(), "scale": shard._rows("scale").view("<u2")}
    if "minimum" in names:
        out["minimum"] = shard._rows("minimum").view("<u2")
    if "sub_scales" in names:
        out["sub_scales"] = shard.sub_scales()
    return out


def as_held(name, whole, dtype, vector):
    """Vectors are fp32, whatever the file has."""
    if not vector or dtype == "f32":
        return whole
    return (whole.astype("<u4") << 16).view("<f4") if dtype == "bf16" else whole.astype("<f4")


def check_all(daemon, files):
    with tpd_client.Client(str(daemon.socket)) as client:
        listed = client.tensor_list()
        assert {t["name"] for t in listed} == set(files)
        for about in listed:
            dtype, shape, data = files[about["name"]]
            assert tuple(about["shape"]) == shape and about["file_dtype"].lower() == dtype
            whole = {key: blocks.rows_in_order(as_held(key, value, dtype, len(shape) == 1),
                                               about["permuted_head_dim"])
                     for key, value in blocks.fields(dtype, shape, data).items()}
            with client.tensor_map(about["name"]) as tensor:
                covered = np.zeros((shape[0], 1 if len(shape) == 1 else shape[1]), bool)
                for shard, told in zip(tensor.shards, about["shards"]):
                    assert (shard.rank, shard.rows) == (told["rank"], told["rows"])
                    from_, to = shard.cols or (0, 1)
                    covered[shard.rows[0]:shard.rows[1], from_:to] = True
                    columns = shard.layout["columns"] if dtype in blocks.BLOCKS else 1
                    part = {key: value[shard.rows[0]:shard.rows[1], from_ // columns:to // columns]
                            for key, value in whole.items()}
                    got = mapped_fields(shard)
                    assert set(got) == set(part)
                    for key in part:
                        assert np.array_equal(got[key], part[key]), (about["name"], shard.rank, key)
                assert covered.all(), about["name"]
                assert tensor.floats().shape == shape
                del got, part


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("name", GGUF)
def test_mapped_parts_are_the_files_tensors(start, name, tp):
    path = ROOT / f"tests/data/gguf/llama-{name}/model.gguf"
    check_all(start("--tp", tp, model=path), blocks.read_gguf(path))


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("name", ["llama-bf16", "llama-f16", "qwen2", "llama-untied", "llama-uneven"])
def test_mapped_parts_are_a_directorys_tensors(start, tmp_path, name, tp):
    model = tmp_path / "model"
    shutil.copytree(ROOT / "tests/data/models" / name, model)
    shutil.copy(TINY / "tokenizer.json", model)
    check_all(start("--tp", tp, model=model), blocks.read_safetensors(model / "model.safetensors"))


def test_floats_are_the_values(start):
    """Of a type with packed scales: against the definition, element by element."""
    path = ROOT / "tests/data/gguf/llama-q4_k/model.gguf"
    daemon = start(model=path)
    f = blocks.fields(*blocks.read_gguf(path)["blk.0.ffn_up.weight"])
    row, block = 5, 0
    s = [int(x) for x in f["sub_scales"][row, block]]
    scales = [s[i] & 63 if i < 4 else s[i + 4] & 15 | s[i - 4] >> 6 << 4 for i in range(8)]
    minima = [s[i + 4] & 63 if i < 4 else s[i + 4] >> 4 | s[i] >> 6 << 4 for i in range(8)]
    d, m = (float(f[k][row, block].view("<f2")[0]) for k in ("scale", "minimum"))
    expected = [d * scales[i // 32] * int(f["codes"][row, block, i]) - m * minima[i // 32] for i in range(256)]
    with tpd_client.Client(str(daemon.socket)) as client, client.tensor_map("blk.0.ffn_up.weight") as tensor:
        assert np.allclose(tensor.floats()[row, :256], expected, rtol=1e-6, atol=1e-7)


def test_answers_are_as_docs_schema_says(client):
    listed = client.call("tensor.list")
    schema.check("tensor.list", listed)
    for tensor in listed["tensors"]:
        schema.check("tensor.export", client.call("tensor.export", name=tensor["name"]))
    with pytest.raises(RpcError) as e:
        client.call("tensor.export", name="no.such.weight")
    assert e.value.code == -32003 and "no.such.weight" in e.value.message
    with pytest.raises(RpcError) as e:
        client.call("tensor.export")
    assert e.value.code == -32602


def test_serving_and_memory_stay_as_they_were(start):
    """An export moves pages, between two steps; no bit changes, and the prefix cache stays of use."""
    daemon = start("--tp", 2)
    with daemon.client() as client:
        ask = {"prompt": "The cat sat on the mat and looked at the moon. " * 4, "max_tokens": 20,
               "temperature": 0, "logprobs": 2}
        before = client.call("generate", **ask)
        used = client.call("model.info")["ranks"]
        running = client.send("generate", dict(ask, max_tokens=200, ignore_eos=True))
        for tensor in client.call("tensor.list")["tensors"]:
            again = [client.call("tensor.export", name=tensor["name"]) for _ in range(2)]
            assert again[0] == again[1]
        assert client.result(running)["tokens"][:20] == before["tokens"]
        after = client.call("generate", **ask)
        assert after["tokens"] == before["tokens"] and after["logprobs"] == before["logprobs"]
        assert after["usage"]["cached_tokens"] >= 32
        assert client.call("model.info")["ranks"] == used


def test_nobody_can_write_and_views_outlive_the_daemon(start):
    daemon = start()
    with tpd_client.Client(str(daemon.socket)) as client:
        name = client.tensor_list()[0]["name"]
        tensor = client.tensor_map(name)
    view = tensor.shards[0].array()
    assert not view.flags.writeable
    copy = view.copy()
    assert shared_names(daemon)
    assert daemon.stop() == 0
    assert not shared_names(daemon)
    assert np.array_equal(view, copy)
    tensor.close()  # while a view is there
    assert np.array_equal(view, copy)


def test_what_a_killed_daemon_left_goes_at_the_next_start(start, tmp_path):
    daemon = start()
    other = start()
    for d in (daemon, other):
        with d.client() as client:
            for tensor in client.call("tensor.list")["tensors"]:
                client.call("tensor.export", name=tensor["name"])
    left = shared_names(daemon)
    assert left
    daemon.signal(signal.SIGKILL)
    daemon.wait()
    assert shared_names(daemon) == left
    again = type(daemon)(daemon.directory)
    assert not shared_names(again) and shared_names(other)
    assert f"/{left[0]}" in again.log()
    again.stop()


@pytest.mark.parametrize("mode, directory, expected",
                         [("0600", 0o755, 0o400), ("0660", 0o755, 0o440), ("0666", 0o755, 0o444),
                          ("0666", 0o700, 0o400), ("0666", 0o710, None)])
def test_who_may_not_connect_cannot_open_it(start, tmp_path, mode, directory, expected):
    daemon = start("--socket-mode", mode, wait=False)
    tmp_path.chmod(0o755)
    daemon.directory.chmod(directory)
    daemon.stop()
    daemon = type(daemon)(daemon.directory, TINY, "--socket-mode", mode)
    with daemon.client() as client:
        shard = client.call("tensor.export", name="model.norm.weight")["shards"][0]
    path = "/dev/shm" + shard["handle"]["name"]
    above, reach = daemon.directory.resolve().parent, 0o444
    for d in [above, *above.parents]:
        reach &= 0o400 | (0o040 if d.stat().st_mode & 0o001 else 0) | (0o004 if d.stat().st_mode & 0o001 else 0)
    if expected is None:
        expected = 0o440
    assert os.stat(path).st_mode & 0o777 == expected & reach
    if os.getuid() == 0:
        script = f"import os; os.setgid(65534); os.setgroups([]); os.setuid(65534); open({path!r}, 'rb')"
        ran = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE)
        assert (ran.returncode == 0) == bool(expected & reach & 0o004), ran.stderr
    daemon.stop()


def test_lists_of_users_are_kept_to(start):
    """Permissions cannot say what allow_uid says: then it is the daemon's user alone."""
    daemon = start("--socket-mode", "0666", "--allow-uid", str(os.getuid()))
    with daemon.client() as client:
        shard = client.call("tensor.export", name="model.norm.weight")["shards"][0]
    assert os.stat("/dev/shm" + shard["handle"]["name"]).st_mode & 0o777 == 0o400


def test_tpctl_lists_and_exports(start):
    daemon = start("--tp", 2)
    tpctl = [str(BUILD / "tpctl"), "--socket", str(daemon.socket)]
    rows = subprocess.check_output(tpctl + ["--plain", "tensors"], text=True).splitlines()
    table = {row.split("\t")[0]: row.split("\t")[1:] for row in rows}
    with daemon.client() as client:
        listed = client.call("tensor.list")["tensors"]
        assert list(table) == [t["name"] for t in listed]
        hidden, ffn = listed[0]["shape"][1], client.call("model.info")["shape"]["ffn"]
        kind, shape, shards = table["model.layers.0.mlp.down_proj.weight"]
        assert shape == f"{hidden} x {ffn}" and shards.startswith(f"0: 0-{hidden} x 0-")
        assert f"1: 0-{hidden} x " in shards and shards.endswith(f"-{ffn}")
        one = json.loads(subprocess.check_output(tpctl + ["--json", "tensors", "model.norm.weight"]))
        assert one == client.call("tensor.export", name="model.norm.weight")
    assert subprocess.run(tpctl + ["tensors", "nothing"], stderr=subprocess.DEVNULL).returncode == 66


PROGRAM = r"""
#include <tpd/client.h>
#include <stdio.h>
int main(int argc, char **argv) {
    struct tpd_client *client;
    struct tpd_options options = {0};
    struct tpd_error error = {0};
    struct tpd_tensor *t;
    if (argc < 3) return 64;
    options.socket = argv[1];
    if (tpd_connect(&client, &options, &error)) return 1;
    if (tpd_tensor_map(client, argv[2], &t, &error)) {
        printf("%s\n", error.message);
        tpd_error_clear(&error);
        tpd_close(client);
        return error.exit_code;
    }
    tpd_close(client);
    for (int i = 0; i < tpd_tensor_shards(t); i++) {
        size_t bytes;
        const float *at = tpd_tensor_memory(t, i, &bytes);
        json_t *shard = json_array_get(json_object_get(tpd_tensor_about(t), "shards"), (size_t)i);
        printf("%lld %zu %a\n", (long long)json_integer_value(json_object_get(shard, "rank")), bytes, (double)at[1]);
    }
    if (tpd_tensor_memory(t, tpd_tensor_shards(t), NULL)) return 2;
    tpd_tensor_unmap(t);
    return 0;
}
"""


@pytest.mark.skipif("asan" in str(BUILD), reason="a library with sanitizers wants a program with them")
def test_the_c_library_maps(start, tmp_path):
    daemon = start("--tp", 2)
    (tmp_path / "map.c").write_text(PROGRAM)
    subprocess.run(["gcc", "-std=c99", "-Wall", "-Werror", f"-I{ROOT}/client/lib", "-o", tmp_path / "map",
                    tmp_path / "map.c", BUILD / "libtpdclient.a", "-ljansson"], check=True)
    name = "model.norm.weight"
    dtype, shape, data = blocks.read_safetensors(TINY / "model.safetensors")[name]
    value = as_held(name, blocks.fields(dtype, shape, data)["values"], dtype, True).ravel()[1]
    said = subprocess.check_output([tmp_path / "map", daemon.socket, name], text=True).splitlines()
    assert [line.split()[0] for line in said] == ["0", "1"]
    for line in said:
        assert int(line.split()[1]) >= 4 * shape[0] and float.fromhex(line.split()[2]) == value
    ran = subprocess.run([tmp_path / "map", daemon.socket, "x"], stdout=subprocess.PIPE, text=True)
    assert "no tensor x" in ran.stdout


def test_without_numpy_there_are_bytes(start, monkeypatch):
    daemon = start()
    monkeypatch.setattr(tpd_client, "_numpy", lambda: None)
    name = "model.norm.weight"
    dtype, shape, data = blocks.read_safetensors(TINY / "model.safetensors")[name]
    with tpd_client.Client(str(daemon.socket)) as client, client.tensor_map(name) as tensor:
        view = tensor.shards[0].array()
        expected = as_held(name, blocks.fields(dtype, shape, data)["values"], dtype, True)
        assert view.readonly and bytes(view) == expected.astype("<f4").tobytes()
        with pytest.raises(TypeError):
            tensor.floats()


def test_a_gpus_handle_goes_to_the_driver(monkeypatch):
    """Against a driver that only notes what it is asked."""
    calls = []

    class Driver:
        def __getattr__(self, name):
            def call(*args):
                calls.append((name, args))
                if name == "cuIpcOpenMemHandle_v2":
                    args[0]._obj.value = 0x7000
                return 0
            return call
    monkeypatch.setattr(tpd_client.ctypes, "CDLL", lambda name: Driver())
    about = {"name": "w", "shape": [4, 6], "dtype": "f16", "shards": [
        {"rank": 0, "rows": [0, 4], "cols": [0, 6], "offset": 256, "bytes": 64,
         "handle": {"kind": "cuda", "ipc": "ab" * 64, "device": 3},
         "layout": {"lanes": 1, "columns": 1, "by_bytes": False, "arrays": [
             {"name": "values", "type": "f16", "offset": 256, "shape": [4, 6, 1, 1], "stride": [16, 2, 0, 2]}]}}]}
    tensor = tpd_client.Tensor(about)
    array = tensor.shards[0].array().__cuda_array_interface__
    assert array["data"] == (0x7000 + 256, True) and array["strides"] == (16, 2, 0, 2)
    assert calls[1][1][1] == 3 and bytes(calls[3][1][1]) == b"\xab" * 64
    tensor.close()
    assert calls[-1][0] == "cuIpcCloseMemHandle" and calls[-1][1][0].value == 0x7000
