"""The schemes of vLLM's MoE methods: how Moracle names each, and the tensors that the method loads."""
import dataclasses
from collections.abc import Callable

import torch

from ..stored import Declined, both, group_name, per_row

_LAYERS = "vllm.model_executor.layers."
QUANTIZATION = _LAYERS + "quantization."
_COMPRESSED = QUANTIZATION + "compressed_tensors.compressed_tensors_moe.compressed_tensors_moe_"
COMPRESSED_SCHEMES = QUANTIZATION + "compressed_tensors.schemes.compressed_tensors_"


@dataclasses.dataclass
class Recipe:
    """One method class of vLLM."""
    module: str  # of the class
    select: str  # the module's function that chooses vLLM's kernels
    scheme: Callable  # (method, moe config): name of the scheme
    tensors: Callable  # (method, layer): arguments of moracle.pack
    source: str  # for the docs: producer and format
    schemes: str  # for the docs: Moracle's names


def activation_of(moe):
    """pack()'s arguments for the activation function. Raises Declined."""
    activation = moe.activation.value
    clamps = ("swigluoai", "swigluoai_uninterleave", "swiglustep")
    if moe.swiglu_limit is not None and activation not in ("silu", *clamps):
        raise Declined(f"needs no swiglu_limit with {activation}; it is {moe.swiglu_limit}")
    limit = moe.swiglu_limit if moe.swiglu_limit is not None else 7.0 if activation in clamps else 0.0
    others = {"alpha": moe.swiglu_alpha, "beta": moe.swiglu_beta}
    return {"activation": activation, "limit": limit} | {name: value for name, value in others.items() if value is not None}


def _plain_scheme(method, moe):
    names = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}
    if moe.in_dtype not in names:
        raise Declined(f"needs bf16, f16 or f32; the dtype is {moe.in_dtype}")
    return names[moe.in_dtype]


def _packed_scheme(method, moe):
    return f"int{method.num_bits}-w{method.num_bits}a16-{group_name(method.group_size)}{'' if method.symmetric else '-asym'}"


def _packed_tensors(method, layer):
    return both(layer, "weight_packed", "weight_scale", None if method.symmetric else "weight_zero_point")


def _gptq_scheme(method, moe):
    config = method.quant_config
    return f"int{config.weight_bits}-w{config.weight_bits}a16-{group_name(config.group_size)}"


def _gptq_tensors(method, layer):
    # vLLM creates biases for every GPTQ layer; without biases in the file they stay zero.
    has_bias = bool(layer.w13_bias.any() or layer.w2_bias.any())
    return both(layer, "qweight", "scales", bias="bias" if has_bias else None) | {"packing": "gptq"}


def _awq_scheme(method, moe):
    config = method.quant_config
    return f"int4-w4a16-{group_name(config.group_size)}{'-asym' if config.zero_point else ''}"


def _awq_tensors(method, layer):
    zero_points = "qzeros" if method.quant_config.zero_point else None
    return both(layer, "qweight", "scales", zero_points) | {"packing": "awq"}


def _fp8(moe, form, is_static=False):
    """On a CPU the activations stay floats, as in vLLM's own methods there: it has no instructions for fp8."""
    if torch.device(moe.device).type == "cpu":
        return f"fp8-w8a16-{form}"
    return f"fp8-w8a8-{form}{'-static' if is_static else ''}"


def _block_scheme(shape, moe):
    rows, columns = shape
    if moe.intermediate_size_per_partition % rows:
        raise Declined(f"needs an intermediate size in blocks of {rows}; it is {moe.intermediate_size_per_partition}")
    return _fp8(moe, f"block{rows}x{columns}")


def _fp8_scheme(method, moe):
    if method.block_quant:
        if method.weight_scale_refine is not None:
            raise Declined("needs the checkpoint's block scales; vLLM splits them for its ranks")
        return _block_scheme(method.weight_block_size, moe)
    if not method.quant_config.is_checkpoint_fp8_serialized:
        raise Declined("needs a checkpoint in fp8; vLLM would quantize it while loading")
    return _fp8(moe, "channel", method.quant_config.activation_scheme == "static")


def _inputs(method, layer):
    if torch.device(method.moe.device).type == "cpu":
        return {}  # see _fp8
    scales = {"a1_scale": layer.w13_input_scale, "a2_scale": layer.w2_input_scale}
    return {name: scale.data for name, scale in scales.items() if scale is not None}


def _fp8_tensors(method, layer):
    if method.block_quant:
        return both(layer, scale=method.weight_scale_name)
    return both(layer) | per_row(layer) | _inputs(method, layer)


def _compressed_fp8_scheme(method, moe):
    if method.block_quant:
        return _block_scheme(method.weight_block_size, moe)
    return _fp8(moe, "channel", method.static_input_scales)


def _compressed_fp8_tensors(method, layer):
    if method.block_quant or layer.w13_weight_scale.ndim == 3:  # per block, per row
        return both(layer, scale="weight_scale")
    return both(layer) | per_row(layer) | _inputs(method, layer)


