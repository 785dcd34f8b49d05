"""Small tokenizers that between them have every component tpd reads, with the ids and texts that
Hugging Face's `tokenizers` gives for them, and small GGUF vocabularies with the ids of a plain
reference written here.

Writes tests/data/text/tokenizers.jsonl, a tokenizer a line:
    {"name", "tokenizer": the tokenizer.json, "cases": [{"text", "ids", "ids_special", "decoded",
     "kept", "skipped"}], "streams": [{"ids", "text", "skipped"}]}
"decoded" is of ids, "kept" and "skipped" are of ids_special, with special tokens and without.
and tests/data/text/NAME.gguf with NAME.cases.jsonl.

    pip install tokenizers==0.22.2
    python tests/golden/make_tokenizers.py
"""
import json
import pathlib
import random
import struct

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

OUT = pathlib.Path(__file__).resolve().parent.parent / "data" / "text"

CORPUS = [
    "The lamp by the window burns all night; the cat sleeps under it, warm and unafraid.",
    "They're here, we've seen them, I'd say it's 12 or 13 of them, isn't it? DON'T ask.",
    "int main(void) {\n    return count_words(text, size) - 1;\n}\n\n\tif (x == 10) y += 3.14;\r\n",
    "Ein schöner Tag für Käse, naïve Gespräche und Straßenbahnen über die Brücke.",
    "猫は窓のそばで眠る。灯りは一晩中燃える。", "Кошка спит под лампой, а лампа горит всю ночь.",
    "1234567 people, 89 dogs and 1,000 birds: 2024-05-17 was the day.", "hello hello hello world",
    "   spaces   and\t\ttabs   \n\n\n   at the edges   ", "ノート café cafe\u0301 ﬁne ½ Ⅷ x²",
]
TEXTS = CORPUS + [
    "", " ", "  ", "\n", "a", " a", "a ", "  a  b  ", "\t\n", "'s 'S 'll 'LL don't Don'T",
    "😀 ok 👨‍👩‍👧 family 🏳️‍🌈", "a😀b", "\u0000\u0001\u007f", "\u00a0nbsp\u2003em\u3000ideographic\u200b",
    "0", "12345", "x1y22z333", "٣٤٥ ½ Ⅷ", "!!!???...", "a.b,c;d", "__init__(self, **kw)",
    "<s>hi</s>", "a<s> b", "<unk>", "a</s> hello", "[MASK]x [MASK] x[MASK]", "say  [L]  now",
    "say  [R]  now", "[R][L] [R] [L]", "word wordy sword word", "Word WORD", "<N>x <N> ▁<N>",
    "▁under▁score ▁", "Ġlook Ċalike", "İstanbul ǅ ẞ", "e\u0301\u0302 한글 각", "\ufeffbom \ufffd",
    "The  the   THE", "aaaaaaaaaaaaaaaaaaaaaaaa", "\U0010ffff\ue000", "<0x41> <0xE2>",
]


def added(id, content, **flags):
    token = {"id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
    token.update(flags)
    return token


def train(pre, alphabet, size, special):
    """Vocabulary and merges of a BPE over CORPUS."""
    t = Tokenizer(models.BPE())
    if pre:
        t.pre_tokenizer = pre
    t.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=alphabet, special_tokens=special, show_progress=False))
    model = json.loads(t.to_str())["model"]
    return model["vocab"], model["merges"]


def tokenizer(vocab, merges, added_tokens=(), normalizer=None, pre=None, post=None, decoder=None,
              **model):
    whole = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
             "ignore_merges": False, "vocab": vocab, "merges": merges}
    whole.update(model)
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": list(added_tokens),
            "normalizer": normalizer, "pre_tokenizer": pre, "post_processor": post,
            "decoder": decoder, "model": whole}


# --- vocabularies --------------------------------------------------------------------------------

BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
BYTE_VOCAB, BYTE_MERGES = train(BYTES, pre_tokenizers.ByteLevel.alphabet(), 420,
                                ["<unk>", "<s>", "</s>"])
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
SPECIALS = [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")]


def spm_vocab():
    """SentencePiece-like: ▁ for spaces, byte tokens, a character set that is not whole."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    words = [("▁" + line).replace(" ", "▁") for line in CORPUS]
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    t.train_from_iterator(words, trainers.BpeTrainer(vocab_size=260, show_progress=False,
                                                     limit_alphabet=70))
    model = json.loads(t.to_str())["model"]
    for piece in sorted(model["vocab"], key=model["vocab"].get):
        vocab.setdefault(piece, len(vocab))
    return vocab, model["merges"]


SPM_VOCAB, SPM_MERGES = spm_vocab()
SPM_NORMALIZER = {"type": "Sequence", "normalizers": [
    {"type": "Prepend", "prepend": "▁"},
    {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
SPM_DECODER = {"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
    {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}


def char_vocab():
    """Each character of TEXTS, bare at the beginning of a word and with ## behind it: the ids show
    how a text was cut."""
    chars = sorted({c for text in TEXTS for c in text} | {"▁"} |
                   {c for text in TEXTS for c in text.lower()} | set("éô½iI"))
    chars += [c for c in map(chr, range(256, 324)) if c not in chars]
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for c in chars[1:400]:  # not NUL
        vocab.setdefault(c, len(vocab))
        vocab.setdefault("##" + c, len(vocab))
    return vocab


CHARS = char_vocab()


def cut(**parts):
    return tokenizer(CHARS, [], SPECIALS, unk_token="<unk>", continuing_subword_prefix="##",
                     decoder={"type": "Fuse"}, **parts)


def template(*before, after=()):
    item = lambda name: {"SpecialToken": {"id": name, "type_id": 0}}
    single = [item(b) for b in before] + [{"Sequence": {"id": "A", "type_id": 0}}]
    single += [item(a) for a in after]
    names = {"<s>": 1, "</s>": 2}
    return {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": {
        n: {"id": n, "ids": [i], "tokens": [n]} for n, i in names.items()}}


# --- tokenizers ----------------------------------------------------------------------------------

def all_tokenizers():
    end = len(BYTE_VOCAB)
    flagged = SPECIALS + [
        added(end, "[MASK]", lstrip=True), added(end + 1, "[L]", lstrip=True, special=False),
        added(end + 2, "[R]", rstrip=True), added(end + 3, "word", single_word=True, special=False),
        added(end + 4, "<N>", normalized=True), added(end + 5, "<Naan>")]
    yield "byte-level", tokenizer(BYTE_VOCAB, BYTE_MERGES, flagged, pre=BYTE_LEVEL,
                                  post=dict(BYTE_LEVEL), decoder=BYTE_LEVEL)
    yield "byte-level-prefix-space", tokenizer(
        BYTE_VOCAB, [" ".join(m) for m in BYTE_MERGES], SPECIALS,
        pre=dict(BYTE_LEVEL, add_prefix_space=True), decoder=BYTE_LEVEL,
        post={"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1],
              "trim_offsets": True, "add_prefix_space": True})
    gpt4 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+"
            r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    split = {"type": "Split", "pattern": {"Regex": gpt4}, "behavior": "Isolated", "invert": False}
    raw_bytes = dict(BYTE_LEVEL, use_regex=False)
    yield "gpt4-ignore-merges", tokenizer(
        BYTE_VOCAB, BYTE_MERGES[: len(BYTE_MERGES) // 2], SPECIALS, {"type": "NFC"},
        {"type": "Sequence", "pretokenizers": [split, raw_bytes]},
        {"type": "Sequence", "processors": [BYTE_LEVEL, template("<s>")]}, BYTE_LEVEL,
        ignore_merges=True)
    yield "digits-byte-level", tokenizer(
        BYTE_VOCAB, BYTE_MERGES, SPECIALS, None, {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": True}, BYTE_LEVEL]}, None, BYTE_LEVEL)
    yield "byte-level-normalizer", tokenizer(
        BYTE_VOCAB, BYTE_MERGES, SPECIALS, {"type": "ByteLevel"}, None, None, BYTE_LEVEL)
    small = {p: i for p, i in BYTE_VOCAB.items() if p not in ("ĉ", "Ã")}
    yield "byte-level-holes", tokenizer(
        small, [m for m in BYTE_MERGES if all(p in small for p in (*m, "".join(m)))], SPECIALS,
        None, BYTE_LEVEL, None, BYTE_LEVEL)

    spm = dict(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    yield "spm", tokenizer(SPM_VOCAB, SPM_MERGES, SPECIALS, SPM_NORMALIZER, None, template("<s>"),
                           SPM_DECODER, **spm)
    normal = [dict(token, normalized=True) for token in SPECIALS]
    normal += [added(len(SPM_VOCAB), "The  the", normalized=True, special=False),
               added(len(SPM_VOCAB) + 1, "[R]", rstrip=True, special=False)]
    yield "spm-normalized-added", tokenizer(
        SPM_VOCAB, SPM_MERGES, normal, SPM_NORMALIZER, None, template("<s>", after=["</s>"]),
        SPM_DECODER, **spm)
    no_bytes = {p: i for p, i in SPM_VOCAB.items() if not p.startswith("<0x")}
    for fuse in (False, True):
        yield f"unk-{'fused' if fuse else 'single'}", tokenizer(
            no_bytes, SPM_MERGES, SPECIALS, SPM_NORMALIZER, None, template("<s>"), SPM_DECODER,
            unk_token="<unk>", fuse_unk=fuse)
    few = {p: i for p, i in SPM_VOCAB.items() if not p.startswith("<0xE")}
    yield "some-bytes-missing", tokenizer(few, SPM_MERGES, SPECIALS, SPM_NORMALIZER, None, None,
                                          SPM_DECODER, **spm)
    for scheme in ("always", "first", "never"):
        for cuts in (True, False):
            meta = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": cuts}
            yield f"metaspace-{scheme}-{'split' if cuts else 'whole'}", tokenizer(
                SPM_VOCAB, SPM_MERGES, SPECIALS, None, meta, template("<s>"), meta, **spm)
    suffixed, merges = {"<unk>": 0}, []
    for line in CORPUS:
        for c in line:
            suffixed.setdefault(c, len(suffixed))
            suffixed.setdefault(c + "</w>", len(suffixed))
    for a, b in (("t", "h"), ("th", "e</w>"), ("a", "n"), ("an", "d</w>"), ("l", "l"), ("ll", "o</w>")):
        suffixed.setdefault(a + b, len(suffixed))
        merges.append([a, b])
    yield "end-of-word", tokenizer(suffixed, merges, [added(0, "<unk>")], {"type": "Lowercase"},
                                   {"type": "BertPreTokenizer"}, None,
                                   {"type": "BPEDecoder", "suffix": "</w>"}, unk_token="<unk>",
                                   end_of_word_suffix="</w>")
    yield "no-decoder", tokenizer(BYTE_VOCAB, BYTE_MERGES, SPECIALS, None, BYTE_LEVEL, None, None)
    strip_normalizer = {"type": "Strip", "strip_left": True, "strip_right": False}
    yield "strip-then-metaspace-first", tokenizer(
        SPM_VOCAB, SPM_MERGES, SPECIALS, strip_normalizer,
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}, None,
        SPM_DECODER, **spm)

    # How texts are normalised and cut, one component each.
    normalizers = {
        "nfc": {"type": "NFC"}, "nfd": {"type": "NFD"}, "nfkc": {"type": "NFKC"},
        "nfkd": {"type": "NFKD"}, "lowercase": {"type": "Lowercase"}, "nmt": {"type": "Nmt"},
        "strip": {"type": "Strip", "strip_left": True, "strip_right": True},
        "strip-right": {"type": "Strip", "strip_left": False, "strip_right": True},
        "prepend": {"type": "Prepend", "prepend": "x"},
        "accents": {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "StripAccents"}]},
        "replace-regex": {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": "▁"},
        "replace-string": {"type": "Replace", "pattern": {"String": "the"}, "content": ""}}
    for name, value in normalizers.items():
        yield "normalizer-" + name, cut(normalizer=value)
    cuts = {
        "whitespace": {"type": "Whitespace"}, "whitespace-split": {"type": "WhitespaceSplit"},
        "bert": {"type": "BertPreTokenizer"}, "digits": {"type": "Digits", "individual_digits": False},
        "digits-single": {"type": "Digits", "individual_digits": True},
        "delimiter": {"type": "CharDelimiterSplit", "delimiter": "e"},
        "fixed-length": {"type": "FixedLength", "length": 5},
        "sequence": {"type": "Sequence", "pretokenizers": [
            {"type": "WhitespaceSplit"}, {"type": "Punctuation", "behavior": "MergedWithNext"},
            {"type": "Digits", "individual_digits": True}]}}
    for behavior in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        cuts["punctuation-" + behavior] = {"type": "Punctuation", "behavior": behavior}
        for invert in (False, True):
            cuts[f"regex-{behavior}-{invert}"] = {
                "type": "Split", "pattern": {"Regex": r"\w+"}, "behavior": behavior, "invert": invert}
            cuts[f"string-{behavior}-{invert}"] = {
                "type": "Split", "pattern": {"String": " "}, "behavior": behavior, "invert": invert}
    expressions = {
        "possessive": r"\p{N}{1,3}+|[^\r\n\p{L}\p{N}]?+\p{L}++", "lines": r"^\s*\w+|\s+$",
        "classes": r"[a-z&&[^aeiou]]+|[\p{Lu}[0-9]]+", "hex": r"\h+|\H", "escapes": r"\u0061+|[\u0062]",
        "dot": r"(?m:a.b)|e.", "empty": r"(?=(\d{3})+(?!\d))", "open-count": r"a{,2}b?",
        "posix": r"[[:alpha:]]+|[[:punct:]]+", "script": r"\p{Han}+|\p{Cyrillic}+|\p{^L}"}
    for name, regex in expressions.items():
        cuts["regex-" + name] = {"type": "Split", "pattern": {"Regex": regex},
                                 "behavior": "Isolated", "invert": False}
    for name, value in cuts.items():
        yield "cut-" + name, cut(pre=value)

    # Decoders in other orders than usual; Bert's post-processor.
    chains = {
        "strip-each": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                       {"type": "Strip", "content": " ", "start": 1, "stop": 1}, {"type": "Fuse"}],
        "strip-end": [{"type": "Replace", "pattern": {"Regex": "▁|o"}, "content": " "},
                      {"type": "ByteFallback"}, {"type": "Fuse"},
                      {"type": "Strip", "content": " ", "start": 2, "stop": 2}],
        "replace-late": [{"type": "ByteFallback"}, {"type": "Fuse"},
                         {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}],
        "replace-pairs-late": [{"type": "Fuse"},
                               {"type": "Replace", "pattern": {"Regex": "(▁)▁"}, "content": "_"}],
        "metaspace-late": [{"type": "ByteFallback"}, {"type": "Metaspace", "replacement": "▁",
                                                      "prepend_scheme": "always", "split": True}]}
    for name, chain in chains.items():
        yield "decoder-" + name, tokenizer(
            SPM_VOCAB, SPM_MERGES, SPECIALS, SPM_NORMALIZER, None,
            {"type": "BertProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1]},
            {"type": "Sequence", "decoders": chain}, **spm)


def decode(t, ids, skip):
    """None where `tokenizers` itself panics (its Strip on a text of nothing but what it strips)."""
    try:
        return t.decode(ids, skip_special_tokens=skip)
    except BaseException as panic:
        if "Panic" not in type(panic).__name__:
            raise
        return None


def cases_of(t, name):
    for text in TEXTS:
        ids = t.encode(text, add_special_tokens=False).ids
        if name.startswith(("cut-", "normalizer-")):
            yield {"text": text, "ids": ids}
            continue
        special = t.encode(text, add_special_tokens=True).ids
        case = {"text": text, "ids": ids, "ids_special": special, "decoded": decode(t, ids, False),
                "kept": decode(t, special, False), "skipped": decode(t, special, True)}
        if None not in case.values():
            yield case


def streams_of(t, name, rng):
    """Random ids: cut characters, bytes out of order, special tokens in between."""
    if name.startswith(("cut-", "normalizer-")):
        return
    ids = sorted(t.get_vocab().values())
    for n in (1, 2, 3, 5, 8, 13, 30, 30):
        chosen = [rng.choice(ids) for _ in range(n)]
        stream = {"ids": chosen, "text": decode(t, chosen, False),
                  "skipped": decode(t, chosen, True)}
        if None not in stream.values():
            yield stream


# --- GGUF ----------------------------------------------------------------------------------------

def gguf_string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def gguf_value(value):
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + gguf_string(value)
    kind, items = value
    body = b"".join({"str": gguf_string, "i32": lambda v: struct.pack("<i", v),
                     "f32": lambda v: struct.pack("<f", v)}[kind](v) for v in items)
    return struct.pack("<IIQ", 9, {"str": 8, "i32": 5, "f32": 6}[kind], len(items)) + body


def write_gguf(name, keys):
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys))
    for key, value in keys.items():
        data += gguf_string(key) + gguf_value(value)
    (OUT / f"{name}.gguf").write_bytes(data)


def write_cases(name, cases):
    with open(OUT / f"{name}.cases.jsonl", "w") as f:
        for case in cases:
            f.write(json.dumps(case, ensure_ascii=False) + "\n")


def by_scores(text, vocab, scores):
    """SentencePiece's BPE as plainly as can be: merge the best-scored pair, leftmost of equals."""
    parts = list(text)
    while True:
        best = None
        for i in range(len(parts) - 1):
            id = vocab.get(parts[i] + parts[i + 1])
            if id is not None and (best is None or scores[id] > scores[best[1]]):
                best = (i, id)
        if best is None:
            break
        parts[best[0]: best[0] + 2] = [parts[best[0]] + parts[best[0] + 1]]
    ids = []
    for part in parts:
        ids += [vocab[part]] if part in vocab else [vocab[f"<0x{b:02X}>"] for b in part.encode()]
    return ids


def make_gguf_spm():
    pieces = sorted(SPM_VOCAB, key=SPM_VOCAB.get) + ["<|user|>", "<|keep|>"]
    vocab = {p: i for i, p in enumerate(pieces)}
    # Longer pieces first, with many equal scores: the place decides among those.
    scores = [float(len(p) % 4) - i // 40 for i, p in enumerate(pieces)]
    types = [2, 3, 3] + [6] * 256 + [1] * (len(pieces) - 261) + [3, 4]
    base = {"general.architecture": "llama", "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": ("str", pieces), "tokenizer.ggml.scores": ("f32", scores),
            "tokenizer.ggml.token_type": ("i32", types),
            "tokenizer.ggml.padding_token_id": 0xFFFFFFFF}
    write_gguf("spm", base)
    write_gguf("spm-no-prefix", dict(base, **{"tokenizer.ggml.add_space_prefix": False,
                                              "tokenizer.ggml.add_bos_token": False,
                                              "tokenizer.ggml.add_eos_token": True}))
    for name, prefix in (("spm", "▁"), ("spm-no-prefix", "")):
        cases = []
        for text in TEXTS + ["<|user|>a b<|keep|> c"]:
            ids, rest = [], text
            special = ["<|user|>", "<|keep|>", "<unk>", "<s>", "</s>"]
            while rest:
                at, token = min(((rest.find(s) if s in rest else len(rest)), s) for s in special)
                if at:
                    ids += by_scores(prefix + rest[:at].replace(" ", "▁"), vocab, scores)
                if at < len(rest):
                    ids.append(vocab[token])
                rest = rest[at + len(token):] if at < len(rest) else ""
            cases.append({"text": text, "ids": ids,
                          "ids_special": [1] + ids if prefix else ids + [2]})
        write_cases(name, cases)


def make_gguf_gpt2():
    pieces = sorted(BYTE_VOCAB, key=BYTE_VOCAB.get) + ["<|im_start|>", "<|x y|>"]
    types = [2, 3, 3] + [1] * (len(pieces) - 5) + [3, 4]
    extra = [added(len(pieces) - 2, "<|im_start|>"), added(len(pieces) - 1, "<|x y|>", special=False)]
    gpt4 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
            r"|\s*[\r\n]+|\s+(?!\S)|\s+")
    split = lambda regex: {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated",
                           "invert": False}
    raw_bytes = dict(BYTE_LEVEL, use_regex=False)
    pres = {"gpt-2": [BYTE_LEVEL],
            "smollm": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL],
            "llama-bpe": [split(gpt4 % r"\p{N}{1,3}"), raw_bytes],
            "qwen2": [split(gpt4 % r"\p{N}"), raw_bytes]}
    for pre, steps in pres.items():
        keys = {"general.architecture": "llama", "tokenizer.ggml.model": "gpt2",
                "tokenizer.ggml.pre": pre, "tokenizer.ggml.tokens": ("str", pieces),
                "tokenizer.ggml.token_type": ("i32", types),
                "tokenizer.ggml.merges": ("str", [" ".join(m) for m in BYTE_MERGES]),
                "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2}
        write_gguf("gpt2-" + pre, keys)
        bos = template("<s>") if pre == "llama-bpe" else None
        t = Tokenizer.from_str(json.dumps(tokenizer(
            BYTE_VOCAB, BYTE_MERGES, SPECIALS + extra, None,
            {"type": "Sequence", "pretokenizers": steps}, bos, BYTE_LEVEL,
            ignore_merges=pre == "llama-bpe")))
        write_cases("gpt2-" + pre, [
            {"text": x, "ids": t.encode(x, add_special_tokens=False).ids, "ids_special": t.encode(x).ids}
            for x in TEXTS + ["<|im_start|>user<|x y|> b"]])


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    rng = random.Random(7)
    with open(OUT / "tokenizers.jsonl", "w") as f:
        for name, data in all_tokenizers():
            t = Tokenizer.from_str(json.dumps(data))
            line = {"name": name, "tokenizer": data, "cases": list(cases_of(t, name)),
                    "streams": list(streams_of(t, name, rng))}
            f.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")
    make_gguf_spm()
    make_gguf_gpt2()


if __name__ == "__main__":
    main()
