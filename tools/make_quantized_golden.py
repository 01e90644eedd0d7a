#!/usr/bin/env python3
"""Writes tests/golden/quantized/*: tiny models of random numbers that llmcompressor quantized, and what it computes
with its own files in float32 on a CPU, with quantized activations where the scheme has them.

    pip install llmcompressor
    python3 tools/make_quantized_golden.py [output] [name ...]

reference.safetensors: "ids" i32 [tokens] and "logits" f32 [tokens, vocabulary] of one prompt.
"""

import json
import pathlib
import shutil
import sys
import tempfile

import safetensors.torch
import torch
import transformers
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
from llmcompressor import oneshot
from llmcompressor.modeling.moe.linearize import load_quantizable_moe
from llmcompressor.modifiers.quantization import QuantizationModifier
from transformers import AutoModelForCausalLM
from transformers.utils.quantization_config import CompressedTensorsConfig

from make_architecture_golden import TOKENS, VOCABULARY, draw

COMMON = dict(hidden_size=128, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
              vocab_size=VOCABULARY, max_position_embeddings=256, tie_word_embeddings=False, pad_token_id=None,
              bos_token_id=0, eos_token_id=1)
QWEN = dict(moe_intermediate_size=128, intermediate_size=128, num_experts=4, num_experts_per_tok=2, norm_topk_prob=True)
MODELS = {
    "qwen3_moe": (transformers.Qwen3MoeConfig, dict(QWEN, num_hidden_layers=2, mlp_only_layers=[1])),
    "glm4_moe": (transformers.Glm4MoeConfig, dict(
        moe_intermediate_size=128, intermediate_size=128, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1,
        n_group=1, topk_group=1, routed_scaling_factor=1.7, first_k_dense_replace=0, use_qk_norm=True,
        attention_bias=True)),
    "qwen3_next": (transformers.Qwen3NextConfig, dict(
        QWEN, num_hidden_layers=2, num_experts=2, shared_expert_intermediate_size=128, linear_conv_kernel_dim=4,
        linear_key_head_dim=32, linear_value_head_dim=32, linear_num_key_heads=2, linear_num_value_heads=4,
        layer_types=["linear_attention", "full_attention"])),
    "olmoe": (transformers.OlmoeConfig, dict(
        intermediate_size=128, num_experts=4, num_experts_per_tok=2, norm_topk_prob=False)),
    "hy_v3": (transformers.HYV3Config, dict(
        QWEN, num_hidden_layers=2, num_shared_experts=1, router_scaling_factor=1.7, mlp_layer_types=["dense", "sparse"],
        rope_parameters=dict(rope_type="default", rope_theta=1e4))),
    "mellum": (transformers.MellumConfig, dict(
        QWEN, sliding_window=5, layer_types=["sliding_attention"],
        rope_parameters=dict(sliding_attention=dict(rope_type="default", rope_theta=1e3)))),
    "laguna": (transformers.LagunaConfig, dict(
        QWEN, shared_expert_intermediate_size=128, moe_routed_scaling_factor=1.7, mlp_layer_types=["sparse"],
        rope_parameters=dict(full_attention=dict(rope_type="default", rope_theta=1e4)))),
    "mimo_v2_flash": (transformers.MiMoV2FlashConfig, dict(
        QWEN, n_routed_experts=4, v_head_dim=32, layer_types=["full_attention"], mlp_layer_types=["sparse"],
        rope_parameters=dict(full_attention=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5)))),
    "cohere2_moe": (transformers.Cohere2MoeConfig, dict(
        intermediate_size=128, num_experts=4, num_experts_per_tok=2, num_shared_experts=1, sliding_window=5,
        layer_types=["sliding_attention"], tie_word_embeddings=True)),
}
SCHEMES = {"w4a16": "W4A16", "fp8-block": "FP8_BLOCK"}
# llmcompressor's loader decompresses some experts to bf16, and then does not quantize activations: with integers the
# reference is a model of f32 weights, with FP8 there is none.
DEQUANTIZED = ("laguna-w4a16", "mimo_v2_flash-w4a16")
WITHOUT_REFERENCE = ("hy_v3-fp8-block", "laguna-fp8-block", "mimo_v2_flash-fp8-block", "cohere2_moe-fp8-block")
# Routers, and modules too narrow for a group of 128 columns.
IGNORED = ["lm_head", "re:.*mlp.gate$", "re:.*shared_expert_gate$", "re:.*in_proj_ba$", "re:.*conv1d$"]


