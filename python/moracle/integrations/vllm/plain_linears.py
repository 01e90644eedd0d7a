"""Linear layers without quantization on CPUs without AMX: attention of bf16 checkpoints, routers, the output layer.

vLLM gives such a layer its function, `layer.cpu_linear`, in dispatch_cpu_unquantized_gemm; this function comes first. On two
cores with AVX-512 Moracle's bf16 takes 0.5 to 0.8 times as long as oneDNN's for 1 to 512 tokens.
"""
import torch
from vllm.config import get_current_vllm_config_or_none
from vllm.model_executor.layers import utils
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

from ..._moracle import LayerSpec, select
from ...errors import Error
from ...linears import pack_linear
from ...packed import MAX_NUM_TOKENS, float_scheme
from .cpus import cpu_device
from .layers import free, log_plain
from .linears import are_served
from .operator import linear, name_of

_own = utils.dispatch_cpu_unquantized_gemm


def _selection(layer):
    """The oracle's choice, or None: vLLM's own function serves the layer."""
    weight = layer.weight
    if not isinstance(layer, (LinearBase, ParallelLMHead)) or weight.is_meta or weight.ndim != 2:
        return None
    try:
        spec = LayerSpec.linear(input_size=weight.shape[1], output_size=weight.shape[0], scheme=float_scheme(weight))
        selection = select(spec, device="cpu")
        selection.check()
    except Error:
        return None
    return None if selection.backend.endswith("reference") else selection


def _install(is_active):
    """`is_active(config)`: the plugin serves a model of this config of vLLM."""
    def dispatch(layer, remove_weight):
        config = get_current_vllm_config_or_none()
        if config is None or not are_served() or not is_active(config) or _selection(layer) is None:
            return _own(layer, remove_weight)
        weight, outputs = layer.weight, layer.weight.shape[0]
        tokens = min(config.scheduler_config.max_num_batched_tokens, MAX_NUM_TOKENS["cpu"])
        layer._moracle = packed = pack_linear(weight.data, device=cpu_device(), max_num_tokens=tokens)
        name = name_of(packed, getattr(layer, "prefix", "") or type(layer).__name__)

        def apply(x, _, bias):
            output = linear(x, outputs, name)
            return output if bias is None else output.add_(bias)

        layer.cpu_linear = apply
        if remove_weight:
            free([weight])
        log_plain(name, packed, config)
    utils.dispatch_cpu_unquantized_gemm = dispatch


def install(is_active):
    """Puts the function in front of vLLM's, once."""
    if utils.dispatch_cpu_unquantized_gemm is _own:
        _install(is_active)
