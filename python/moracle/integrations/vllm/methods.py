"""The method of a MoE layer that Moracle serves: vLLM's own class creates and loads the weights, Moracle runs them."""
import contextlib
import importlib

import torch
from vllm.logger import init_logger
from vllm.model_executor.custom_op import op_registry_oot
from vllm.model_executor.layers.fused_moe import UnquantizedFusedMoEMethod

from ..._moracle import LayerSpec, explain, select
from ...errors import Error, Unsupported
from ...packed import MAX_NUM_TOKENS, pack
from . import mode
from .cpus import cpu_device
from .front import in_front
from .operator import experts, name_of
from .schemes import SCHEMES, Declined, activation_of

logger = init_logger("vllm.moracle")


@contextlib.contextmanager
def _kernels_left_out():
    """Within it vLLM's methods choose no kernels: on a CPU without AMX the choice would fail."""
    kept = []
    for recipe in SCHEMES.values():
        module = importlib.import_module(recipe.module)
        kept.append((module, recipe.select, getattr(module, recipe.select)))
    try:
        for module, name, _ in kept:
            setattr(module, name, lambda *_, **__: (None, None))
        yield
    finally:
        for module, name, function in kept:
            setattr(module, name, function)


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


class _Group:
    """Layers with the same choice. The last of them to be packed logs one line."""

    def __init__(self):
        self.layers, self.packed = [], 0

    def add(self, name):
        self.layers.append(name)

    def log(self, packed):
        self.packed += 1
        if self.packed < len(self.layers):
            return
        span = self.layers[0] if len(self.layers) == 1 else f"{self.layers[0]} to {self.layers[-1]}"
        count = f"{len(self.layers)} layer{'s' if len(self.layers) > 1 else ''}"
        logger.info("moracle serves %s (%s): %s, %s; %.1f MiB packed", span, count,
                    packed.moe.spec.scheme.name, explain(packed.selection, False).splitlines()[0].removeprefix("→ "),
                    len(self.layers) * packed.moe.weight_bytes / 2**20)
        self.layers, self.packed = [], 0


_groups = {}  # text of a choice: _Group
_declined = set()  # reasons, each logged once


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
        self._group = _groups.setdefault(str(self._selection.layer), _Group())
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
        for weight in self._weights(layer):  # the parameters stay, without elements
            weight.data = torch.empty(0, dtype=weight.dtype, device=weight.device)
        self._name = name_of(self._packed, layer.layer_name)
        self._group.log(self._packed)

    @staticmethod
    def _weights(layer):
        return [weight for name, weight in layer.named_parameters(recurse=False) if name.startswith(("w13_", "w2_"))]

    def apply(self, layer, x, topk_weights, topk_ids, shared_experts, shared_experts_input):
        return experts(x, topk_weights, topk_ids, self._name)


def _served(method, moe):
    """Makes Moracle serve a method of vLLM. Raises Declined."""
    method._selection = _selection(method, moe)
    method.__class__ = in_front(_Served, type(method))
    return method


def _decline(name, reason):
    if mode() == "require":
        need, fact = "experts that Moracle serves, because MORACLE_VLLM is require", str(reason)
        raise Unsupported(f"{name}: needs {need}; {fact}", "", name, need, fact)
    if str(reason) not in _declined:
        _declined.add(str(reason))
        logger.warning("moracle declines %s: %s; vLLM's own method serves such layers", name, reason)


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
