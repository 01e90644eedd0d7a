#!/usr/bin/env python3
"""Loads compressed-tensors folders as their producer does and prints the perplexity of each.

    check_loaders.py TEXT FOLDER...        e.g. what `moracle quantize` or llmcompressor wrote

llmcompressor makes one linear layer of each expert, and compressed-tensors quantizes its activations as the
config says. Windows of 512 tokens of the first 8,192, each without the others and without its first token:
what `moracle perplexity FOLDER --text TEXT` prints. A folder in mxfp8 is computed in BF16, because its
decompressor gives BF16; the others in float32. check_quantized.py says whether transformers alone loads a folder.

Needs llmcompressor 0.14 and torchvision. A developer's tool: the tests do not call it.
"""
import json
import math
import os
import sys

os.environ["CUDA_VISIBLE_DEVICES"] = ""
import torch
import transformers
from llmcompressor.modeling.moe.linearize import load_quantizable_moe
from transformers import AutoModelForCausalLM, AutoTokenizer, CompressedTensorsConfig

TOKENS, WINDOW = 8192, 512


def perplexity(model, ids):
    loss, count = 0.0, 0
    with torch.no_grad():
        for first in range(0, len(ids), WINDOW):
            window = torch.tensor([ids[first:first + WINDOW]])
            logs = torch.log_softmax(model(window).logits[0].float(), -1)
            loss -= logs[:-1].gather(1, window[0, 1:, None]).double().sum().item()
            count += window.shape[1] - 1
    return math.exp(loss / count)


def evaluate(folder, ids):
    with open(f"{folder}/config.json", encoding="utf-8") as file:
        mxfp8 = json.load(file)["quantization_config"]["format"] == "mxfp8-quantized"
    with load_quantizable_moe():
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.bfloat16 if mxfp8 else torch.float32,
            quantization_config=CompressedTensorsConfig(dequantize=False)).eval()
    schemes = [getattr(module, "quantization_scheme", None) for module in model.modules()]
    quantized = [scheme for scheme in schemes if scheme is not None]
    activations = sum(scheme.input_activations is not None for scheme in quantized)
    return f"{perplexity(model, ids):.4f}, {len(quantized)} modules, {activations} with activations"


def main():
    text, *folders = sys.argv[1:]
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    with open(text, encoding="utf-8") as file:
        content = file.read()
    for folder in folders:
        ids = AutoTokenizer.from_pretrained(folder)(content, add_special_tokens=False)["input_ids"][:TOKENS]
        print(f"{folder}: {evaluate(folder, ids)}", flush=True)


if __name__ == "__main__":
    main()
