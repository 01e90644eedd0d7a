"""The method of a MoE layer that Moracle serves: vLLM's own class creates and loads the weights, Moracle runs them."""
import weakref

import torch
from vllm.config import get_current_vllm_config_or_none
from vllm.model_executor.custom_op import op_registry_oot
from vllm.model_executor.layers.fused_moe import UnquantizedFusedMoEMethod

from ..._moracle import LayerSpec, select
from ...errors import Error, Unsupported
from ...packed import MAX_NUM_TOKENS, pack
from . import mode
from ..stored import Declined
from .cpus import cpu_device
from ..front import in_front, left_out
from .layers import free, group_of, log_declined
from .operator import experts, name_of
from .schemes import SCHEMES, activation_of


def _kernels_left_out():
    """Within it vLLM's methods choose no kernels: on a CPU without AMX the choice would fail."""
    return left_out((recipe.module, recipe.select, lambda *_, **__: (None, None)) for recipe in SCHEMES.values())


def _decline_unserved(moe):
    """Raises Declined for what no scheme of the plugin serves."""
    parallel = moe.moe_parallel_config
    for declined, need, fact in (
            (moe.is_lora_enabled, "experts without LoRA", "LoRA is enabled"),
            (parallel.enable_eplb, "a fixed place of experts", "EPLB is enabled"),
            (parallel.dp_size > 1, "data_parallel_size 1", f"it is {parallel.dp_size}"),
            (parallel.is_sequence_parallel, "all tokens on every rank", "sequence parallelism is on"),
            (moe.moe_backend not in ("auto", None), "moe_backend auto", f"it is {moe.moe_backend}"),
            (moe.hidden_dim != moe.hidden_dim_unpadded, "sizes without padding", f"hidden_dim is {moe.hidden_dim}"),
            (torch.device(moe.device).type not in MAX_NUM_TOKENS, "cpu or cuda", f"the device is {moe.device}")):
        if declined:
            raise Declined(f"needs {need}; {fact}")


def _device_name(moe):
    device = torch.device(moe.device)
    return "cpu" if device.type == "cpu" else f"cuda:{torch.cuda.current_device()}"


def _selection(method, moe):
    """The oracle's choice for a method of vLLM. Raises Declined, also where only the reference row serves."""
    recipe = SCHEMES.get(type(method).__name__)
    if recipe is None:
        raise Declined(f"needs a scheme of the plugin's table; vLLM's method is {type(method).__name__}")
    _decline_unserved(moe)
    activation = activation_of(moe)
    activation["activation"] = activation["activation"].removesuffix("_uninterleave")
    try:
        spec = LayerSpec(num_experts=moe.num_experts, hidden_size=moe.hidden_dim,
                         intermediate_size=moe.intermediate_size_per_partition, top_k=moe.experts_per_token,
                         scheme=recipe.scheme(method, moe), bias=moe.has_bias, **activation)
        selection = select(spec, device=_device_name(moe))
        selection.check()
    except Error as error:
        raise Declined(str(error)) from error
    if selection.backend.endswith("reference"):
        raise Declined("only the reference row serves " + str(spec))
    return selection


class _Served:
    """In front of a method class of vLLM, which keeps its name: vLLM's loader tests it."""

    is_monolithic = False
    supports_eplb = False
    supports_pre_processed_weights = False
    topk_indices_dtype = torch.int32
    skip_forward_padding = False
    has_unpadded_output = False

    def maybe_roundup_sizes(self, hidden_size, intermediate_size_per_partition, act_dtype, moe_parallel_config):
        return hidden_size, intermediate_size_per_partition

    def get_fused_moe_quant_config(self, layer):
        return None

    def create_weights(self, layer, *args, **kwargs):
        self._own.create_weights(self, layer, *args, **kwargs)
        self._packed = None
        self._group = group_of(str(self._selection.layer))
        self._group.add(layer.layer_name)

    def process_weights_after_loading(self, layer):
        recipe = SCHEMES[type(self).__name__]
        if not any(weight.numel() for weight in self._weights(layer)):
            need, fact = "a new engine for new weights", "the layer freed its weights after packing"
            raise Unsupported(f"{layer.layer_name}: needs {need}; {fact}", "", layer.layer_name, need, fact)
        device = _device_name(self.moe)
        self._packed = pack(
            top_k=self.moe.experts_per_token, scheme=recipe.scheme(self, self.moe), expert_map=layer._expert_map,
            apply_router_weight_on_input=layer.apply_router_weight_on_input,
            device=cpu_device() if device == "cpu" else device,
            max_num_tokens=min(self.moe.max_num_tokens, MAX_NUM_TOKENS[device.partition(":")[0]]),
            **activation_of(self.moe), **recipe.tensors(self, layer))
        free(self._weights(layer))
        self._name = name_of(self._packed, layer.layer_name)
        self._group.log(self._packed.selection, self._packed.moe)

    @staticmethod
    def _weights(layer):
        return [weight for name, weight in layer.named_parameters(recurse=False) if name.startswith(("w13_", "w2_"))]

    def apply(self, layer, x, topk_weights, topk_ids, shared_experts, shared_experts_input):
        return experts(x, topk_weights, topk_ids, self._name)


_models = []  # weak references to vLLM's configs of models with served experts


def serves_experts_of(config):
    """True if Moracle runs experts of the model of this config of vLLM."""
    return any(model() is config for model in _models)


def _served(method, moe):
    """Makes Moracle serve a method of vLLM. Raises Declined."""
    method._selection = _selection(method, moe)
    method.__class__ = in_front(_Served, type(method))
    config = get_current_vllm_config_or_none()
    if config is not None and not serves_experts_of(config):
        _models.append(weakref.ref(config, _models.remove))
    return method


def _decline(name, reason):
    if mode() == "require":
        need, fact = "experts that Moracle serves, because MORACLE_VLLM is require", str(reason)
        raise Unsupported(f"{name}: needs {need}; {fact}", "", name, need, fact)
    log_declined(name, reason)


def method_of(make, layer):
    """The method of a MoE layer. `make`: vLLM's own choice."""
    try:
        with _kernels_left_out():
            method = make()
        return method if hasattr(method, "_own") else _served(method, layer.moe_config)
    except Declined as reason:
        _decline(layer.layer_name, reason)
    return make()


class Unquantized(UnquantizedFusedMoEMethod):
    """In place of vLLM's class where no quantization config is asked: becomes one of _Served, or vLLM's own."""

    def __init__(self, moe):
        own = UnquantizedFusedMoEMethod
        with _kernels_left_out():
            own.__init__(self, moe)
        self.__class__ = own
        try:
            _served(self, moe)
        except Declined as reason:
            _decline("experts without quantization", reason)
            own.__init__(self, moe)

    @classmethod
    def register(cls):
        if UnquantizedFusedMoEMethod.__name__ not in op_registry_oot:
            UnquantizedFusedMoEMethod.register_oot(cls)
