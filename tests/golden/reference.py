"""What the scripts share: random weights, and running transformers to get the expected numbers."""
import json
import pathlib
import zlib

import numpy as np
import torch
import transformers

DATA = pathlib.Path(__file__).resolve().parent.parent / "data"
GREEDY = 16          # tokens that follow each prompt
NOISE = 5e-5         # fp32 and fp64 may differ by this much, a quarter of what tests allow
LEAST_MARGIN = 1e-3  # between the best two tokens of a greedy step

torch.set_num_threads(1)
torch.set_default_dtype(torch.float32)
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


def rng_for(name):
    return np.random.default_rng(zlib.crc32(name.encode()))


def head_dim(config):
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def tensor_shapes(config):
    """{name: shape} of all that a checkpoint of this config.json holds, in file order."""
    arch, hidden, ffn = config["model_type"], config["hidden_size"], config["intermediate_size"]
    q = config["num_attention_heads"] * head_dim(config)
    kv = config["num_key_value_heads"] * head_dim(config)
    attention_bias = config.get("attention_bias", False)
    biased = {"q_proj", "k_proj", "v_proj"} if arch == "qwen2" or attention_bias else set()
    if attention_bias:
        biased.add("o_proj")
    if config.get("mlp_bias", False):
        biased |= {"gate_proj", "up_proj", "down_proj"}
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        shapes[layer + "input_layernorm.weight"] = (hidden,)
        for name, shape in [("self_attn.q_proj", (q, hidden)), ("self_attn.k_proj", (kv, hidden)),
                            ("self_attn.v_proj", (kv, hidden)), ("self_attn.o_proj", (hidden, q)),
                            ("mlp.gate_proj", (ffn, hidden)), ("mlp.up_proj", (ffn, hidden)),
                            ("mlp.down_proj", (hidden, ffn))]:
            shapes[layer + name + ".weight"] = shape
            if name.split(".")[1] in biased:
                shapes[layer + name + ".bias"] = shape[:1]
        if arch == "qwen3":
            shapes[layer + "self_attn.q_norm.weight"] = (head_dim(config),)
            shapes[layer + "self_attn.k_norm.weight"] = (head_dim(config),)
        shapes[layer + "post_attention_layernorm.weight"] = (hidden,)
    shapes["model.norm.weight"] = (hidden,)
    if not config.get("tie_word_embeddings", False):
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return shapes


def weight_std(name, shape):
    """Spread that keeps activations near 1, attention uneven and the logits a few units wide."""
    if "embed_tokens" in name or "lm_head" in name:
        return min(0.4, 2.4 / shape[-1] ** 0.5)
    return (1.6 if "q_proj" in name or "k_proj" in name else 1.2) / shape[-1] ** 0.5


def random_tensor(rng, name, shape):
    if "norm" in name:
        values = 1 + 0.2 * rng.standard_normal(shape)
    elif name.endswith("bias"):
        values = 0.3 * rng.standard_normal(shape)
    else:
        values = weight_std(name, shape) * rng.standard_normal(shape)
    return values.astype(np.float32)


def random_weights(name, config):
    rng = rng_for(name)
    return {k: random_tensor(rng, k, shape) for k, shape in tensor_shapes(config).items()}


def model_from_weights(config, weights):
    """A transformers model of a config.json's content and fp32 tensors."""
    config = transformers.AutoConfig.for_model(**config)
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", dtype=torch.float32)
    tensors = {k: torch.from_numpy(np.array(v)) for k, v in weights.items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    return model.eval()


def reset_rope(model):
    """Dynamic rope remembers the longest length it has seen; every prompt begins afresh."""
    rope = model.model.rotary_emb
    model.model.rotary_emb = type(rope)(config=model.config)


@torch.no_grad()
def run_cached(model, ids, n_greedy):
    """Prompt in one pass, then token by token on the KV cache.

    Returns the greedy tokens and the logits of every position, [len(ids) + n_greedy - 1, vocab]."""
    reset_rope(model)
    out = model(torch.tensor([ids]), use_cache=True)
    logits, greedy = [out.logits[0]], []
    while True:
        greedy.append(int(logits[-1][-1].argmax()))
        if len(greedy) == n_greedy:
            return greedy, torch.cat(logits)
        out = model(torch.tensor([greedy[-1:]]), cache=out.past_key_values)
        logits.append(out.logits[0])


@torch.no_grad()
def run_whole(model, ids):
    reset_rope(model)
    return model(torch.tensor([ids]), use_cache=False).logits[0]


def expect(model, prompts, dynamic=False):
    """Runs prompts [(ids, rows)]; rows past the prompt are those of the greedy tokens.

    Returns the content of expected.json and of expected.f32."""
    entries, blobs, offset, worst = [], [], 0, 0.0
    for ids, rows in prompts:
        greedy, logits = run_cached(model, ids, GREEDY)
        model.double()
        greedy64, logits64 = run_cached(model, ids, GREEDY)
        model.float()
        assert greedy64 == greedy
        worst = max(worst, float((logits - logits64).abs().max()))
        if not dynamic:  # there the whole sequence in one pass would be rotated otherwise
            whole = run_whole(model, ids + greedy[:-1])
            worst = max(worst, float((logits - whole).abs().max()))
        top = logits[len(ids) - 1:].topk(2).values
        entries.append({
            "ids": ids, "rows": rows, "offset": offset, "greedy": greedy,
            "margins": [round(float(a - b), 5) for a, b in top],
        })
        blobs.append(logits[rows].numpy().astype("<f4"))
        offset += blobs[-1].size
    least = min(min(e["margins"]) for e in entries)
    assert worst < NOISE and least > LEAST_MARGIN, (worst, least)
    values = np.concatenate(blobs)
    summary = (f"std {values.std():.2f}, fp32 noise {worst:.1e}, least margin {least:.4f}, "
               f"distinct greedy {[len(set(e['greedy'])) for e in entries]}")
    return {"vocab": int(values.shape[1]), "prompts": entries}, values.tobytes(), summary


def write_expected(where, expected, logits):
    """expected.json, a line a prompt, and the rows of logits that it points into."""
    prompts = ",\n".join(json.dumps(p) for p in expected["prompts"])
    text = f'{{"vocab": {expected["vocab"]}, "prompts": [\n{prompts}\n]}}\n'
    (where / "expected.json").write_text(text)
    (where / "expected.f32").write_bytes(logits)


def standard_prompts(name, vocab, lengths):
    """Random prompts; all rows of those up to 12 tokens, else the first, a middle and the last two.
    Each also has the row that chooses the last greedy token."""
    rng = rng_for(name + " prompts")
    prompts = []
    for n in lengths:
        ids = [int(i) for i in rng.integers(3, vocab, n)]
        rows = list(range(n)) if n <= 12 else [0, n // 2, n - 2, n - 1]
        prompts.append((ids, rows + [n + GREEDY - 2]))
    return prompts
