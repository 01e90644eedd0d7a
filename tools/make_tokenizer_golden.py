#!/usr/bin/env python3
"""Writes the fixtures of tests/text/tokenizer_test.cc.

Each file holds a small tokenizer.json and what the Hugging Face library `tokenizers` makes of a set
of texts. The merges are learned across the borders of words, so that a border in the wrong place
changes the ids.

    make_tokenizer_golden.py CORPUS OUT_FOLDER     (needs: pip install tokenizers)

CORPUS is any text file; its first 20 thousand characters are used.
"""

import argparse
import json
import pathlib
import random

import tokenizers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+")
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
            r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
# Constructs that Oniguruma reads differently from other libraries.
DIALECT = (r"^\w|\p{N}{1,3}+|\bthe\b|[a-z&&[^aeiou]]+|\p{Greek}+|\p{Han}{2}?|\W$|\x{e9}|\u00e8{,2}\s"
           r"|(?>ab|a)(?<!b)c|[^a-z[0-9]\s]|\v+")

CHARS = [
    *"abcdefghijklmnopqrstuvwxyzSTLLMDRVE", *"0123456789", *"'''''\"-_.,:;!?/\\()[]{}<>|@#$%&*+=~^`",
    *"          ", *"\n\n\n\r\t\v\f", *"\u00a0\u1680\u180e\u2003\u2028\u2029\u0085\u202f\u205f\u3000",
    *"\u001c\u001d\u001e\u001f\u200b\u200c\u200d\u2060\ufeff\u00ad\u0000\u007f",
    *"éèüñçåÅ\u212b\u2126ßẞſK\u212aİıǅĲﬁﬂﬅ", *"\u0301\u0327\u0323\u0308\u030a\u0345\u20dd\u05b0\u3099",
    *"αβγΩς漢字々〆한국각\u1100\u1161\u11a8ひらがなカタカナ\uff76\uff9e", *"ابت\u0651שלום\u05bcहिन्दी\u0e01\u0e33",
    *"٠١٢३४๓²³½Ⅷⅳ①㊿", *"😀🎉👍🏽👨\u200d👩\u200d👧❤\ufe0f🇩🇪", *"Ⓐⓐªºʰǈ…‿⁀–—«»“”‘’€©𝔘𝟗𐐀𐒠ﬀ",
]
WORDS = ["'s", "'S", "'ſ", "'LL", "'ll", "'Re", "'VE", "don't", "I'M", "the", " the", "  ", "\r\n",
         "\n\n", " \n", "1234", "a\u0301", "e\u0323\u0302", "\u00a0 ", "foo_bar", "HTTPServer", "x\u0301y",
         "<|im_end|>", "<|im_start|>", "<|endoftext|>", " <mask> ", "<mask>", "Ａb", "ab", "<w>", "<n>"]


def random_texts(count, seed):
    rng = random.Random(seed)
    texts = []
    for _ in range(count):
        parts = []
        for _ in range(rng.randrange(1, 24)):
            kind = rng.random()
            if kind < 0.3:
                parts.append(rng.choice(WORDS))
            elif kind < 0.4:
                parts.append(rng.choice(CHARS) * rng.randrange(1, 6))
            else:
                parts.append(rng.choice(CHARS))
        texts.append("".join(parts))
    return texts


def learn(texts, vocab_size):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, show_progress=False, min_frequency=2, max_token_length=12,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainer)
    return json.loads(tokenizer.to_str())


def byte_level(use_regex=False, add_prefix_space=False):
    return {"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": True,
            "use_regex": use_regex}


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


def added(content, **flags):
    return {"content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": True} | flags


SPECIALS = [added("<|endoftext|>"), added("<|im_start|>"), added("<|im_end|>")]
NFC = {"type": "NFC"}

