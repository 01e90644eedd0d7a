"""The operator that vLLM's layers call: packed experts by the name of their layer.

Compiled code outlives a process in vLLM's cache. A name stays right where a handle of the process would not.
"""
import weakref

import torch

from ..torch import call_packed, fake_output, library

_layers = weakref.WeakValueDictionary()  # name: PackedExperts


def name_of(packed, layer):
    """Registers packed experts. Returns the layer's name, with a number if another live layer has it."""
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
