"""Reads tensors with the producers' own libraries: the independent reference of our golden files.

weights(config) gives f(tensors, module) -> float32 [N, K], and experts(config) gives the same for a tensor
that holds all experts, [E, K, N]. Scales are widened to float32 before the library multiplies with them, so
that its rounding to 16 bits is no part of the answer.

    pip install torch safetensors compressed-tensors transformers nvidia-modelopt auto-round
    BUILD_CUDA_EXT=0 pip install --no-build-isolation gptqmodel
"""
import unittest.mock

import torch


def local(tensors, module):
    """The tensors of one module by their last names, float scales widened."""
    own = {name[len(module) + 1:]: t for name, t in tensors.items() if name.startswith(module + ".")}
    return {name: t.float() if "scale" in name and t.is_floating_point() else t for name, t in own.items()}


def plain(_):
    return lambda tensors, module: tensors[module + ".weight"].float()


def compressed_tensors(config):
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme

    scheme = QuantizationScheme.model_validate(config["config_groups"]["group_0"])
    compressor = BaseCompressor.get_value_from_registry(config["format"])
    return lambda tensors, module: compressor.decompress(local(tensors, module), scheme)["weight"]


def gptq(config):
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.utils.model import convert_gptq_v1_to_v2_format_module

    def dequantize(tensors, module):
        own = local(tensors, module)
        linear = TorchLinear(bits=config["bits"], group_size=config["group_size"], sym=config["sym"],
                             desc_act=config["desc_act"], in_features=len(own["g_idx"]),
                             out_features=own["qweight"].shape[1])
        for name, t in own.items():
            setattr(linear, name, t.clone())
        linear.post_init()
        if config["checkpoint_format"] == "gptq":
            convert_gptq_v1_to_v2_format_module(linear, config["bits"], torch.int32)
        return linear.dequantize_weight().T

    return dequantize


def awq(config):
    from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm

    def dequantize(tensors, module):
        own = local(tensors, module)
        return dequantize_gemm(own["qweight"], own["qzeros"], own["scales"], config["bits"], config["group_size"]).T

    return dequantize


def auto_round(config):
    from auto_round_extension.torch import qlinear_torch, qlinear_torch_zp

    kernel = {"auto_round": qlinear_torch, "auto_round:auto_gptq": qlinear_torch_zp}[config["packing_format"]]

    def dequantize(tensors, module):
        own = local(tensors, module)
        options = {**config, **config["extra_config"].get(module, {})}
        columns = len(own["qweight"]) * 32 // options["bits"]
        linear = kernel.QuantLinear(options["bits"], options["group_size"], columns, own["qweight"].shape[1], False)
        for name, t in own.items():
            setattr(linear, name, t.clone())
        # forward() dequantizes and multiplies: replace the product, which would turn -0 (from negative scales) into
        # 0.
        with unittest.mock.patch("torch.matmul", lambda _, dequantized: dequantized):
            return linear(torch.eye(columns)).T.contiguous()

    return dequantize


def fp8(_):
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    return lambda tensors, module: Fp8Dequantize(None).convert(local(tensors, module))["weight"]


def modelopt(config):
    assert config["quant_algo"] == "MXFP8"
    from modelopt.torch.quantization.qtensor import MXFP8QTensor

    def dequantize(tensors, module):
        own = local(tensors, module)
        return MXFP8QTensor(own["weight"].shape, torch.float32, own["weight"]).dequantize(scale=own["weight_scale"])

    return dequantize


def plain_experts(_):
    return lambda tensors, module: tensors[module].float()


def mxfp4_experts(_):
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    return lambda tensors, module: convert_moe_packed_tensors(
        tensors[module + "_blocks"], tensors[module + "_scales"], dtype=torch.float32)


def weights(config):
    producers = {"compressed-tensors": compressed_tensors, "gptq": gptq, "awq": awq, "fp8": fp8, "modelopt": modelopt,
                 "auto-round": auto_round}
    return producers[config["quant_method"]](config) if config else plain(config)


def experts(config):
    return {"mxfp4": mxfp4_experts}[config["quant_method"]](config) if config else plain_experts(config)
