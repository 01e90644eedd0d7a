"""Packed experts as a custom operator of torch, so that torch.compile goes through without a graph break."""
import itertools
import weakref

import torch

from ..errors import InvalidArgument, Unsupported

_handles = weakref.WeakValueDictionary()
_next = itertools.count()


def handle_of(packed):
    """A number that names the PackedExperts in torch.ops.moracle.experts, as long as the object lives."""
    for handle, other in _handles.items():
        if other is packed:
            return handle
    handle = next(_next)
    _handles[handle] = packed
    return handle


def _call(packed, hidden_states, topk_weights, topk_ids):
    return packed(hidden_states.contiguous(), topk_weights.contiguous(), topk_ids.contiguous())


@torch.library.custom_op("moracle::experts", mutates_args=())
def experts(hidden_states: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor, handle: int) -> torch.Tensor:
    """The output of the packed experts: hidden_states [num_tokens, hidden_size], the rest [num_tokens, top_k]."""
    packed = _handles.get(handle)
    if packed is None:
        need, fact = "a handle of packed experts that still exist", f"it is {handle}"
        raise InvalidArgument(f"handle: needs {need}; {fact}", "", "handle", need, fact)
    return _call(packed, hidden_states, topk_weights, topk_ids)


@experts.register_fake
def _(hidden_states, topk_weights, topk_ids, handle):
    return torch.empty_like(hidden_states, memory_format=torch.contiguous_format)


def _refuse_gradient(ctx, inputs, output):
    """torch calls this only where it records gradients."""
    for place, tensor in zip(("hidden_states", "topk_weights"), inputs):
        if tensor.requires_grad:
            need = "a call without gradients, such as inside torch.no_grad(): moracle computes forward only"
            raise Unsupported(f"{place}: needs {need}; it has requires_grad", "", place, need, "it has requires_grad")


def _no_backward(ctx, gradient):
    raise RuntimeError("moracle computes forward only")


experts.register_autograd(_no_backward, setup_context=_refuse_gradient)


def run(packed, handle, hidden_states, topk_weights, topk_ids):
    """The operator where torch traces. Elsewhere the experts directly, which saves torch's dispatch of about 15 µs."""
    if torch.compiler.is_compiling() or type(hidden_states) is not torch.Tensor:
        return experts(hidden_states, topk_weights, topk_ids, handle)
    return _call(packed, hidden_states, topk_weights, topk_ids)


class Experts(torch.nn.Module):
    """PackedExperts as a module without parameters."""

    def __init__(self, packed):
        super().__init__()
        self.packed = packed
        self.handle = handle_of(packed)

    def forward(self, hidden_states, topk_weights, topk_ids):
        return run(self.packed, self.handle, hidden_states, topk_weights, topk_ids)
