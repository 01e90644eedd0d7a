#!/usr/bin/env python3
"""Cuts one MoE layer with a few experts out of full checkpoints, so that a clone alone can test every
format: make_golden.py CHECKPOINTS_FOLDER tests/golden

Needs numpy. The expected output comes from this file's own dequantizers, in double; each is first held
against the stored reference of the whole layer, which another engine computed, and refuses to write
anything if it disagrees.
"""
import json
import pathlib
import shutil
import struct
import sys

import numpy as np

NUM_EXPERTS, TOP_K = 4, 2
DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I8": "i1", "U8": "u1", "I32": "<i4", "I64": "<i8"}


class Tensor:
    def __init__(self, dtype, shape, data):
        self.dtype, self.shape, self.data = dtype, shape, data

    def numpy(self):
        values = np.frombuffer(self.data, DTYPES[self.dtype]).reshape(self.shape)
        if self.dtype == "BF16":
            return (values.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        return values.astype(np.float64) if self.dtype in ("F32", "F16") else values


def read(folder, name="model"):
    """Every tensor of a folder's safetensors file or shards."""
    tensors = {}
    for path in sorted(folder.glob(f"{name}*.safetensors")):
        raw = path.read_bytes()
        (length,) = struct.unpack("<Q", raw[:8])
        for key, entry in json.loads(raw[8:8 + length]).items():
            if key == "__metadata__":
                continue
            begin, end = (8 + length + at for at in entry["data_offsets"])
            tensors[key] = Tensor(entry["dtype"], entry["shape"], raw[begin:end])
    return tensors


def write(path, tensors):
    header, body = {}, b""
    for name, t in sorted(tensors.items()):
        header[name] = {"dtype": t.dtype, "shape": list(t.shape), "data_offsets": [len(body), len(body) + len(t.data)]}
        body += t.data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def f32(array):
    array = np.ascontiguousarray(array, dtype="<f4")
    return Tensor("F32", list(array.shape), array.tobytes())


def i32(array):
    array = np.ascontiguousarray(array, dtype="<i4")
    return Tensor("I32", list(array.shape), array.tobytes())


# ---- what each producer's tensors mean: (tensors, module, quantization config) -> [N, K] in double ----


def plain(tensors, module, _):
    return tensors[module + ".weight"].numpy()


def compressed_int8(tensors, module, _):
    return tensors[module + ".weight"].numpy() * tensors[module + ".weight_scale"].numpy().reshape(-1, 1)


def gptq(tensors, module, config):
    bits = config["bits"]
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    mask = (1 << bits) - 1
    words = tensors[module + ".qweight"].numpy().astype(np.uint32)  # [K·b/32, N]
    codes = (words[:, None, :] >> shifts[None, :, None] & mask).reshape(-1, words.shape[1])
    zero_words = tensors[module + ".qzeros"].numpy().astype(np.uint32)  # [G, N·b/32]
    zeros = (zero_words[:, :, None] >> shifts & mask).reshape(zero_words.shape[0], -1)
    if config.get("checkpoint_format", "gptq") == "gptq":
        zeros = (zeros + 1) & mask
    groups = tensors[module + ".g_idx"].numpy()
    scales = tensors[module + ".scales"].numpy()
    return ((codes.astype(np.float64) - zeros[groups]) * scales[groups]).T


def int8_per_token(x):
    scale = np.maximum(np.abs(x).max(axis=1, keepdims=True), 1e-10).astype(np.float32) / np.float32(127)
    return np.clip(np.rint(x.astype(np.float32) / scale), -128, 127) * scale.astype(np.float64)


FORMATS = {  # folder: (dequantizer, activation quantizer)
    "qwen3moe-bf16": (plain, None),
    "qwen3moe-ct-w8a8-int8": (compressed_int8, int8_per_token),
    "qwen3moe-gptq-int4-g128": (gptq, None),
}


# ---- the forward pass of one MoE block ----


def moe(tensors, prefix, dequantize, quantize, config, x, ids, weights):
    as_read = quantize or (lambda rows: rows)
    output = np.zeros_like(x)
    for e in np.unique(ids):
        gate, up, down = (dequantize(tensors, f"{prefix}.experts.{e}.{p}_proj", config) for p in ("gate", "up", "down"))
        tokens, slots = np.nonzero(ids == e)
        rows = as_read(x[tokens])
        g, u = rows @ gate.T, rows @ up.T
        y = as_read(g / (1 + np.exp(-g)) * u) @ down.T
        np.add.at(output, tokens, y * weights[tokens, slots][:, None])
    return output


def route(logits, top_k):
    scores = np.exp(logits - logits.max(axis=1, keepdims=True))
    scores /= scores.sum(axis=1, keepdims=True)
    ids = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
    weights = np.take_along_axis(scores, ids, axis=1)
    return ids, weights / weights.sum(axis=1, keepdims=True)


def distance(a, b):
    return np.linalg.norm(a - b) / np.linalg.norm(b)


def cut(source, target, dequantize, quantize):
    tensors, reference = read(source), read(source, "reference")
    config = json.loads((source / "config.json").read_text())
    quantization = config.get("quantization_config", {})
    layer = json.loads((source / "reference.json").read_text())["moe_layer"]
    prefix = f"model.layers.{layer}.mlp"
    x = reference["moe.input"].numpy()

    stored = reference["act.moe.output" if quantize else "moe.output"].numpy()
    whole = moe(tensors, prefix, dequantize, quantize, quantization, x, reference["moe.topk_ids"].numpy(),
                reference["moe.topk_weights"].numpy())
    assert distance(whole, stored) < 1e-5, f"{source.name}: {distance(whole, stored)} from the stored output"

    logits = x @ tensors[prefix + ".gate.weight"].numpy()[:NUM_EXPERTS].T
    ids, weights = route(logits, TOP_K)
    output = moe(tensors, prefix, dequantize, quantize, quantization, x, ids, weights)

    kept = {name: t for name, t in tensors.items()
            if name.startswith(prefix + ".experts.") and int(name[len(prefix) + 9:].split(".")[0]) < NUM_EXPERTS}
    router = tensors[prefix + ".gate.weight"]
    row_bytes = len(router.data) // router.shape[0]
    kept[prefix + ".gate.weight"] = Tensor(router.dtype, [NUM_EXPERTS, router.shape[1]], router.data[:NUM_EXPERTS * row_bytes])
    for key in ("num_experts", "num_local_experts"):
        if key in config:
            config[key] = NUM_EXPERTS
    config["num_experts_per_tok"] = TOP_K
    quantization.pop("meta", None)

    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    write(target / "model.safetensors", kept)
    write(target / "reference.safetensors", {
        "moe.input": f32(x), "moe.router_logits": f32(logits), "moe.topk_ids": i32(ids),
        "moe.topk_weights": f32(weights), ("act.moe.output" if quantize else "moe.output"): f32(output)})
    (target / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    size = sum(path.stat().st_size for path in target.iterdir())
    print(f"{target.name}: {len(kept)} tensors, {size / 1e6:.2f} MB; the whole layer is {distance(whole, stored):.1e} from its reference")


def main():
    source, target = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    for name, (dequantize, quantize) in FORMATS.items():
        cut(source / name, target / "layers" / name, dequantize, quantize)


if __name__ == "__main__":
    main()
