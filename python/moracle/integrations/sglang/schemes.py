"""The schemes of SGLang's MoE methods: how Moracle names each, and the tensors that the method loads.

A "form" is the object that creates a layer's tensors: the method, or the layer's scheme where the method has schemes.
"""
import dataclasses
from collections.abc import Callable

import torch

from ..stored import Declined, both, group_name, per_row

_QUANTIZATION = "sglang.srt.layers.quantization."


@dataclasses.dataclass
class Recipe:
    """One form of SGLang."""
    scheme: Callable  # (form, layer): name of the scheme
    tensors: Callable  # (form, layer): arguments of moracle.pack
    source: str  # for the docs: producer and format
    schemes: str  # for the docs: Moracle's names


def activation_of(config):
    """pack()'s arguments for the activation function of a MoeRunnerConfig. Raises Declined."""
    if not config.is_gated:
        raise Declined("needs experts with a gate; they have none")
    if config.activation not in ("silu", "gelu"):
        raise Declined(f"needs silu or gelu; the activation is {config.activation}")
    if config.gemm1_alpha is None:
        limit = config.swiglu_limit if config.swiglu_limit is not None else config.gemm1_clamp_limit
        if limit is not None and config.activation != "silu":
            raise Declined(f"needs no limit with {config.activation}; it is {limit}")
        return {"activation": config.activation, "limit": limit or 0.0}
    beta = {} if config.gemm1_beta is None else {"beta": config.gemm1_beta}
    return {"activation": "swigluoai", "alpha": config.gemm1_alpha, "limit": config.gemm1_clamp_limit or 7.0,
            "interleaved": config.gate_up_interleaved, **beta}


def _on_cpu(layer):
    return layer.w13_weight.device.type == "cpu"


def _plain_scheme(form, layer):
    names = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}
    if layer.w13_weight.dtype not in names or form.use_triton_kernels:
        raise Declined(f"needs bf16, f16 or f32 weights [experts, rows, columns]; they are {layer.w13_weight.dtype}")
    return names[layer.w13_weight.dtype]


def _fp8(layer, form, is_static=False):
    """On a CPU the activations stay floats: it has no instructions for fp8."""
    return f"fp8-w8a16-{form}" if _on_cpu(layer) else f"fp8-w8a8-{form}{'-static' if is_static else ''}"


def _inputs(layer):
    scales = {"a1_scale": layer.w13_input_scale, "a2_scale": layer.w2_input_scale}
    return {name: scale.data for name, scale in scales.items() if scale is not None and not _on_cpu(layer)}


def _fp8_scheme(form, layer):
    if form.is_fp4_expert or not form.quant_config.is_checkpoint_fp8_serialized:
        raise Declined("needs experts stored in fp8")
    if form.use_mxfp8:
        return "mxfp8-w8a16" if _on_cpu(layer) else "mxfp8-w8a8"
    if form.block_quant:
        rows, columns = form.weight_block_size
        return _fp8(layer, f"block{rows}x{columns}")
    return _fp8(layer, "channel", form.quant_config.activation_scheme == "static")


def _fp8_tensors(form, layer):
    if form.block_quant:
        return both(layer, scale="weight_scale_inv", bias="weight_bias")
    return both(layer, bias="weight_bias") | per_row(layer) | _inputs(layer)


def _compressed_fp8_scheme(form, layer):
    if form.block_quant:
        rows, columns = form.weight_block_size
        return _fp8(layer, f"block{rows}x{columns}")
    return _fp8(layer, "channel", form.static_input_scales)


def _compressed_fp8_tensors(form, layer):
    if form.block_quant or layer.w13_weight_scale.ndim == 3:  # per block, per row
        return both(layer, scale="weight_scale")
    return both(layer) | per_row(layer) | _inputs(layer)


def _packed_scheme(form, layer):
    if not form.sym or getattr(form.actorder, "value", form.actorder) == "group":
        raise Declined("needs symmetric codes in the order of their columns")
    return f"int{form.num_bits}-w{form.num_bits}a16-{group_name(form.group_size)}"


def _codes(form, layer):
    """Codes along K in i32 words, transposed, as GPTQ packs them."""
    return both(layer, "weight_packed", "weight_scale") | {"packing": "gptq"}


def _awq_scheme(form, layer):
    return f"int4-w4a16-{group_name(form.quant_config.group_size)}-asym"


def _gptq_scheme(form, layer):
    config = form.quant_config
    if config.desc_act:
        raise Declined("needs columns in the order of their groups; desc_act is true")
    return f"int{config.weight_bits}-w{config.weight_bits}a16-{group_name(config.group_size)}"


# By the name of SGLang's class.
SCHEMES = {
    "UnquantizedFusedMoEMethod": Recipe(_plain_scheme, lambda form, layer: both(layer, bias="weight_bias"),
                                        "no quantization", "bf16, f16, f32"),
    "Fp8MoEMethod": Recipe(_fp8_scheme, _fp8_tensors, "FP8, MXFP8", "fp8-w8a8-block*, fp8-w8a8-channel, mxfp8-w8a8"),
    "CompressedTensorsW8A8Fp8MoE": Recipe(_compressed_fp8_scheme, _compressed_fp8_tensors, "compressed-tensors FP8",
                                          "fp8-w8a8-channel, fp8-w8a8-block*"),
    "CompressedTensorsWNA16MoE": Recipe(_packed_scheme, _codes, "compressed-tensors INT4 and INT8 groups, symmetric",
                                        "int4-w4a16-g*, int8-w8a16-g*"),
    "CompressedTensorsWNA16TritonMoE": Recipe(_packed_scheme, _codes, "the same, of SGLang's other class",
                                              "int4-w4a16-g*, int8-w8a16-g*"),
    "W8A8Int8MoEMethod": Recipe(lambda form, layer: "int8-w8a8", lambda form, layer: both(layer, scale="weight_scale"),
                                "INT8", "int8-w8a8"),
    "GPTQMarlinMoEScheme": Recipe(
        _gptq_scheme, lambda form, layer: both(layer, "qweight", "scales") | {"packing": "gptq"}, "GPTQ, symmetric",
        "int4-w4a16-g*, int8-w8a16-g*"),
    "AWQMoEScheme": Recipe(
        _awq_scheme, lambda form, layer: both(layer, "qweight", "scales", "qzeros") | {"packing": "awq"}, "AWQ",
        "int4-w4a16-g*-asym"),
    "Mxfp4MoEMethod": Recipe(
        lambda form, layer: "mxfp4-w4a16", lambda form, layer: both(layer, scale="weight_scale", bias="weight_bias"),
        "GPT-OSS MXFP4", "mxfp4-w4a16"),
}
# The method classes whose create_weights the plugin follows.
METHODS = tuple(_QUANTIZATION + name for name in (
    "unquant.UnquantizedFusedMoEMethod", "fp8.Fp8MoEMethod", "w8a8_int8.W8A8Int8MoEMethod", "mxfp4.Mxfp4MoEMethod",
    "compressed_tensors.compressed_tensors.CompressedTensorsFusedMoEMethod", "gptq.gptq.GPTQMarlinMoEMethod",
    "awq.awq.AWQMoEMethod"))


def table():
    """Rows of docs/python/sglang.md: python -m moracle.integrations.sglang.schemes prints them."""
    return [f"| `{name}` | {recipe.source} | {recipe.schemes} |" for name, recipe in SCHEMES.items()]


if __name__ == "__main__":
    print("\n".join(table()))
