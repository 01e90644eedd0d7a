"""The schemes of vLLM's linear methods: how Moracle names each, and the tensors that the method loads.

A "form" is the object that creates a layer's tensors: the method, or for compressed-tensors the layer's scheme.
"""
import dataclasses
from collections.abc import Callable

import torch

from ..stored import Declined, group_name
from .schemes import COMPRESSED_SCHEMES, QUANTIZATION


class NoKernel:
    """In place of vLLM's kernels for quantized linear layers, which are not called."""

    def __init__(self, *_, **__):
        pass

    def input_quant_key(self):
        return None


@dataclasses.dataclass
class LinearRecipe:
    """One form of vLLM."""
    module: str  # of the class
    select: str  # the module's function that chooses vLLM's kernel
    chosen: Callable | type  # what the function returns in this plugin
    scheme: Callable  # (form): name of the scheme
    tensors: Callable  # (form, layer): arguments of moracle.pack_linear
    source: str  # for the docs: producer and format
    schemes: str  # for the docs: Moracle's names


def _arguments(layer, weight="weight", scale="weight_scale", zero_points=None):
    arguments = {"weight": getattr(layer, weight).data, "scale": getattr(layer, scale).data}
    return arguments | ({"zp": getattr(layer, zero_points).data} if zero_points else {})


def _per_row(layer):
    """Scales per tensor as scales per row: the layers that vLLM fuses (q, k and v) may have one each."""
    scales = layer.weight_scale.data.float().flatten()
    unset = scales == torch.finfo(torch.float32).min  # of layers that the file stores fused
    scales = torch.where(unset, scales.max(), scales)
    widths = torch.tensor(layer.logical_widths)
    if len(scales) != len(widths):
        scales = scales.max().expand(len(widths))
    return {"weight": layer.weight.data, "scale": scales.repeat_interleave(widths)}


def _block(shape):
    return "fp8-w8a16-block{}x{}".format(*shape)


def _fp8_tensors(form, layer):
    return _arguments(layer, scale="weight_scale_inv") if form.block_quant else _per_row(layer)


def _compressed_fp8_scheme(form):
    return _block(form.weight_block_size) if form.weight_block_size is not None else "fp8-w8a16-channel"


def _compressed_fp8_tensors(form, layer):
    return _per_row(layer) if form.strategy == "tensor" else _arguments(layer)


def _int8_scheme(form):
    if form.is_static_input_scheme or not form.input_symmetric:
        raise Declined("needs dynamic, symmetric activation scales; they are static or asymmetric")
    return "int8-w8a8"


def _int8_tensors(form, layer):
    return _per_row(layer) if form.strategy == "tensor" else _arguments(layer)


def _packed_scheme(form):
    asymmetric = "" if form.symmetric else "-asym"
    return f"int{form.num_bits}-w{form.num_bits}a16-{group_name(form.group_size)}{asymmetric}"


def _packed_tensors(form, layer):
    return _arguments(layer, "weight_packed", zero_points=None if form.symmetric else "weight_zero_point")


def _gptq_scheme(form):
    config = form.quant_config
    return f"int{config.weight_bits}-w{config.weight_bits}a16-{group_name(config.group_size)}"


def _awq_scheme(form):
    config = form.quant_config
    return f"int4-w4a16-{group_name(config.group_size)}{'-asym' if config.zero_point else ''}"


def _awq_tensors(form, layer):
    zero_points = "qzeros" if form.quant_config.zero_point else None
    return _arguments(layer, "qweight", "scales", zero_points) | {"packing": "awq"}


def _modelopt_scheme(form):
    names = {"KFp8StaticTensor": "fp8-w8a16-channel", "KFp8StaticChannel": "fp8-w8a16-channel",
             "KMxfp8Static": "mxfp8-w8a16"}
    found = type(form.wkey).__name__
    if found not in names:
        raise Declined(f"needs ModelOpt's FP8 or MXFP8; vLLM's class is {found}")
    return names[found]


def _modelopt_tensors(form, layer):
    return _per_row(layer) if type(form.wkey).__name__ == "KFp8StaticTensor" else _arguments(layer)


def _no_kernel(*_, **__):
    return NoKernel()


def _no_class(*_, **__):
    return NoKernel


# By the name of vLLM's class.
LINEARS = {
    "Fp8LinearMethod": LinearRecipe(
        QUANTIZATION + "fp8", "init_fp8_linear_kernel", _no_kernel,
        lambda form: _block(form.weight_block_size) if form.block_quant else "fp8-w8a16-channel", _fp8_tensors, "FP8",
        "fp8-w8a16-block*, fp8-w8a16-channel"),
    "CompressedTensorsW8A8Fp8": LinearRecipe(
        COMPRESSED_SCHEMES + "w8a8_fp8", "init_fp8_linear_kernel", _no_kernel, _compressed_fp8_scheme,
        _compressed_fp8_tensors, "compressed-tensors FP8", "fp8-w8a16-channel, fp8-w8a16-block*"),
    "CompressedTensorsW8A8Int8": LinearRecipe(
        COMPRESSED_SCHEMES + "w8a8_int8", "init_int8_linear_kernel", _no_kernel, _int8_scheme, _int8_tensors,
        "compressed-tensors INT8", "int8-w8a8"),
    "CompressedTensorsW8A8Mxfp8": LinearRecipe(
        COMPRESSED_SCHEMES + "w8a8_mxfp8", "init_mxfp8_linear_kernel", _no_kernel, lambda form: "mxfp8-w8a16",
        lambda form, layer: _arguments(layer), "compressed-tensors MXFP8", "mxfp8-w8a16"),
    "CompressedTensorsWNA16": LinearRecipe(
        COMPRESSED_SCHEMES + "wNa16", "choose_mp_linear_kernel", _no_class, _packed_scheme, _packed_tensors,
        "compressed-tensors INT4 and INT8 groups", "int4-w4a16-g*, int8-w8a16-g*, also -asym"),
    "AutoGPTQLinearMethod": LinearRecipe(
        QUANTIZATION + "auto_gptq", "choose_mp_linear_kernel", _no_class, _gptq_scheme,
        lambda form, layer: _arguments(layer, "qweight", "scales") | {"packing": "gptq"}, "GPTQ, symmetric",
        "int4-w4a16-g*, int8-w8a16-g*"),
    "AutoAWQMarlinLinearMethod": LinearRecipe(
        QUANTIZATION + "auto_awq", "choose_mp_linear_kernel", _no_class, _awq_scheme, _awq_tensors, "AWQ",
        "int4-w4a16-g*-asym"),
    "ModelOptLinearMethod": LinearRecipe(
        QUANTIZATION + "modelopt", "select_linear_kernel", _no_kernel, _modelopt_scheme, _modelopt_tensors,
        "ModelOpt FP8, MXFP8", "fp8-w8a16-channel, mxfp8-w8a16"),
}


def table():
    """Rows of docs/python/vllm.md: python -m moracle.integrations.vllm.linear_schemes prints them."""
    return [f"| `{name}` | {recipe.source} | {recipe.schemes} |" for name, recipe in LINEARS.items()]


if __name__ == "__main__":
    print("\n".join(table()))
