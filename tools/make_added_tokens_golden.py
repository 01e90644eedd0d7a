#!/usr/bin/env python3
"""Writes tests/golden/tokenizer_config/cases.json: tokenizer.json files with a tokenizer_config.json
beside them that adds tokens or gives them other flags, and what transformers makes of a text.

    make_added_tokens_golden.py OUT_FOLDER     (needs: pip install transformers)
"""

import argparse
import json
import pathlib
import tempfile

import transformers
from transformers import AutoTokenizer

CHARACTERS = [*"abcdenxyX <>"]
FIRST = len(CHARACTERS) + 2  # the id after the vocabulary
TEXT = "a <x> b<x>c <y> d<X> ab<end>"


def token(content, **flags):
    return {"content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": True, **flags}


def obj(content, **flags):
    return {"__type": "AddedToken", **token(content, **flags)}


REPLACE = {"type": "Replace", "pattern": {"String": "X"}, "content": "x"}


def tokenizer(added, normalizer=None):
    vocab = {text: id for id, text in enumerate([*CHARACTERS, "ab", "<end>"])}
    return {"normalizer": normalizer, "pre_tokenizer": None,
            "post_processor": None, "decoder": {"type": "Fuse"}, "truncation": None, "padding": None,
            "version": "1.0", "added_tokens": [{"id": FIRST + i, **one} for i, one in enumerate(added)],
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False,
                      "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "byte_fallback": False, "ignore_merges": False, "vocab": vocab,
                      "merges": [["a", "b"]]}}


def listed(*tokens, step=1):
    return {"added_tokens_decoder": {str(FIRST + i * step): one for i, one in enumerate(tokens)}}


PLAIN = tokenizer([token("<x>")])
WORD = tokenizer([token("<x>", special=False)])
CASES = {
    "only_in_config": (PLAIN, listed(token("<x>"), token("<y>"))),
    "ids_with_gaps": (PLAIN, listed(token("<x>"), token("<y>"), token("<X>", special=False), step=4)),
    "lstrip": (PLAIN, listed(token("<x>", lstrip=True))),
    "rstrip": (WORD, listed(token("<x>", rstrip=True, special=False))),
    "single_word": (tokenizer([token("<x", special=False)]),
                    listed(token("<x", single_word=True, special=False))),
    "becomes_special": (WORD, listed(token("<x>"))),
    "stays_special": (PLAIN, listed(token("<x>", special=False))),
    "becomes_normalized": (tokenizer([token("<X>", special=False)], REPLACE),
                           listed(token("<X>", normalized=True, special=False))),
    "no_longer_normalized": (tokenizer([token("<X>", normalized=True, special=False)], REPLACE),
                             listed(token("<X>", lstrip=True, special=False))),
    "default_flags": (PLAIN, listed({"content": "<x>"}, {"content": "<X>"}, {"content": ""})),
    "in_vocabulary": (PLAIN, listed(token("<x>"), token("ab"), token("<end>"))),
    "twice": (PLAIN, listed(token("<x>"), token("<x>", lstrip=True))),
    "not_listed": (tokenizer([token("<x>"), token("<y>")]), listed(token("<x>"))),
    "other_order": (tokenizer([token("<x>"), token("<y>")]), listed(token("<y>"), token("<x>"))),
    "named_in_vocabulary": (PLAIN, {"eos_token": "<end>"}),
    "named_beside_list": (PLAIN, {"eos_token": "<end>", **listed(token("<x>"))}),
    "named_becomes_special": (WORD, {"eos_token": "<x>", **listed(token("<x>", special=False, lstrip=True))}),
    "named_keeps_flags": (PLAIN, {"eos_token": obj("<x>", lstrip=True)}),
    "new_names": (PLAIN, {"eos_token": "<y>", "pad_token": obj("<X>", lstrip=True), "image_token": "<end>"}),
    "more": (PLAIN, {"additional_special_tokens": ["<y>", "<x>", obj("<end>", special=False)]}),
    "more_keeps_flags": (WORD, {"additional_special_tokens": ["<x>"]}),
    "more_by_name": (WORD, {"extra_special_tokens": {"one": "<x>", "two": "<y>"}}),
    "more_in_two_keys": (PLAIN, {"additional_special_tokens": ["<y>"], "extra_special_tokens": ["<X>"]}),
    "map": (WORD, {"eos_token": "<y>"}, {"eos_token": token("<x>"), "pad_token": "<X>"}),
    "map_beside_list": (PLAIN, {"eos_token": "<y>", **listed(token("<x>"))}, {"eos_token": "<x>"}),
}


def case(name, file, config, special_map=None):
    with tempfile.TemporaryDirectory() as folder:
        files = {"tokenizer.json": file,
                 "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", **config}}
        if special_map:
            files["special_tokens_map.json"] = special_map
        for path, content in files.items():
            (pathlib.Path(folder) / path).write_text(json.dumps(content))
        made = AutoTokenizer.from_pretrained(folder)
    ids = made(TEXT, add_special_tokens=False)["input_ids"]
    result = {"name": name, "files": files, "text": TEXT, "ids": ids, "eos_id": made.eos_token_id}
    # The library decodes such a token as the normalized text of the first file.
    if name != "no_longer_normalized":
        result["without_special"] = made.decode(ids, skip_special_tokens=True)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    cases = [case(name, *files) for name, files in CASES.items()]
    golden = {"about": "Written by tools/make_added_tokens_golden.py.",
              "versions": {"transformers": transformers.__version__}, "cases": cases}
    lines = json.dumps(golden, ensure_ascii=False, separators=(",", ":")).replace('{"name"', '\n{"name"')
    (out / "cases.json").write_text(lines + "\n")


if __name__ == "__main__":
    main()