# name: the parts of the file that differ, and whether merges are written as "a b"
VARIANTS = {
    "gpt2": (dict(pre_tokenizer=byte_level(True, True)), SPECIALS[:1], True),
    "qwen": (dict(normalizer=NFC, pre_tokenizer=sequence(split(QWEN), byte_level())), SPECIALS, False),
    "o200k": (dict(pre_tokenizer=sequence(split(O200K), byte_level()), ignore_merges=True), SPECIALS,
              False),
    "deepseek": (dict(normalizer={"type": "Sequence", "normalizers": []},
                      pre_tokenizer=sequence(split(r"\p{N}{1,3}"), split("[一-龥\u3040-ゟ゠-ヿ]+"),
                                             split(DEEPSEEK), byte_level())), SPECIALS, False),
    "digits": (dict(normalizer={"type": "NFKD"},
                    pre_tokenizer=sequence({"type": "Digits", "individual_digits": True},
                                           byte_level(True))), [], True),
    "digit_runs": (dict(normalizer={"type": "NFD"},
                        pre_tokenizer=sequence({"type": "Digits", "individual_digits": False},
                                               byte_level())), [], False),
    "added": (dict(normalizer={"type": "NFKC"}, pre_tokenizer=byte_level(True)),
              [added("<mask>", lstrip=True, normalized=True), added("<|im_end|>", rstrip=True),
               added("<w>", single_word=True), added("<n>", lstrip=True, rstrip=True, special=False),
               added("Ａb", normalized=True, special=False), added("ａ", single_word=True,
               normalized=True), added("  ", special=False), added("\u00e9", normalized=True)], False),
    "removed": (dict(pre_tokenizer=sequence(split(" ", "Removed", kind="String"), byte_level())), [],
                False),
    "previous": (dict(pre_tokenizer=sequence(split(r"\s", "MergedWithPrevious"), byte_level())), [],
                 False),
    "next": (dict(pre_tokenizer=sequence(split(r"\p{P}|\d", "MergedWithNext"), byte_level())), [],
             False),
    "contiguous": (dict(pre_tokenizer=sequence(split(r"\w", "Contiguous"), byte_level())), [], False),
    "inverted": (dict(pre_tokenizer=sequence(split(r"[\p{L}\p{M}]+", "Removed", invert=True),
                                             byte_level())), [], False),
    "dialect": (dict(pre_tokenizer=sequence(split(DIALECT), byte_level())), [], False),
    "whole": (dict(), SPECIALS, False),
    "punctuation": (dict(pre_tokenizer=sequence(
        {"type": "Punctuation", "behavior": "Contiguous"}, byte_level(True),
        {"type": "Digits", "individual_digits": False}, split("[0-9][0-9][0-9]"))),
                    [added("\u00fb"), added("\u6f22\u00e9")], False),
}


def number(tokens, ids):
    new = iter(range(len(ids), len(ids) + len(tokens)))
    return [{"id": ids[token["content"]] if token["content"] in ids else next(new)} | token
            for token in tokens]


def build(base, variant):
    parts, tokens, as_text = VARIANTS[variant]
    file = json.loads(json.dumps(base))
    file["pre_tokenizer"] = parts.get("pre_tokenizer", byte_level())
    file["normalizer"] = parts.get("normalizer")
    file["model"]["ignore_merges"] = parts.get("ignore_merges", False)
    if as_text:
        file["model"]["merges"] = [" ".join(pair) for pair in file["model"]["merges"]]
    file["added_tokens"] = number(tokens, file["model"]["vocab"])
    return file


# Settings of files converted from SentencePiece. "\u2581" stands for a space.
MARK = "\u2581"
MARK_SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
LLAMA_NORMALIZER = {"type": "Sequence",
                    "normalizers": [{"type": "Prepend", "prepend": MARK}, MARK_SPACES]}
LLAMA_DECODER = [{"type": "Replace", "pattern": {"String": MARK}, "content": " "},
                 {"type": "ByteFallback"}, {"type": "Fuse"},
                 {"type": "Strip", "content": " ", "start": 1, "stop": 0}]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
CONTROLS = ["<unk>", "<s>", "</s>"]


