"""Experts implementation for transformers: register(), then experts_implementation="moracle".

Forward only. Supports plain weights, FP8 weights with scales per block or per tensor, and GPT-OSS's MXFP4 codes.
"""
import weakref

import torch

from .._moracle import Checkpoint, FusedMoe, select
from ..errors import InvalidArgument, Unsupported
from ..packed import MAX_NUM_TOKENS, PackedExperts, _open_device
from ..packed import pack as pack_tensors
from .torch import experts, handle_of, run

NAME = "moracle"


def _refuse(module, need, fact):
    place = type(module).__name__
    raise Unsupported(f"{place}: needs {need}; {fact}", "", place, need, fact)


def _candidates(module):
    """pack()'s activation functions, with their formulas on gate and up."""
    function = torch.nn.functional
    limit = getattr(module, "limit", None) or getattr(module, "swiglu_limit", None)
    alpha = getattr(module, "alpha", None) or getattr(module, "swiglu_alpha", None)
    yield {"activation": "silu"}, lambda g, u: function.silu(g) * u
    yield {"activation": "gelu"}, lambda g, u: function.gelu(g) * u
    yield {"activation": "gelu_tanh"}, lambda g, u: function.gelu(g, approximate="tanh") * u
    yield {"activation": "relu2"}, lambda g, u: function.relu(g).square() * u
    if limit:
        yield ({"activation": "silu", "limit": float(limit)},
               lambda g, u: function.silu(g.clamp(max=limit)) * u.clamp(-limit, limit))
    if limit and alpha:
        yield ({"activation": "swigluoai", "alpha": float(alpha), "limit": float(limit)},
               lambda g, u: g.clamp(max=limit) * torch.sigmoid(g.clamp(max=limit) * alpha) * (u.clamp(-limit, limit) + 1))


def _activation(module, interleaved):
    """The module's activation function, identified by its results: modules may define their own gate."""
    gate, up = torch.linspace(-20, 20, 64).repeat(8), torch.linspace(-20, 20, 8).repeat_interleave(64)
    both = torch.stack([gate, up], -1).flatten() if interleaved else torch.cat([gate, up])
    with torch.no_grad():
        result = module._apply_gate(both[None].float())[0].float()
        for arguments, formula in _candidates(module):
            if torch.allclose(result, formula(gate, up), rtol=1e-5, atol=1e-5):
                return arguments
    _refuse(module, "a known activation function", f"its gate is {type(module)._apply_gate.__qualname__}")


def _scheme(module, block_size):
    if getattr(module, "activation_scheme", "dynamic") != "dynamic":
        _refuse(module, "dynamic activation scales", "its activation_scheme is static")
    return "fp8-w8a8-tensor" if block_size is None else f"fp8-w8a8-block{block_size[0]}x{block_size[1]}"


def _pack(module, top_k):
    """Packs the tensors of an experts module of transformers, or of Mxfp4Experts."""
    if hasattr(module, "gate_up_proj_blocks"):
        return pack_tensors(top_k=top_k, **module.arguments())
    if not module.has_gate:
        _refuse(module, "experts with a gate", "it has none")
    if getattr(module, "has_post_expert_norm", False):
        _refuse(module, "experts without a norm after them", "it has a norm")
    interleaved = not getattr(module, "is_concatenated", True)
    arguments = _activation(module, interleaved)
    w1, w2 = module.gate_up_proj.detach(), module.down_proj.detach()
    if getattr(module, "is_transposed", False):
        w1, w2 = w1.transpose(1, 2).contiguous(), w2.transpose(1, 2).contiguous()
    if module.has_bias:
        arguments |= {"w1_bias": module.gate_up_proj_bias.detach(), "w2_bias": module.down_proj_bias.detach()}
    if hasattr(module, "gate_up_proj_scale_inv"):
        if w1.dtype != torch.float8_e4m3fn:
            _refuse(module, "fp8 weights", f"they are {w1.dtype}")
        arguments |= {"scheme": _scheme(module, module.block_size), "w1_scale": module.gate_up_proj_scale_inv.detach(),
                      "w2_scale": module.down_proj_scale_inv.detach()}
    return pack_tensors(w1, w2, top_k=top_k, interleaved=interleaved, **arguments)


def _weights(module):
    """Large tensors of an experts module; empty for other modules."""
    if hasattr(module, "gate_up_proj_blocks"):
        return module.weights()
    return [module.gate_up_proj, module.down_proj] if hasattr(module, "gate_up_proj") and hasattr(module, "has_gate") else []


