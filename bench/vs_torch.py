"""The same fine-tuning in transformers + peft and in tpd, side by side in one run: tokens a second and
peak resident memory of the whole process. SmolLM2-135M's shape, random weights in bf16, a step of BATCH
sequences, on the same cores.

LoRA of rank 16 on every matrix over bf16 weights; full fine-tuning with fp32 masters and moments under
bf16 autocast, which is what tpd does, and once more all in bf16, which keeps no masters. Each figure
comes from a process of its own; its first step is not counted.

Run it with a python that has torch, transformers and peft:  PYTHON bench/vs_torch.py [--help]
Without them tpd's rows stand alone. Reads B (build folder)."""
import argparse
import importlib.util
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

from common import CORES, Daemon, peak_mib, random_model

RANK, ALPHA = 16, 32
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PEER_PACKAGES = ("torch", "transformers", "peft")
QUANTISED = pathlib.Path.home() / ".cache/tpd/SmolLM2-135M-Instruct.Q4_1.gguf"


# --- transformers + peft, in a process of its own ---------------------------------------------------

def peer_model(torch, kind):
    import transformers
    from make_model import SHAPES
    shape = SHAPES["smollm2-135m"]
    config = transformers.LlamaConfig(
        vocab_size=shape["vocab"], hidden_size=shape["hidden"], intermediate_size=shape["ffn"],
        num_hidden_layers=shape["layers"], num_attention_heads=shape["heads"],
        num_key_value_heads=shape["kv_heads"], max_position_embeddings=shape["context"],
        rope_parameters={"rope_type": "default", "rope_theta": shape["rope_base"]},
        tie_word_embeddings=shape["tied"], use_cache=False)
    torch.manual_seed(135)
    torch.set_default_dtype(torch.float32 if kind == "full" else torch.bfloat16)
    model = transformers.LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    return model, shape["vocab"]


def peer_step(torch, model, optimizer, ids, autocast):
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_((p for p in model.parameters() if p.requires_grad), 1.0)
    optimizer.step()
    return loss.item()


def peer(task):
    """kind: lora, full, or full-bf16 (no masters)."""
    import torch
    torch.set_num_threads(task["threads"])
    model, vocab = peer_model(torch, task["kind"])
    if task["kind"] == "lora":
        import peft
        model = peft.get_peft_model(model, peft.LoraConfig(
            r=RANK, lora_alpha=ALPHA, target_modules=TARGETS, task_type="CAUSAL_LM"))
    if task["checkpointing"]:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    model.train()
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-4)
    speeds = []
    for _ in range(task["steps"] + 1):
        ids = torch.randint(vocab, (task["batch"], task["seq"]))
        began = time.monotonic()
        peer_step(torch, model, optimizer, ids, task["kind"] != "full-bf16")
        speeds.append(ids.numel() / (time.monotonic() - began))
    print(json.dumps({"speed": statistics.median(speeds[1:]), "memory": peak_mib()}))


def measure_peer(task):
    out = subprocess.run([sys.executable, __file__, "--peer", json.dumps(task)],
                         stdout=subprocess.PIPE, check=True, text=True,
                         env=os.environ | {"OMP_NUM_THREADS": str(task["threads"])}).stdout
    return json.loads(out.splitlines()[-1])


# --- tpd --------------------------------------------------------------------------------------------

def write_data(folder, task, vocab):
    rng = random.Random(135)
    with open(f"{folder}/data.jsonl", "w") as out:
        for _ in range((task["steps"] + 1) * task["batch"]):
            ids = [rng.randrange(vocab - 2) for _ in range(task["seq"])]
            out.write(json.dumps({"input_ids": ids, "labels": ids}) + "\n")


def run_job(client, folder, task):
    write_data(folder, task, client.model_info()["shape"]["vocab"])
    spec = {"data": "data.jsonl", "method": task["kind"], "epochs": 1, "lr": 1e-4,
            "batch_size": task["batch"], "seq_len": task["seq"], "save_every": 0,
            "grad_checkpointing": task["checkpointing"], "compute": task["compute"]}
    if task["kind"] == "lora":
        spec["lora"] = {"r": RANK, "alpha": ALPHA}
    job = client.call("finetune.submit", **spec)["job"]
    while (state := client.call("finetune.get", job=job))["state"] in ("queued", "running"):
        time.sleep(0.1)
    if state["state"] != "done":
        sys.exit(f"vs_torch.py: the job is {state['state']}: {state['error']}")
    return client.call("finetune.log", job=job)["events"]