def metaspace(scheme, split=True):
    return {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": split}


def decoders_of(*steps):
    return {"type": "Sequence", "decoders": list(steps)}


# name: the parts of the file that differ, parts of its model, and tokens added behind the vocabulary
SENTENCEPIECE = {
    "llama": (dict(normalizer=LLAMA_NORMALIZER, decoder=decoders_of(*LLAMA_DECODER)), {}, []),
    "phi": (dict(normalizer=LLAMA_NORMALIZER, decoder=decoders_of(*LLAMA_DECODER)), {},
            [added("<|im_end|>", rstrip=True), added("<|im_start|>", normalized=True, special=False)]),
    "llama_metaspace": (dict(pre_tokenizer=metaspace("first", False),
                             decoder=decoders_of(*LLAMA_DECODER)), {}, SPECIALS),
    "gemma": (dict(normalizer=MARK_SPACES, pre_tokenizer=split(" ", "MergedWithPrevious", kind="String"),
                   decoder=decoders_of(*LLAMA_DECODER[:3])), {}, []),
    "unknown": (dict(normalizer=LLAMA_NORMALIZER, decoder=decoders_of(*LLAMA_DECODER)),
                dict(byte_fallback=False, fuse_unk=False), []),
    "unknown_fused": (dict(normalizer={"type": "Sequence", "normalizers": [
        {"type": "Strip", "strip_left": True, "strip_right": False},
        {"type": "Replace", "pattern": {"Regex": "[0-9]+"}, "content": "#"},
        *LLAMA_NORMALIZER["normalizers"]]}, decoder=metaspace("always")),
                      dict(byte_fallback=False), []),
    "unigram": (dict(pre_tokenizer=metaspace("always"), decoder=metaspace("always")), None, []),
    "unigram_bytes": (dict(normalizer={"type": "NFKC"}, pre_tokenizer=metaspace("first"),
                           decoder=decoders_of({"type": "ByteFallback"}, metaspace("first"))),
                      dict(byte_fallback=True), SPECIALS),
}


def learn_sentencepiece(texts, unigram):
    tokenizer = Tokenizer(models.Unigram() if unigram else models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    if unigram:
        trainer = trainers.UnigramTrainer(vocab_size=700, show_progress=False, unk_token="<unk>",
                                          special_tokens=CONTROLS + BYTES)
    else:
        trainer = trainers.BpeTrainer(vocab_size=700, show_progress=False, limit_alphabet=150,
                                      special_tokens=CONTROLS + BYTES, max_token_length=8)
    tokenizer.train_from_iterator(texts, trainer)
    return json.loads(tokenizer.to_str())


def build_sentencepiece(bases, variant):
    parts, model, tokens = SENTENCEPIECE[variant]
    file = json.loads(json.dumps(bases[variant.startswith("unigram")]))
    file |= {"normalizer": None, "pre_tokenizer": None} | parts
    if file["model"]["type"] == "BPE":
        file["model"] |= dict(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    file["model"] |= model or {}
    vocab = file["model"]["vocab"]
    ids = vocab if isinstance(vocab, dict) else {text: i for i, (text, _) in enumerate(vocab)}
    file["added_tokens"] = number([added(token) for token in CONTROLS] + tokens, ids)
    return file


def write(path, file, texts):
    reference = Tokenizer.from_str(json.dumps(file))
    cases = []
    for text in texts:
        ids = reference.encode(text, add_special_tokens=False).ids
        cases.append({"text": text, "ids": ids,
                      "decoded": reference.decode(ids, skip_special_tokens=False)})
    golden = {"made_by": f"tokenizers {tokenizers.__version__}", "tokenizer": file, "cases": cases}
    path.write_text(json.dumps(golden, separators=(",", ":")), encoding="utf-8")


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("corpus", type=pathlib.Path)
    arguments.add_argument("out", type=pathlib.Path)
    options = arguments.parse_args()
    corpus = options.corpus.read_text(encoding="utf-8")[:20000]
    base = learn([corpus, *random_texts(300, 1)], 256 + 200)
    options.out.mkdir(parents=True, exist_ok=True)
    texts = ["", " ", *random_texts(14, 2), corpus[:200]]
    for variant in VARIANTS:
        write(options.out / f"{variant}.json", build(base, variant), texts)
    bases = [learn_sentencepiece([corpus, *random_texts(300, 1)], unigram) for unigram in (0, 1)]
    texts += ["<s> a</s>b", " \u2581\u2581 x", "a\u0001\u0002b\U0001F9FFc", "  spaces  at ends  "]
    for variant in SENTENCEPIECE:
        write(options.out / f"{variant}.json", build_sentencepiece(bases, variant), texts)


if __name__ == "__main__":
    main()
