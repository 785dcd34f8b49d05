"""What happens to a model's file while it is served does not happen to the daemon."""
import json
import os
import shutil

import pytest

from daemon import ROOT, TINY, RpcError

JOB = {"data": "a.jsonl", "name": "who", "max_steps": 1, "batch_size": 1, "seq_len": 32, "eval_fraction": 0}


@pytest.mark.parametrize("source", [TINY, ROOT / "tests/data/gguf/tiny-chat-q8_0/model.gguf"], ids=["hf", "gguf"])
def test_a_served_model_does_not_depend_on_its_file(start, tmp_path, source):
    """Cut to nothing: requests go on; what must read the file again says what is wrong with it."""
    model = tmp_path / ("model" if source.is_dir() else "model.gguf")
    (shutil.copytree if source.is_dir() else shutil.copy)(source, model)
    weights = model / "model.safetensors" if source.is_dir() else model
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.jsonl").write_text(json.dumps({"text": "a b c d e f"}) + "\n")
    daemon = start("--tp", 2, "--data-dir", data, model=model)
    ask = {"prompt": "The cat", "max_tokens": 12, "temperature": 0}
    with daemon.client() as client:
        before = client.call("generate", **ask)["tokens"]
        os.truncate(weights, 0)
        assert client.call("generate", **ask)["tokens"] == before
        assert client.call("tokenize", text="The cat")["tokens"]
        job = client.result(client.send("finetune.submit", dict(JOB, method="full")))
        job = client.call("finetune.watch", job=job["job"])
        assert job["state"] == "failed" and "became shorter" in job["error"] and str(weights) in job["error"], job
        job = client.call("finetune.submit", **JOB)
        job = client.call("finetune.watch", job=job["job"])
        assert job["state"] == "done", job  # a LoRA's base is in memory
        with pytest.raises(RpcError) as e:
            client.call("model.merge", adapter=job["result"], out="merged")
        assert e.value.code == -32006 and "became shorter" in e.value.message
        assert not (daemon.directory / "state/merged").exists()
        assert client.call("generate", **ask)["tokens"] == before
    assert daemon.stop() == 0
