#!/usr/bin/env python3
"""Cuts one MoE layer with a few experts out of every full checkpoint, so that a clone alone can test every
format on real bytes: make_golden.py CHECKPOINTS_FOLDER tests/golden    (needs what producers.py needs)

A cut is a folder that opens like a checkpoint, and reference.safetensors beside it:
  crc32.w13, crc32.w2    i32 [E, rows]   of each row of an expert's matrix (w13: gate, then up), dequantized to
                                         float32 by its producer's own library (producers.py)
  moe.input, moe.topk_ids, moe.topk_weights, and moe.output_routed, the routed experts' sum of these weights in
  double; act.moe.output_routed where the scheme quantizes activations

Before a cut is written, the same code computes the whole layer and is held against the reference that lies with
the checkpoint, which another engine computed: the routing has to be equal, and the output within 1e-5.
"""
import json
import pathlib
import shutil
import sys
import zlib

import torch
from safetensors.torch import save_file

from moe_layer import Layer

TOP_K = 2
MAX_BYTES = 6_000_000


def check(layer):
    """Compares the whole layer with the reference beside the checkpoint; returns the largest difference."""
    reference, config = layer.reference, layer.config
    x, logits = reference["moe.input"].double(), reference["moe.router_logits"]
    ids, weights = layer.route(logits.double(), config["num_experts_per_tok"], config.get("n_group", 1),
                               config.get("topk_group", 1))
    assert torch.allclose(layer.logits(x, logits.shape[1]).float(), logits, atol=1e-4), layer.name
    assert torch.equal(ids.int(), reference["moe.topk_ids"]), f"{layer.name} routes otherwise"
    assert torch.allclose(weights.float(), reference["moe.topk_weights"], atol=1e-6), layer.name
    stored = reference[("act." if layer.scheme else "") + "moe.output_routed"].double()
    distance = float((layer.run(x, ids, weights) - stored).norm() / stored.norm())
    assert distance < 1e-5, f"{layer.name}: {distance} from the stored output"
    return distance


def row_sums(matrices):
    sums = [[zlib.crc32(row.numpy().tobytes()) for row in matrix.contiguous()] for matrix in matrices]
    return torch.tensor(sums).to(torch.int32)


def kept_tensors(layer, experts):
    """The router and the first experts, as tensors or as slices of fused tensors."""
    prefix, kept = layer.mlp + ".experts.", {}
    for name, t in layer.tensors.items():
        of_all = name.startswith((layer.router + ".", prefix + "gate_up_proj", prefix + "down_proj"))
        of_one = name.startswith(prefix) and not of_all
        if of_all:
            kept[name] = t[:experts].clone()
        elif of_one and int(name[len(prefix):].split(".")[0]) < experts:
            kept[name] = t
    return kept


def cut_config(config, experts):
    sizes = {"num_experts": experts, "num_local_experts": experts, "n_routed_experts": experts,
             "num_experts_per_tok": TOP_K, "experts_per_token": TOP_K, "n_group": 2, "topk_group": 1}
    config.update({key: value for key, value in sizes.items() if key in config})
    config.get("quantization_config", {}).pop("meta", None)  # holds paths of the machine that made it
    return config


def save(tensors, folder, shards):
    """Splits the tensors into shards, with a border between a weight and its scale."""
    names = sorted(tensors)
    if not shards:
        return save_file(tensors, folder / "model.safetensors")
    half = next(i for i in range(len(names) // 2, len(names)) if names[i].startswith(names[i - 1]))
    files = {f"model-0000{i}-of-00002.safetensors": part for i, part in ((1, names[:half]), (2, names[half:]))}
    for file, part in files.items():
        save_file({name: tensors[name] for name in part}, folder / file)
    index = {"metadata": {}, "weight_map": {name: file for file, part in files.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def cut(layer, target):
    # Two groups of two experts if the router chooses groups. Unquantized experts are large, so take two.
    experts = 4 if "n_group" in layer.config else 3 if "quantization_config" in layer.config else 2
    tensors = kept_tensors(layer, experts)
    config = cut_config(layer.config, experts)
    x = layer.reference["moe.input"].double()
    ids, weights = layer.route(layer.logits(x, experts), TOP_K, config.get("n_group", 1), config.get("topk_group", 1))
    w13, w2 = zip(*(layer.matrices(e)[:2] for e in range(experts)))

    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    save(tensors, target, layer.sharded)
    (target / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    save_file({"moe.input": x.float(), "moe.topk_ids": ids.int(), "moe.topk_weights": weights.float(),
               ("act." if layer.scheme else "") + "moe.output_routed": layer.run(x, ids, weights).float(),
               "crc32.w13": row_sums(w13), "crc32.w2": row_sums(w2)}, target / "reference.safetensors")


def main():
    source, golden = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    for folder in sorted(path.parent for path in source.glob("*/reference.json")):
        layer = Layer(folder)
        distance = check(layer)
        cut(layer, golden / "layers" / folder.name)
        print(f"{folder.name}: the whole layer is {distance:.1e} from its reference", flush=True)
    size = sum(path.stat().st_size for path in golden.rglob("*") if path.is_file())
    assert size < MAX_BYTES, f"{golden} has {size} bytes"


if __name__ == "__main__":
    main()
