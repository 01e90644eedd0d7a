"""The method of a MoE layer that Moracle serves: SGLang's own class creates and loads the weights, Moracle runs them."""
import logging

import torch
from sglang.srt.arg_groups.choices import add_moe_runner_backend_choices
from sglang.srt.layers.moe.moe_runner.runner import MoeRunner, register_moe_runner_core
from sglang.srt.layers.moe.utils import get_moe_runner_backend, resolve_moe_runner_backend
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from ..._moracle import explain
from ...errors import Unsupported
from ...packed import MAX_NUM_TOKENS, pack
from ..front import in_front
from ..stored import Declined
from . import NAME
from .runner import MoracleRunnerCore, PackedInfo
from .schemes import METHODS, SCHEMES, activation_of

logger = logging.getLogger("sglang.moracle")
_logged = set()  # texts of choices, each logged once


def _form(method, layer):
    """The object whose class names the layer's scheme."""
    return method if type(method).__name__ in SCHEMES else getattr(layer, "scheme", None)


def _refuse(layer, reason):
    place = f"layer {layer.layer_id}"
    need = "experts that Moracle serves, because moe_runner_backend is moracle"
    raise Unsupported(f"{place}: needs {need}; {reason}", "", place, need, str(reason))


class _Served:
    """In front of a method class of SGLang, which keeps its name."""

    def create_moe_runner(self, layer, moe_runner_config, **_):
        if moe_runner_config.no_combine:
            _refuse(layer, "no_combine is set")
        try:
            self._activation = activation_of(moe_runner_config)
        except Declined as reason:
            _refuse(layer, reason)
        self.moe_runner_config = moe_runner_config
        self.runner = MoeRunner(resolve_moe_runner_backend(NAME), moe_runner_config)
        self._packed = None

    def get_moe_runner_backend(self, layer):
        return self.runner.runner_backend

    def process_weights_after_loading(self, layer):
        form, config = _form(self, layer), self.moe_runner_config
        if self._packed is not None:
            _refuse(layer, "the layer freed its weights after packing: new weights need a new engine")
        recipe = SCHEMES[type(form).__name__]
        try:
            arguments = recipe.tensors(form, layer) | {"scheme": recipe.scheme(form, layer)}
        except Declined as reason:
            _refuse(layer, reason)
        kind = arguments["w1"].device.type
        self._packed = pack(top_k=config.top_k, apply_router_weight_on_input=config.apply_router_weight_on_input,
                            max_num_tokens=MAX_NUM_TOKENS[kind], **self._activation, **arguments)
        for name, weight in list(layer.named_parameters(recurse=False)):
            if name.startswith(("w13_", "w2_")):  # the parameters stay, without elements
                weight.data = torch.empty(0, dtype=weight.dtype, device=weight.device)
        dispatcher = getattr(layer, "dispatcher", None)
        if dispatcher is not None:
            dispatcher.set_quant_config({"dispatcher_output_dtype": "bf16"})
        choice = (f"{self._packed.moe.spec.scheme.name}, "
                  f"{explain(self._packed.selection, False).splitlines()[0].removeprefix('→ ')}")
        if choice not in _logged:
            _logged.add(choice)
            logger.info("moracle serves the experts of layer %s and of layers like it: %s; %.1f MiB packed a layer",
                        layer.layer_id, choice, self._packed.moe.weight_bytes / 2**20)

    def apply(self, layer, dispatch_output):
        return self.runner.run(dispatch_output, PackedInfo(self._packed))


def _create_weights(create, self, layer, *args, **kwargs):
    """Around create_weights of every method class: the first call with the option makes Moracle serve the method."""
    create(self, layer, *args, **kwargs)
    if get_moe_runner_backend().value != NAME or hasattr(self, "_own"):
        return
    form = _form(self, layer)
    if type(form).__name__ not in SCHEMES:
        _refuse(layer, f"SGLang's class is {type(form).__name__}")
    self.__class__ = in_front(_Served, type(self))


def _initialized(result, self, *args, **kwargs):
    """After the constructor of a MoE layer: refuses methods that the plugin does not follow."""
    if get_moe_runner_backend().value == NAME and not hasattr(self.quant_method, "_own"):
        _refuse(self, f"SGLang's method is {type(self.quant_method).__name__}")
    return result


def register():
    """Registers the runner core, the option's value and the hooks."""
    register_moe_runner_core(NAME, MoracleRunnerCore)
    add_moe_runner_backend_choices([NAME])
    for method in METHODS:
        HookRegistry.register(method + ".create_weights", _create_weights, HookType.AROUND)
    HookRegistry.register("sglang.srt.layers.moe.fused_moe_triton.layer.FusedMoE.__init__", _initialized, HookType.AFTER)
