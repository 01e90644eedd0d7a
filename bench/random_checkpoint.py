#!/usr/bin/env python3
"""Writes a checkpoint of Qwen3-30B-A3B's shape with few layers and random weights, int8 W8A8 as compressed-tensors stores it.

    bench/random_checkpoint.py FOLDER --layers 8           6.3 GB; attention and experts in int8, the rest in bf16

Needs numpy. Each token has a text of its own: a byte, or a number such as " 300".
"""
import argparse
import json
import pathlib

import numpy as np

SHAPE = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "attention_bias": False, "bos_token_id": 1,
         "eos_token_id": 2, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144,
         "max_position_embeddings": 40960, "mlp_only_layers": [], "decoder_sparse_step": 1, "moe_intermediate_size": 768,
         "norm_topk_prob": True, "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
         "num_key_value_heads": 4, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": False,
         "torch_dtype": "bfloat16", "vocab_size": 151936}
INT8 = {"num_bits": 8, "type": "int", "symmetric": True}


def config(layers):
    ignored = ["lm_head"] + [f"model.layers.{layer}.mlp.gate" for layer in range(layers)]
    group = {"targets": ["Linear"], "weights": INT8 | {"strategy": "channel", "dynamic": False},
             "input_activations": INT8 | {"strategy": "token", "dynamic": True}}
    return SHAPE | {"num_hidden_layers": layers, "quantization_config": {
        "quant_method": "compressed-tensors", "format": "int-quantized", "quantization_status": "compressed",
        "config_groups": {"group_0": group}, "ignore": ignored}}


def bf16(values):
    """Rounds f32 towards zero: the lower half of the bits goes."""
    return (values.astype(np.float32, copy=False).view(np.uint32) >> 16).astype(np.uint16)


def normal(rng, *shape, deviation):
    values = rng.standard_normal(shape, dtype=np.float32)
    values *= deviation
    return bf16(values)


def linear(rng, name, outputs, inputs):
    """A row's scale gives outputs the deviation of the inputs: codes have one of 73."""
    yield name + ".weight", rng.integers(-127, 128, (outputs, inputs), np.int8)
    yield name + ".weight_scale", bf16(np.full((outputs, 1), inputs ** -0.5 / 73))


def layer_tensors(rng, layer):
    hidden, head, inner = SHAPE["hidden_size"], SHAPE["head_dim"], SHAPE["moe_intermediate_size"]
    queries, keys = head * SHAPE["num_attention_heads"], head * SHAPE["num_key_value_heads"]
    prefix = f"model.layers.{layer}."
    for norm, size in (("input_layernorm", hidden), ("post_attention_layernorm", hidden), ("self_attn.q_norm", head),
                       ("self_attn.k_norm", head)):
        yield f"{prefix}{norm}.weight", bf16(np.ones(size))
    for matrix, outputs, inputs in (("q_proj", queries, hidden), ("k_proj", keys, hidden), ("v_proj", keys, hidden),
                                    ("o_proj", hidden, queries)):
        yield from linear(rng, f"{prefix}self_attn.{matrix}", outputs, inputs)
    yield prefix + "mlp.gate.weight", normal(rng, SHAPE["num_experts"], hidden, deviation=hidden ** -0.5)
    for expert in range(SHAPE["num_experts"]):
        for matrix, outputs, inputs in (("gate_proj", inner, hidden), ("up_proj", inner, hidden), ("down_proj", hidden, inner)):
            yield from linear(rng, f"{prefix}mlp.experts.{expert}.{matrix}", outputs, inputs)


def other_tensors(rng):
    hidden, vocabulary = SHAPE["hidden_size"], SHAPE["vocab_size"]
    yield "model.embed_tokens.weight", normal(rng, vocabulary, hidden, deviation=1)
    yield "model.norm.weight", bf16(np.ones(hidden))
    yield "lm_head.weight", normal(rng, vocabulary, hidden, deviation=hidden ** -0.5)


def write(path, tensors):
    """Writes a safetensors file. Returns the names of its tensors."""
    header, end = {}, 0
    for name, values in tensors:
        kind = "I8" if values.dtype == np.int8 else "BF16"
        header[name] = {"dtype": kind, "shape": list(values.shape), "data_offsets": [end, end + values.nbytes]}
        end += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, values in tensors:
            values.tofile(file)
    return list(header)


def tokenizer():
    """Byte-level BPE without merges: bytes, then words that only decoding uses."""
    shown = [byte for byte in range(256) if 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174]
    hidden = [byte for byte in range(256) if byte not in shown]  # GPT-2 writes these as characters from 256 on
    characters = {byte: chr(byte) for byte in shown} | {byte: chr(256 + place) for place, byte in enumerate(hidden)}
    vocabulary = {characters[byte]: byte for byte in range(256)}
    vocabulary |= {f"{characters[ord(' ')]}{token}": token for token in range(256, SHAPE["vocab_size"])}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    return {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": level, "post_processor": None,
            "decoder": level, "model": {"type": "BPE", "vocab": vocabulary, "merges": []}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--layers", type=int, default=8)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    rng, places = np.random.default_rng(1), {}
    parts = [lambda: other_tensors(rng)] + [lambda layer=layer: layer_tensors(rng, layer) for layer in range(options.layers)]
    for number, tensors in enumerate(parts):
        name = f"model-{number:05}.safetensors"
        places |= dict.fromkeys(write(options.folder / name, list(tensors())), name)
    (options.folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (options.folder / "config.json").write_text(json.dumps(config(options.layers), indent=2))
    (options.folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    (options.folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


if __name__ == "__main__":
    main()