class _State:
    """State of a module: its packed experts, and the weights that they were packed from."""

    def __init__(self, module, top_k, packed=None):
        self.packed = packed or _pack(module, top_k)
        self.handle = handle_of(self.packed)
        self.top_k = top_k
        self.remember(module)

    def remember(self, module):
        weights = {id(weight) for weight in _weights(module)}
        self.came_from = [(name, weakref.ref(weight), weight._version) for name, weight in module._parameters.items()
                          if id(weight) in weights]

    def is_of(self, module, top_k):
        parameters = module._parameters  # ten times faster than getattr of a module
        for name, weight, version in self.came_from:
            if parameters.get(name) is not weight() or weight()._version != version:
                return False
        return self.top_k == top_k

    def __deepcopy__(self, memo):
        return None  # the copy packs its own weights


def _ensure_packed(module, top_k):
    state = module.__dict__.get("_moracle_state")
    if state is None or not state.is_of(module, top_k):
        module.__dict__["_moracle_state"] = state = _State(module, top_k)
        module.__dict__["_moracle_handle"] = state.handle
    return state


def experts_forward(self, hidden_states, top_k_index, top_k_weights):
    """The forward function of an experts module: packs its weights once, then runs the custom operator."""
    if not torch.compiler.is_compiling():
        state = _ensure_packed(self, top_k_index.shape[-1])
        return run(state.packed, state.handle, hidden_states, top_k_weights, top_k_index)
    if "_moracle_handle" not in self.__dict__:
        raise RuntimeError("the experts are not packed yet: run the model once, or call "
                           "moracle.integrations.transformers.pack(model), before torch.compile")
    return experts(hidden_states, top_k_weights, top_k_index, self._moracle_handle)


def register():
    """Registers "moracle" as an experts implementation of transformers.

    model = AutoModelForCausalLM.from_pretrained(folder, experts_implementation="moracle")
    """
    from transformers import __version__, modeling_utils
    interface = getattr(modeling_utils, "ALL_EXPERTS_FUNCTIONS", None)
    if interface is None:
        need, fact = "a version whose models accept registered experts implementations: 5.7 or later", f"it is {__version__}"
        raise Unsupported(f"transformers: needs {need}; {fact}", "", "transformers", need, fact)
    interface.register(NAME, experts_forward)
    modeling_utils.ALL_FP8_EXPERTS_FUNCTIONS.register(NAME, experts_forward)
    from transformers.quantizers import auto

    from .transformers_mxfp4 import quantizer
    auto.AUTO_QUANTIZER_MAPPING["mxfp4"] = quantizer(experts_forward)


def _from_checkpoint(modules, checkpoint, hidden_size):
    """Packs the experts of all layers from the codes that a checkpoint stores. Yields one PackedExperts a layer."""
    opened = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
    layers = opened.moe_layers
    if len(layers) != len(modules):
        need, fact = f"{len(modules)} layers with experts, as the model", f"it has {len(layers)}"
        raise InvalidArgument(f"checkpoint: needs {need}; {fact}", "", "checkpoint", need, fact)
    for layer, module in zip(layers, modules):
        weights, first = opened.moe_layer(layer), _weights(module)[0]
        if (weights.spec.num_experts, weights.spec.hidden_size) != (first.shape[0], hidden_size):
            need, fact = f"{first.shape[0]} experts of {hidden_size} columns, as the model", f"layer {layer} has {weights.spec}"
            raise InvalidArgument(f"checkpoint: needs {need}; {fact}", "", "checkpoint", need, fact)
        device = _open_device(None, first)
        selection = select(weights, device=device.name, max_num_tokens=MAX_NUM_TOKENS[device.platform])
        yield PackedExperts(FusedMoe(weights, selection, device), selection)


def pack(model, drop=False, checkpoint=None):
    """Packs the experts of all layers now instead of in the first forward.

    drop=True frees the original weights, so that memory holds one copy. The model then can neither be saved nor use
    another experts implementation. `checkpoint`: a folder or a Checkpoint; packs its experts as they are stored, where
    transformers' loader has dequantized them. Returns the number of layers.
    """
    config = model.config.get_text_config()
    top_k = getattr(config, "num_experts_per_tok", None) or config.top_k_experts
    modules = [module for module in model.modules() if _weights(module)]
    stored = _from_checkpoint(modules, checkpoint, config.hidden_size) if checkpoint is not None else None
    for module in modules:
        if stored is None:
            state = _ensure_packed(module, top_k)
        else:
            module.__dict__["_moracle_state"] = state = _State(module, top_k, next(stored))
            module.__dict__["_moracle_handle"] = state.handle
        if drop:
            for weight in _weights(module):
                device = weight.device
                weight.data = torch.empty(0, dtype=weight.dtype, device=device)
            state.remember(module)
            if device.type == "cuda":
                torch.cuda.empty_cache()  # return torch's cached memory: packed weights are not allocated by torch
    return len(modules)