def write_plain(folder: pathlib.Path, config_class, settings: dict) -> None:
    random = torch.Generator().manual_seed(7)
    model = AutoModelForCausalLM.from_config(config_class(**{**COMMON, **settings}), dtype=torch.float32)
    centre = 0 if model.config.model_type == "qwen3_next" else 1
    for name, tensor in model.state_dict().items():
        tensor.copy_(draw(name, tensor.shape, random, centre))
    model.bfloat16().save_pretrained(folder)


def load(folder: pathlib.Path, dtype: torch.dtype, **options) -> torch.nn.Module:
    with load_quantizable_moe():
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager", **options).eval()


def dequantized(folder: pathlib.Path, plain: pathlib.Path) -> torch.nn.Module:
    """The model of a W4A16 folder, with f32 weights."""
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    weights = {}
    for name, tensor in tensors.items():
        module, _, kind = name.rpartition(".")
        if kind == "weight_packed":
            codes = unpack_from_int32(tensor, 4, torch.Size(tensors[module + ".weight_shape"].tolist()))
            scales = tensors[module + ".weight_scale"].float()
            columns = codes.shape[1] // scales.shape[1]
            weights[module + ".weight"] = codes.float() * scales.repeat_interleave(columns, dim=1)
        elif not kind.startswith("weight_"):
            weights[name] = tensor.float()
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (plain / "config.json").write_text(json.dumps(config))
    safetensors.torch.save_file(weights, plain / "model.safetensors", {"format": "pt"})
    return AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32, attn_implementation="eager",
                                                experts_implementation="eager").eval()


def write(folder: pathlib.Path, config_class, settings: dict, scheme: str) -> None:
    with tempfile.TemporaryDirectory() as plain:
        write_plain(pathlib.Path(plain), config_class, settings)
        model = load(pathlib.Path(plain), torch.bfloat16)
        oneshot(model=model, recipe=QuantizationModifier(targets="Linear", scheme=scheme, ignore=IGNORED))
        model.save_pretrained(folder, save_compressed=True)
    for name in ("generation_config.json", "recipe.yaml"):
        (folder / name).unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        read = dequantized(folder, pathlib.Path(scratch)) if folder.name in DEQUANTIZED else load(
            folder, torch.float32, quantization_config=CompressedTensorsConfig(dequantize=False))
    ids = torch.randint(0, VOCABULARY, (1, TOKENS), generator=torch.Generator().manual_seed(11))
    with torch.no_grad():
        logits = read(ids).logits[0].float().contiguous()
    assert torch.isfinite(logits).all()
    safetensors.torch.save_file({"ids": ids[0].to(torch.int32), "logits": logits}, folder / "reference.safetensors")
    config_file = folder / "config.json"
    config_file.write_text(json.dumps(json.loads(config_file.read_text()), indent=1, sort_keys=True) + "\n")
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{folder.name}: {size} bytes, logits' deviation {logits.std().item():.2f}", flush=True)


def main() -> None:
    root = pathlib.Path(__file__).resolve().parent.parent / "tests/golden"
    output = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else root
    for name, (config_class, settings) in MODELS.items():
        for suffix, scheme in SCHEMES.items():
            folder = output / "quantized" / f"{name}-{suffix}"
            if folder.name in WITHOUT_REFERENCE or len(sys.argv) > 2 and folder.name not in sys.argv[2:]:
                continue
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            write(folder, config_class, settings, scheme)


main()
