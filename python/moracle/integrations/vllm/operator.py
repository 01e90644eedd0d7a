"""The operators that vLLM's layers call: packed experts and linear layers by the name of their layer.

Compiled code outlives a process in vLLM's cache. A name stays right where a handle of the process would not.
"""
import weakref

import torch

from ..torch import call_linear, call_packed, fake_output, library

_layers = weakref.WeakValueDictionary()  # name: PackedExperts or PackedLinear


def name_of(packed, layer):
    """Registers a packed layer. Returns the layer's name, with a number if another live layer has it."""
    name, number = layer, 1
    while name in _layers:
        number += 1
        name = f"{layer}#{number}"
    _layers[name] = packed
    return name


def _kernel(hidden_states, topk_weights, topk_ids, layer):
    return call_packed(_layers[layer], hidden_states, topk_weights, topk_ids)


def _fake(hidden_states, topk_weights, topk_ids, layer):
    return fake_output(hidden_states, topk_weights)


library.define("layer_experts(Tensor hidden_states, Tensor topk_weights, Tensor topk_ids, str layer) -> Tensor",
               tags=(torch.Tag.pt2_compliant_tag,))
for _key in ("CPU", "CUDA"):
    library.impl("layer_experts", _kernel, _key)
torch.library.register_fake("moracle::layer_experts", _fake, lib=library)


def experts(hidden_states, topk_weights, topk_ids, layer):
    """The output of a layer's packed experts. Without torch's dispatcher while torch does not trace."""
    if torch.compiler.is_compiling():
        return torch.ops.moracle.layer_experts.default(hidden_states, topk_weights, topk_ids, layer)
    return _kernel(hidden_states, topk_weights, topk_ids, layer)


def _linear_kernel(x, outputs, layer):
    return call_linear(_layers[layer], x)


def _linear_fake(x, outputs, layer):
    return x.new_empty(*x.shape[:-1], outputs)


library.define("layer_linear(Tensor x, int outputs, str layer) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
library.impl("layer_linear", _linear_kernel, "CPU")
torch.library.register_fake("moracle::layer_linear", _linear_fake, lib=library)


def linear(x, outputs, layer):
    """The output of a packed linear layer with so many outputs. Without torch's dispatcher while torch does not trace."""
    if torch.compiler.is_compiling():
        return torch.ops.moracle.layer_linear.default(x, outputs, layer)
    return _linear_kernel(x, outputs, layer)
