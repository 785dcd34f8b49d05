#!/usr/bin/env python3
"""Learns a byte-level BPE tokenizer from JSON lines {"text": …} and writes tokenizer.json.

usage: make_tokenizer.py VOCABULARY <TEXT.jsonl >tokenizer.json
Nothing but the standard library; the same text gives the same file.
"""
import collections
import json
import re
import sys

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# GPT-2's cut of a text into words, for ASCII: what the ByteLevel pre-tokenizer does again later.
WORDS = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+")


def byte_letters():
    """GPT-2's letter for each byte: printable ones stand for themselves, the rest follow from 256 on."""
    plain = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255]
    letters = {b: chr(b) for b in plain}
    rest = (b for b in range(256) if b not in letters)
    letters.update({b: chr(256 + i) for i, b in enumerate(rest)})
    return letters


def count_words(lines, letters):
    counts = collections.Counter()
    cut = re.compile("|".join(map(re.escape, SPECIAL)))
    for line in lines:
        for part in cut.split(json.loads(line)["text"]):
            counts.update(WORDS.findall(part))
    return [(["".join(letters[b]) for b in word.encode()], n) for word, n in sorted(counts.items())]


def learn_merges(words, n_merges):
    """The most frequent pair of neighbours becomes a token, again and again; of equals the first in
    alphabetical order."""
    merges = []
    while len(merges) < n_merges:
        pairs = collections.Counter()
        for pieces, n in words:
            for pair in zip(pieces, pieces[1:]):
                pairs[pair] += n
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        for pieces, _ in words:
            i = 0
            while i < len(pieces) - 1:
                if (pieces[i], pieces[i + 1]) == best:
                    pieces[i:i + 2] = ["".join(best)]
                i += 1
    return merges


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    size = int(sys.argv[1])
    letters = byte_letters()
    merges = learn_merges(count_words(sys.stdin, letters), size - len(SPECIAL) - 256)
    tokens = SPECIAL + [letters[b] for b in range(256)] + ["".join(m) for m in merges]
    added = [{"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for i, text in enumerate(SPECIAL)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    json.dump({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "ignore_merges": False, "vocab": {text: i for i, text in enumerate(tokens)},
                  "merges": [" ".join(m) for m in merges]},
    }, sys.stdout, ensure_ascii=False, indent=0)
    print()


if __name__ == "__main__":
    main()
