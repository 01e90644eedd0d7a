#!/usr/bin/env python3
"""Writes the fixtures of tests/text/tiktoken_files_test.cc: small files of tokens with ranks, and what mistral-common and
tiktoken make of a set of texts.

    pip install mistral-common tiktoken
    python3 tools/make_tiktoken_golden.py CORPUS OUT_FOLDER

CORPUS is any text file; tokens are learned from its first 20 thousand characters, across the borders of words.
"""
import base64
import collections
import json
import pathlib
import random
import sys
import tempfile

import mistral_common
import tiktoken
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

TEKKEN = ("[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|[^\\r\\n\\p{L}\\p{N}]?"
          "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|"
          "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")
# As Kimi's models use it.
KIMI = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
SPECIAL = {"[BOS]": True, "[EOS]": True, "<|im_end|>": True, "<|tool_call_begin|>": False}
# Some are newer than Unicode 14, the last ones newer than 16.
CHARS = [*"abcdeiostnrS  ''-/.,0123\n\r\t", "'ll", "'S", "é", "e\u0301", "漢字", "中", "々", "\u3000", "\u2028", "\u0663",
         "ǅ", "ʰ", "ﬁ", "😀", "\U00031350", "\U00010d65", "\U0001e4f0", "\U000323b0", "\ua7ce", "\U00011de1"]
NUM_TOKENS, NUM_SPECIAL, NUM_TEXTS = 420, 24, 150


def learn(text):
    """Byte-pair encoding over the whole text: bytes in order of rank."""
    tokens = [bytes([byte]) for byte in range(256)]
    known, parts = set(tokens), [bytes([byte]) for byte in text.encode()]
    while len(tokens) < NUM_TOKENS:
        pairs = collections.Counter(zip(parts, parts[1:]))
        (left, right), _ = max(pairs.items(), key=lambda item: (item[1], item[0]))
        merged, joined, at = left + right, [], 0
        while at < len(parts):
            both = parts[at:at + 2] == [left, right]
            joined.append(merged if both else parts[at])
            at += 2 if both else 1
        parts = joined
        if merged not in known:
            known.add(merged)
            tokens.append(merged)
    return tokens


def texts(corpus):
    made = ["", " ", corpus[:400]]
    while len(made) < NUM_TEXTS:
        made.append("".join(random.choice(CHARS) for _ in range(random.randrange(1, 30))))
    return made


def main():
    random.seed(3)
    corpus = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")[:20000]
    out = pathlib.Path(sys.argv[2])
    tokens = learn(corpus)
    tekken = {
        "config": {"pattern": TEKKEN, "num_vocab_tokens": NUM_TOKENS, "default_vocab_size": NUM_TOKENS - 20 + NUM_SPECIAL,
                   "default_num_special_tokens": NUM_SPECIAL, "version": "v3"},
        "vocab": [{"rank": i, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
                  for i, token in enumerate(tokens)]}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "tekken.json")
        path.write_text(json.dumps(tekken))
        library = Tekkenizer.from_file(path)
    cases = [{"text": text, "ids": library.encode(text, bos=False, eos=False)} for text in texts(corpus)]
    save(out / "tekken.json", {"made_by": f"mistral-common {mistral_common.__version__}", "file": tekken, "cases": cases})

    names = {NUM_TOKENS + i: name for i, name in enumerate(SPECIAL)}
    special = {names.get(i, f"<|reserved_token_{i}|>"): i for i in range(NUM_TOKENS, NUM_TOKENS + 258)}
    library = tiktoken.Encoding(name="kimi", pat_str=KIMI, special_tokens=special,
                                mergeable_ranks={token: i for i, token in enumerate(tokens)})
    CHARS.extend([*SPECIAL, "<|reserved_token_600|>"])
    cases = [{"text": text, "ids": library.encode(text, allowed_special="all")} for text in texts(corpus)]
    config = {"tokenizer_class": "TikTokenTokenizer",
              "added_tokens_decoder": {str(i): {"content": name, "special": SPECIAL[name]} for i, name in names.items()}}
    lines = "".join(f"{base64.b64encode(token).decode()} {i}\n" for i, token in enumerate(tokens))
    save(out / "kimi.json", {"made_by": f"tiktoken {tiktoken.__version__}", "file": lines, "config": config,
                             "cases": cases})


def save(path, golden):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(golden, indent=0, separators=(",", ":")) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
