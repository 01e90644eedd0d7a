#!/usr/bin/env python3
"""Writes tests/golden/tokenizer_gguf/cases.json: small vocabularies as metadata of GGUF files, and
the ids that llama.cpp gives for texts with each pre-tokenizer.

Needs the packages gguf, tokenizers and llama-cpp-py-sync (llama.cpp as a library).

Merges cross white space, digits and scripts, so that ids show where a pre-tokenizer splits."""
import json
import pathlib
import tempfile

import gguf
from llama_cpp_py_sync import __version__, _cffi_bindings
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

FILE = pathlib.Path(__file__).parent.parent / "tests/golden/tokenizer_gguf/cases.json"
PRE = """llama-bpe dbrx chatglm-bpe glm4 jais-2 qwen2 hunyuan stablelm2 grok-2 qwen35 laguna ufakzeka
minicpm5 bailingmoe seed-coder exaone-moe gpt-4o llama4 minimax-m2 granite-embed-multi-97m tiny_aya
tekken youtu deepseek-v3 hunyuan-dense spark2_5 deepseek-llm deepseek-coder kimi-k2 afmoe gpt-2
olmo mpt smollm refact exaone superbpe starcoder command-r falcon bloom viking chameleon default""".split()
TEXTS = [
    "Hello, World! Don't can't WE'LL it's they've I'm", "Привет, мир! Как дела?",
    "你好，世界！今天天气很好。", "こんにちは世界、カタカナ", "안녕하세요 세계", "café naïve Straße",
    "a1b2 12345 1,234,567.89", "1 22 333 4444 55555 666666 7777777",
    "if (x == y) { return foo->bar[0]; }\n\tfor (;;) ++i;\r\n", "def f(x):\n    return x**2\n\n\n",
    "https://example.com/path?q=1&r=2#frag", "   leading and trailing   ", "\t\ttabs\t \n \n\n mixed\r\n\r\n",
    "$x^2 + y^2 = z^2$", "😀😃 text", "<s>user</s>a<end>b", "«quotes» “smart” — dash … end",
    "snake_case and words", "2024年12月31日", " a  b   c    d",
    # llama.cpp splits these elsewhere than the published expressions.
    "สวัสดีชาวโลก नमस्ते दुनिया", "ПриВЕТ миР ÉcoLE", "n  123  4567", "1234567 ×１２３456",
    "a\u2028b\u3000\u3000。 \u3000", "i'S it'ſ\nüs'ſ", "々漢〇\ufa6e字",
]


def byte_alphabet():
    """GPT-2's character for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return [chr(b) if b in printable else chr(256 + others.index(b)) for b in range(256)]


def train(texts, alphabet, vocab_size):
    tokenizer = Tokenizer(models.BPE())
    if alphabet:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False, initial_alphabet=alphabet,
                                  min_frequency=1, max_token_length=12)
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    return tokens, [" ".join(m) if isinstance(m, list) else m for m in model["merges"]]


def metadata(model, tokens, merges, specials):
    """`specials`: the tokens with ids 0, 1, 2: unknown, control, control, and one user-defined."""
    texts = [*specials, *tokens]
    types = [2, 3, 3, 4] + [6 if t.startswith("<0x") else 1 for t in tokens]
    scores = [0.0] * 4 + [-float(i // 3) for i in range(len(tokens))]
    keys = {"model": model, "tokens": texts, "token_type": types, "bos_token_id": 1, "eos_token_id": 2,
            "unknown_token_id": 0}
    if model == "llama":
        keys["scores"] = scores
    else:
        keys["merges"] = merges
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


def write(values, path):
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in values.items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama_cpp(values):
    ffi, lib = _cffi_bindings.get_ffi(), _cffi_bindings.get_lib()
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/vocab.gguf"
        write(values, path)
        parameters = lib.llama_model_default_params()
        parameters.vocab_only = True
        model = lib.llama_model_load_from_file(path.encode(), parameters)
    assert model != ffi.NULL, values
    vocab = lib.llama_model_get_vocab(model)
    answers = []
    for text in TEXTS:
        raw = text.encode()
        buffer = ffi.new("int32_t[]", len(raw) + 16)
        count = lib.llama_tokenize(vocab, raw, len(raw), buffer, len(raw) + 16, False, True)
        answers.append(list(buffer[0:count]))
    lib.llama_model_free(model)
    return answers


def main():
    texts = [t for t in TEXTS if "<s>" not in t for _ in range(2)]
    byte_tokens, byte_merges = train(texts, byte_alphabet(), 900)
    marked = [t.replace(" ", "▁") for t in texts]
    tokens, merges = train(marked, [], 500)
    hexes = [f"<0x{b:02X}>" for b in range(256)]
    kept = [t for t in tokens if t not in "😀年"]  # characters that become bytes
    merges = [m for m in merges if all(p in kept for p in [*m.split(" "), m.replace(" ", "")])]
    specials = ["<unk>", "<s>", "</s>", "<end>"]
    files = {"bytes": metadata("gpt2", byte_tokens, byte_merges, specials),
             "llama": metadata("llama", [*hexes, *kept], merges, specials),
             "gemma4": metadata("gemma4", [*hexes, *kept], merges, specials)}
    ids = {pre: llama_cpp({**files["bytes"], "tokenizer.ggml.pre": pre}) for pre in PRE}
    cases = {"made_by": f"llama-cpp-py-sync {__version__}", "texts": TEXTS, "files": files, "ids": ids,
             "llama": llama_cpp(files["llama"]), "gemma4": llama_cpp(files["gemma4"])}
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps(cases, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