def measure_tpd(task, model, tp):
    """A whole job, so that its last checkpoint and its result count in the peak."""
    with tempfile.TemporaryDirectory() as folder:
        daemon = Daemon(model, "--tp", tp, "--ctx", 2048, "--data-dir", folder)
        try:
            events = run_job(daemon.client, folder, task)
            memory = peak_mib(daemon.process.pid)
        finally:
            daemon.stop()
    speeds = [e["tokens_per_s"] for e in events if e["event"] == "step"]
    return {"speed": statistics.median(speeds[1:]), "memory": memory}


# --- side by side -----------------------------------------------------------------------------------

def print_row(who, task, result, peer_result=None):
    ratio = ""
    if peer_result:
        ratio = (f"{result['speed'] / peer_result['speed']:8.2f} x speed, "
                 f"{result['memory'] / peer_result['memory']:5.2f} x memory")
    print(f"{task['kind']:10} {task['batch']} x {task['seq']:<5} "
          f"{'on' if task['checkpointing'] else 'off':4} {who:28} {result['speed']:8.0f} tokens/s "
          f"{result['memory']:7.0f} MiB {ratio}", flush=True)


def compare(task, models, have_peer):
    result = None
    if have_peer:
        if task["kind"] == "full":
            pure = task | {"kind": "full-bf16"}
            print_row("torch (all in bf16)", pure, measure_peer(pure))
        result = measure_peer(task)
        print_row("torch", task, result)
    for tp in task["tp"]:
        cores = f"a team of {CORES}" if tp == 1 and CORES > 1 else f"{tp} ranks"
        print_row(f"tpd, tp {tp} ({cores})", task, measure_tpd(task, models[0], tp), result)
    if task["kind"] == "lora" and len(models) > 1:
        print_row(f"tpd, tp 1, {models[1].name[-9:]}", task, measure_tpd(task, models[1], 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--kinds", default="lora,full", help="lora, full (default both)")
    parser.add_argument("--seq", default="512,1024", help="lengths of a sequence (default 512,1024)")
    parser.add_argument("--batch", type=int, default=4, help="sequences a step (default 4)")
    parser.add_argument("--steps", type=int, default=4, help="steps that count (default 4)")
    parser.add_argument("--checkpointing", default="off,on", help="off, on (default both)")
    parser.add_argument("--compute", default="auto", help="of tpd: auto, bf16, f32 (default auto)")
    parser.add_argument("--tp", default="", help="of tpd (default 1 to the number of cores)")
    parser.add_argument("--no-peer", action="store_true", help="tpd alone")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        peer(json.loads(args.peer))
        return
    have_peer = not args.no_peer and all(importlib.util.find_spec(p) for p in PEER_PACKAGES)
    if not have_peer and not args.no_peer:
        print("torch, transformers and peft are not all installed for this python: tpd alone. To have them\n"
              "beside it: python3 -m venv V && V/bin/pip install torch transformers peft numpy, then\n"
              "V/bin/python bench/vs_torch.py")
    models = [random_model("smollm2-135m", "bf16")] + [QUANTISED] * QUANTISED.exists()
    tps = [int(tp) for tp in args.tp.split(",")] if args.tp else range(1, CORES + 1)
    print(f"{'':10} {'batch':9} {'ckpt':4} on {CORES} cores")
    for kind in args.kinds.split(","):
        for seq in args.seq.split(","):
            for checkpointing in args.checkpointing.split(","):
                compare({"kind": kind, "seq": int(seq), "batch": args.batch, "steps": args.steps,
                         "checkpointing": checkpointing == "on", "compute": args.compute, "tp": list(tps),
                         "threads": CORES}, models, have_peer)


if __name__ == "__main__":
    main()
