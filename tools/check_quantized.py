#!/usr/bin/env python3
"""Reads a folder that `moracle quantize` wrote with the producers' own libraries.

    check_quantized.py PLAIN QUANTIZED

Every quantized module is decompressed by the library whose format it is (compressed-tensors,
transformers for quant_method fp8, ModelOpt) and compared, bit for bit in float32, with the same
weights quantized here, in PyTorch, from the formulas of docs/numerics.md. Every other tensor must be
that of PLAIN. Where transformers can load the model, its weights are compared too.

Needs torch, safetensors, transformers and compressed-tensors; for ModelOpt's form nvidia-modelopt.
A developer's tool: the tests do not call it.
"""
import glob
import importlib.metadata
import importlib.util
import json
import sys

import torch
from safetensors.torch import load_file

E4M3 = torch.float8_e4m3fn


def tensors_of(folder):
    tensors = {}
    for path in sorted(glob.glob(f"{folder}/*.safetensors")):
        if not path.endswith("reference.safetensors"):
            tensors.update(load_file(path))
    return tensors


def blocks_of(weight, rows, cols):
    """Row and column of each element's block, for any size."""
    n, k = weight.shape
    return (torch.arange(n) // rows)[:, None], (torch.arange(k) // cols)[None, :]


def largest_of(weight, rows, cols):
    n, k = weight.shape
    grid = torch.zeros(-(-n // rows), -(-k // cols))
    for i in range(grid.shape[0]):
        for j in range(grid.shape[1]):
            block = weight[i * rows:(i + 1) * rows, j * cols:(j + 1) * cols]
            grid[i, j] = block.abs().max()
    return grid


def ours(weight, args):
    """The weights as docs/numerics.md quantizes them, dequantized in float32."""
    w = weight.float()
    n, k = w.shape
    floor = torch.tensor(1e-10)
    if args["type"] == "int":
        scale = torch.maximum(w.abs().amax(1, keepdim=True), floor) / torch.tensor(127.0)
        return torch.round(w / scale).clamp(-127, 127) * scale
    if args["strategy"] in ("tensor", "channel"):
        largest = w.abs().max() if args["strategy"] == "tensor" else w.abs().amax(1, keepdim=True)
        scale = torch.maximum(largest, floor) / torch.tensor(448.0)
        return (w / scale).clamp(-448, 448).to(E4M3).float() * scale
    if args["strategy"] == "block":
        rows, cols = args["block_structure"]
        r, c = blocks_of(w, rows, cols)
        inverse = torch.tensor(448.0) * (torch.tensor(1.0) / largest_of(w, rows, cols))
        scale = torch.tensor(1.0) / inverse
        return (w * inverse[r, c]).clamp(-448, 448).to(E4M3).float() * scale[r, c]
    r, c = blocks_of(w, 1, 32)
    mantissa, exponent = torch.frexp(w.abs().view(n, k // 32, 32).amax(2) / torch.tensor(448.0))
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent).clamp(-127, 127)
    scale = torch.ldexp(torch.tensor(1.0), exponent)
    return (w / scale[r, c]).clamp(-448, 448).to(E4M3).float() * scale[r, c]


FP8_BLOCK = {"type": "float", "strategy": "block", "block_structure": [128, 128]}
MXFP8 = {"type": "float", "strategy": "group"}


def read_compressed_tensors(config, tensors):
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig
    parsed = QuantizationConfig.model_validate(config)
    groups = list(parsed.config_groups.items())
    for module in sorted(name.rsplit(".", 1)[0] for name in tensors if name.endswith(".weight_scale")):
        name, scheme = next((g for g in groups if module in g[1].targets),
                            next((g for g in groups if "Linear" in g[1].targets), (None, None)))
        assert scheme is not None and module not in parsed.ignore, module
        compressor = BaseCompressor.get_value_from_registry(config["config_groups"][name]["format"])
        prefix = module + "."
        state = {key[len(prefix):]: tensors[key] for key in tensors
                 if key.startswith(prefix) and key[len(prefix):].startswith("weight")}
        yield module, compressor.decompress(state, scheme)["weight"], \
            config["config_groups"][name]["weights"]


def read_fp8(config, tensors):
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    class Quantizer:
        class quantization_config:
            weight_block_size = config["weight_block_size"]
            scale_fmt = None

    operation = Fp8Dequantize(Quantizer())
    for name in sorted(tensors):
        if not name.endswith(".weight_scale_inv"):
            continue
        module = name.rsplit(".", 1)[0]
        yield module, operation._dequantize_one(
            tensors[module + ".weight"], tensors[name]), FP8_BLOCK


def read_modelopt(config, tensors):
    from modelopt.torch.quantization.qtensor.mxfp8_tensor import MXFP8QTensor
    for name in sorted(tensors):
        if not name.endswith(".weight_scale"):
            continue
        module = name.rsplit(".", 1)[0]
        codes = tensors[module + ".weight"]
        quantized = MXFP8QTensor(codes.shape, torch.float32, codes)
        yield module, quantized.dequantize(dtype=torch.float32, scale=tensors[name],
                                           block_sizes={-1: 32}), MXFP8


def fused(expected):
    """The same with the experts of a layer in one tensor each, as transformers holds them."""
    layers = {}
    for module, weight in expected.items():
        if ".experts." not in module:
            layers[module + ".weight"] = weight
            continue
        prefix, rest = module.split(".experts.")
        expert, part = rest.split(".")
        layers.setdefault(prefix + ".experts", {})[int(expert), part] = weight
    for prefix in [name for name, value in layers.items() if isinstance(value, dict)]:
        parts = layers.pop(prefix)
        count = 1 + max(e for e, _ in parts)
        layers[prefix + ".gate_up_proj"] = torch.stack(
            [torch.cat([parts[e, "gate_proj"], parts[e, "up_proj"]]) for e in range(count)])
        layers[prefix + ".down_proj"] = torch.stack([parts[e, "down_proj"] for e in range(count)])
    return layers


def check_with_transformers(folder, expected):
    import transformers
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    except Exception as error:  # report its text
        print(f"  transformers does not load it: {type(error).__name__}: {str(error)[:120]}")
        return
    state, equal, differ, other = model.state_dict(), 0, [], []
    for name, want in fused(expected).items():
        got = state.get(name)
        if got is None or got.dtype not in (torch.float32, torch.bfloat16):
            other.append(f"{name} {None if got is None else got.dtype}")
        elif torch.equal(got.float(), want.to(got.dtype).float()):
            equal += 1
        else:
            differ.append(f"{name} {got.dtype} by {(got.float() - want).abs().max():.3g}")
    print(f"  transformers loads it: {equal} tensors equal, {len(differ)} differ {differ[:1]}, "
          f"{len(other)} kept in another form {other[:1]}")


def main():
    plain_folder, folder = sys.argv[1:]
    plain, tensors = tensors_of(plain_folder), tensors_of(folder)
    with open(f"{folder}/config.json", encoding="utf-8") as file:
        config = json.load(file)["quantization_config"]
    method = config["quant_method"]
    readers = {"compressed-tensors": read_compressed_tensors, "fp8": read_fp8,
               "modelopt": read_modelopt}
    wrong, modules, expected = [], 0, {}
    for module, weight, args in readers[method](config, tensors):
        want = ours(plain[module + ".weight"], args)
        expected[module] = want
        modules += 1
        if not torch.equal(weight.float(), want):  # mxfp8 is decompressed to bf16, which holds it exactly
            wrong.append(f"{module}: {weight.dtype}, off by {(weight.float() - want).abs().max():.3g}")
    copied = [name for name in plain if name.removesuffix(".weight") not in expected]
    wrong += [name for name in copied if not torch.equal(plain[name], tensors[name])]
    versions = {name: importlib.metadata.version(name)
                for name in ("torch", "transformers", "compressed-tensors", "nvidia-modelopt")
                if importlib.util.find_spec(name.removeprefix("nvidia-").replace("-", "_"))}
    print(f"{folder}: {method}, {modules} modules, {len(copied)} tensors copied, "
          f"{len(wrong)} differ; {versions}")
    for line in wrong[:5]:
        print("  " + line)
    if method != "modelopt":  # transformers alone does not know ModelOpt and would read codes as weights
        check_with_transformers(folder, expected)
    return 1 if wrong or modules == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
