#!/usr/bin/env python3
"""Writes tests/data/models/tiny-chat and tiny-spm: whole small models with tokenizers.

They learn a page of text (chat_text.py) by heart, so that greedy text is readable, has characters
of several bytes, and ends. README.md beside this script has the formats."""
import json
import shutil

import numpy as np
import tokenizers
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

import reference as ref
from chat_text import CHATS, LINES, chat
from make_models import DTYPES, OUT, config

STEPS, BATCH = 700, 16
MAX_TOKENS = 48
TOP = 5
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def byte_level_tokenizer():
    """As SmolLM2's: digits one by one, bytes, merges; here a BOS is added, too."""
    special = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    tok = tokenizers.Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(LINES + [t for c in CHATS for t in c], trainers.BpeTrainer(
        vocab_size=352, special_tokens=special, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    tok.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])])
    return tok


def spm_tokenizer():
    """As Llama 2's: spaces become ▁, one is put in front; characters that are neither
    ASCII nor é fall back to bytes."""
    pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]
    trained = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    known = ["".join(c if c.isascii() or c == "é" else " " for c in t) for t in LINES]
    trained.train_from_iterator(known, trainers.BpeTrainer(
        vocab_size=384, special_tokens=pieces, show_progress=False))
    learned = json.loads(trained.to_str())["model"]
    tok = tokenizers.Tokenizer(models.BPE(
        vocab=learned["vocab"], merges=[tuple(m) for m in learned["merges"]], unk_token="<unk>",
        fuse_unk=True, byte_fallback=True))
    tok.normalizer = normalizers.Sequence([
        normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tok.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Strip(" ", 1, 0)])
    tok.add_special_tokens(pieces[:3])
    tok.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)])
    return tok


def train(name, settings, texts):
    """fp32 weights of a model that knows the texts (lists of ids) by heart."""
    torch.manual_seed(1)
    model = ref.model_from_weights(settings, ref.random_weights(name, settings)).train()
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(0.3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, STEPS)
    rng = ref.rng_for(name + " order")
    for step in range(STEPS):
        batch = [texts[i] for i in rng.integers(0, len(texts), BATCH)]
        longest = max(map(len, batch))
        ids = torch.tensor([t + [0] * (longest - len(t)) for t in batch])
        labels = torch.tensor([t + [-100] * (longest - len(t)) for t in batch])
        loss = model(ids, labels=labels, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    print(f"{name}: loss {loss:.3f}")
    return {k: v.detach().clone() for k, v in model.state_dict().items() if k != "lm_head.weight"}


def completion(model, tok, text, ends):
    """One prompt's greedy answer, with the log-probabilities of the best tokens of each step."""
    ids = tok.encode(text).ids
    greedy, logits = ref.run_cached(model, ids, MAX_TOKENS)
    stop = next((i for i, t in enumerate(greedy) if t in ends), None)
    tokens = greedy if stop is None else greedy[:stop]
    steps = tokens if stop is None else greedy[:stop + 1]
    logprobs = torch.log_softmax(logits[len(ids) - 1:].double(), -1)
    top = logprobs.topk(TOP)
    before = tok.decode(ids)
    whole = tok.decode(ids + tokens)
    assert whole.startswith(before) and "�" not in whole
    return {
        "prompt": text, "ids": ids, "tokens": tokens, "text": whole[len(before):],
        "end": None if stop is None else greedy[stop],
        "logprobs": [round(float(logprobs[i, t]), 5) for i, t in enumerate(steps)],
        "top": [[[int(t), round(float(p), 5)] for t, p in zip(top.indices[i], top.values[i])]
                for i in range(len(steps))],
    }


def make(name, settings, tok, texts, tokenizer_config, generation, prompts):
    where = OUT / name
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir(parents=True)
    for file, content in [("config.json", settings), ("generation_config.json", generation),
                          ("tokenizer_config.json", tokenizer_config)]:
        (where / file).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    (where / "tokenizer.json").write_text(tok.to_str(pretty=False) + "\n")
    weights = train(name, settings, texts)
    dtype = DTYPES[settings["torch_dtype"]]
    save_file({k: v.to(dtype) for k, v in weights.items()}, where / "model.safetensors",
              metadata={"format": "pt"})

    model = transformers.AutoModelForCausalLM.from_pretrained(
        where, attn_implementation="eager", dtype=torch.float32).eval()
    answers = [completion(model, tok, p, generation["eos_token_id"]) for p in prompts]
    lines = ",\n".join(json.dumps(a, ensure_ascii=False) for a in answers)
    (where / "expected_text.json").write_text(f'{{"prompts": [\n{lines}\n]}}\n')
    for a in answers:
        print(f"  {a['prompt']!r} -> {a['text']!r} {a['end']}")
    rows = [(a["ids"], [0, len(a["ids"]) - 1, len(a["ids"]) + ref.GREEDY - 2]) for a in answers]
    expected, logits, summary = ref.expect(model, rows)
    ref.write_expected(where, expected, logits)
    print(f"  {sum(f.stat().st_size for f in where.iterdir()) // 1000} kB, {summary}")


def make_chat():
    tok = byte_level_tokenizer()
    end, im_end = tok.token_to_id("</s>"), tok.token_to_id("<|im_end|>")
    settings = config("llama", vocab_size=tok.get_vocab_size(), intermediate_size=64,
                      bos_token_id=0, eos_token_id=im_end)
    texts = [tok.encode(t).ids + [end] for t in LINES]
    texts += [tok.encode(chat(*c)).ids for c in CHATS]
    make("tiny-chat", settings, tok, texts,
         {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>",
          "eos_token": "<|im_end|>", "model_max_length": 256, "chat_template": CHAT_TEMPLATE},
         {"bos_token_id": 0, "eos_token_id": [im_end, end]},
         ["Once upon a time", "The café on", "The captain", "A ship from Japan", "",
          chat("Hello!", "").removesuffix("<|im_end|>\n"),
          chat("Send me a smile.", "").removesuffix("<|im_end|>\n"),
          chat("Say something in French.", "").removesuffix("<|im_end|>\n")])


def make_spm():
    tok = spm_tokenizer()
    settings = config("llama", vocab_size=tok.get_vocab_size(), intermediate_size=64,
                      torch_dtype="bfloat16")
    make("tiny-spm", settings, tok, [tok.encode(t).ids + [2] for t in LINES],
         {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>",
          "unk_token": "<unk>", "model_max_length": 256},
         {"bos_token_id": 1, "eos_token_id": [2]},
         ["Once upon a time", "The café", "The captain smiled", "A ship from Japan", ""])


if __name__ == "__main__":
    make_chat()
    make_spm()