def _nvfp4_scales(layer, global_scale, inverted):
    """Group scales in e4m3 times the scale of their tensor, as one float."""
    scales = {}
    for number, prefix in (("w1", "w13_"), ("w2", "w2_")):
        groups, whole = getattr(layer, prefix + "weight_scale").data, getattr(layer, prefix + global_scale).data.float()
        whole = whole.reshape(groups.shape[0], -1)
        whole = whole.repeat_interleave(groups.shape[1] // whole.shape[1], 1)[..., None]
        scales[number + "_scale"] = groups.float() / whole if inverted else groups.float() * whole
    return scales


def _always(name):
    return lambda method, moe: name


def _mxfp8_scheme(method, moe):
    return "mxfp8-w8a16" if torch.device(moe.device).type == "cpu" else "mxfp8-w8a8"


def _with_scale(method, layer):
    return both(layer, scale="weight_scale")


# By the name of vLLM's class. A new method of vLLM is one row.
SCHEMES = {
    "UnquantizedFusedMoEMethod": Recipe(
        _LAYERS + "fused_moe.unquantized_fused_moe_method", "select_unquantized_moe_backend", _plain_scheme,
        lambda method, layer: both(layer), "no quantization", "bf16, f16, f32"),
    "AutoGPTQMoEMethod": Recipe(
        QUANTIZATION + "auto_gptq", "select_wna16_moe_backend", _gptq_scheme, _gptq_tensors, "GPTQ, symmetric",
        "int4-w4a16-g*, int8-w8a16-g*"),
    "AutoAWQMoEMethod": Recipe(
        QUANTIZATION + "auto_awq", "select_wna16_moe_backend", _awq_scheme, _awq_tensors, "AWQ", "int4-w4a16-g*-asym"),
    "CompressedTensorsW8A8Int8MoEMethod": Recipe(
        _COMPRESSED + "w8a8_int8", "select_int8_moe_backend", _always("int8-w8a8"), _with_scale,
        "compressed-tensors INT8", "int8-w8a8"),
    "CompressedTensorsWNA16MoEMethod": Recipe(
        _COMPRESSED + "wna16", "select_wna16_moe_backend", _packed_scheme, _packed_tensors,
        "compressed-tensors INT4 and INT8 groups", "int4-w4a16-g*, int8-w8a16-g*, also -asym"),
    "CompressedTensorsW8A8Fp8MoEMethod": Recipe(
        _COMPRESSED + "w8a8_fp8", "select_fp8_moe_backend", _compressed_fp8_scheme, _compressed_fp8_tensors,
        "compressed-tensors FP8", "fp8-w8a8-channel, fp8-w8a8-block*"),
    "CompressedTensorsW8A8Mxfp8MoEMethod": Recipe(
        _COMPRESSED + "w8a8_mxfp8", "select_mxfp8_moe_backend", _mxfp8_scheme, _with_scale,
        "compressed-tensors MXFP8", "mxfp8-w8a8"),
    "CompressedTensorsW4A4Mxfp4MoEMethod": Recipe(
        _COMPRESSED + "w4a4_mxfp4", "select_mxfp4_moe_backend", _always("mxfp4-w4a16"),
        lambda method, layer: both(layer, "weight_packed", "weight_scale"), "compressed-tensors MXFP4", "mxfp4-w4a16"),
    "CompressedTensorsW4A4Nvfp4MoEMethod": Recipe(
        _COMPRESSED + "w4a4_nvfp4", "select_nvfp4_moe_backend", _always("nvfp4-w4a16"),
        lambda method, layer: both(layer, "weight_packed") | _nvfp4_scales(layer, "weight_global_scale", True),
        "compressed-tensors NVFP4", "nvfp4-w4a16"),
    "Fp8MoEMethod": Recipe(
        QUANTIZATION + "fp8", "select_fp8_moe_backend", _fp8_scheme, _fp8_tensors, "FP8",
        "fp8-w8a8-block*, fp8-w8a8-channel"),
    "ModelOptFp8MoEMethod": Recipe(
        QUANTIZATION + "modelopt", "select_fp8_moe_backend", lambda method, moe: _fp8(moe, "channel", True),
        lambda method, layer: both(layer) | per_row(layer) | _inputs(method, layer), "ModelOpt FP8",
        "fp8-w8a8-channel-static"),
    "ModelOptMxFp8FusedMoE": Recipe(
        QUANTIZATION + "modelopt", "select_mxfp8_moe_backend", _mxfp8_scheme, _with_scale, "ModelOpt MXFP8",
        "mxfp8-w8a8"),
    "ModelOptNvFp4FusedMoE": Recipe(
        QUANTIZATION + "modelopt", "select_nvfp4_moe_backend", _always("nvfp4-w4a16"),
        lambda method, layer: both(layer) | _nvfp4_scales(layer, "weight_scale_2", False), "ModelOpt NVFP4",
        "nvfp4-w4a16"),
    "GptOssMxfp4MoEMethod": Recipe(
        QUANTIZATION + "mxfp4", "select_mxfp4_moe_backend", _always("mxfp4-w4a16"), _with_scale, "GPT-OSS MXFP4",
        "mxfp4-w4a16"),
}


def table():
    """Rows of docs/python/vllm.md: python -m moracle.integrations.vllm.schemes prints them."""
    return [f"| `{name}` | {recipe.source} | {recipe.schemes} |" for name, recipe in SCHEMES.items()]


if __name__ == "__main__":
    print("\n".join(table()))
