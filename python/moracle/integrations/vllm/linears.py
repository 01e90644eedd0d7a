"""Quantized linear layers on CPUs without AMX, where vLLM refuses most of their formats: Moracle runs them."""
import torch
from vllm.config import get_current_vllm_config
from vllm.platforms import current_platform

from ..._moracle import LayerSpec, select
from ...errors import Error, Unsupported
from ...linears import pack_linear
from ...packed import MAX_NUM_TOKENS
from ..stored import Declined
from .cpus import cpu_device
from ..front import in_front, left_out
from .layers import free, group_of, log_declined
from .linear_schemes import LINEARS
from .operator import linear, name_of

# The method of compressed-tensors; the layer's scheme is its form.
_COMPRESSED = "CompressedTensorsLinearMethod"
# Parameters that packing replaces.
_WEIGHTS = ("weight", "weight_scale", "weight_scale_inv", "weight_packed", "weight_zero_point", "qweight", "qzeros", "scales")


def are_served():
    """True on a CPU without AMX, where vLLM refuses quantized linear layers or runs them slower."""
    return current_platform.is_cpu() and not torch.cpu._is_amx_tile_supported()


def _selection(form, inputs, outputs):
    """The oracle's choice for a form of vLLM. Raises Declined, also where only the reference row serves."""
    recipe = LINEARS.get(type(form).__name__)
    if recipe is None:
        raise Declined(f"needs a scheme of the plugin's table; vLLM's class is {type(form).__name__}")
    try:
        spec = LayerSpec.linear(input_size=inputs, output_size=outputs, scheme=recipe.scheme(form))
        selection = select(spec, device="cpu")
        selection.check()
    except Error as error:
        raise Declined(str(error)) from error
    if selection.backend.endswith("reference"):
        raise Declined("only the reference row serves " + str(spec))
    return selection


class _Served:
    """In front of a linear method class of vLLM, which keeps its name: vLLM's loader tests it."""

    supports_pre_processed_weights = False

    def create_weights(self, layer, input_size_per_partition, output_partition_sizes, *args, **kwargs):
        form = layer.scheme if type(self).__name__ == _COMPRESSED else self
        outputs = sum(output_partition_sizes)
        try:
            selection = _selection(form, input_size_per_partition, outputs)
        except Declined as reason:
            log_declined(layer.prefix, reason)
            self.__class__ = self._own
            self.create_weights(layer, input_size_per_partition, output_partition_sizes, *args, **kwargs)
            return
        recipe = LINEARS[type(form).__name__]
        with left_out([(recipe.module, recipe.select, recipe.chosen)]):
            self._own.create_weights(self, layer, input_size_per_partition, output_partition_sizes, *args, **kwargs)
        self._form, self._outputs, self._packed = form, outputs, None
        self._max_num_tokens = min(get_current_vllm_config().scheduler_config.max_num_batched_tokens, MAX_NUM_TOKENS["cpu"])
        self._group = group_of(f"linear {selection.layer.scheme.name} {selection.backend}", "linear layer")
        self._group.add(layer.prefix)

    def process_weights_after_loading(self, layer):
        weights = [weight for name, weight in layer.named_parameters(recurse=False) if name in _WEIGHTS]
        if not any(weight.numel() for weight in weights):
            need, fact = "a new engine for new weights", "the layer freed its weights after packing"
            raise Unsupported(f"{layer.prefix}: needs {need}; {fact}", "", layer.prefix, need, fact)
        recipe = LINEARS[type(self._form).__name__]
        self._packed = pack_linear(scheme=recipe.scheme(self._form), device=cpu_device(), max_num_tokens=self._max_num_tokens,
                                   **recipe.tensors(self._form, layer))
        if not getattr(layer, "_cpu_skip_gemm_dispatch", False):  # MLA reads the weights of such a layer
            free(weights)
        self._name = name_of(self._packed, layer.prefix)
        self._group.log(self._packed.selection, self._packed.linear)

    def apply(self, layer, x, bias=None):
        output = linear(x, self._outputs, self._name)
        return output if bias is None else output.add_(bias)


def linear_method_of(method):
    """Makes Moracle serve a linear method of vLLM; returns others as they are."""
    name = type(method).__name__
    if are_served() and (name in LINEARS or name == _COMPRESSED) and not hasattr(method, "_own"):
        method.__class__ = in_front(_Served, type(method))
    return method
