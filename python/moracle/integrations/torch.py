"""Packed experts as a torch custom operator: torch.compile needs no graph break."""
import itertools
import weakref

import torch

from ..errors import InvalidArgument, Unsupported

# The package's own name: two copies of it in a process, such as one of the package kernels, have operators of their own.
NAMESPACE = __name__.split(".", maxsplit=1)[0]

_handles = {}  # handle: weak reference to the PackedExperts
_next = itertools.count()


def handle_of(packed):
    """The handle of PackedExperts for torch.ops.moracle.experts, valid while the object lives."""
    handle = getattr(packed, "_handle", None)
    if handle is None:
        handle = packed._handle = next(_next)
        _handles[handle] = weakref.ref(packed, lambda _: _handles.pop(handle, None))
    return handle


def _refuse_gradient(**tensors):
    for place, tensor in tensors.items():
        if tensor.requires_grad:
            need = "a call without gradients, such as inside torch.no_grad(): moracle computes forward only"
            raise Unsupported(f"{place}: needs {need}; it has requires_grad", "", place, need, "it has requires_grad")


def call_packed(packed, hidden_states, topk_weights, topk_ids):
    """Runs packed experts on tensors of torch, without an operator."""
    if torch.is_grad_enabled():
        _refuse_gradient(hidden_states=hidden_states, topk_weights=topk_weights)
    return packed.apply(hidden_states.contiguous(), topk_weights.contiguous(), topk_ids.contiguous())


def call_linear(packed, x):
    """Runs a packed linear layer on a tensor of torch [..., K], without an operator."""
    if torch.is_grad_enabled():
        _refuse_gradient(x=x)
    if x.ndim == 2 and x.stride(-1) == 1:
        return packed.apply(x)
    return packed.apply(x.reshape(-1, x.shape[-1]).contiguous()).reshape(*x.shape[:-1], -1)


def _kernel(hidden_states, topk_weights, topk_ids, handle):
    reference = _handles.get(handle)
    packed = reference and reference()
    if packed is None:
        need, fact = "the handle of live packed experts", f"it is {handle}"
        raise InvalidArgument(f"handle: needs {need}; {fact}", "", "handle", need, fact)
    return call_packed(packed, hidden_states, topk_weights, topk_ids)


def fake_output(hidden_states, topk_weights):
    """The output of a traced call: its shape without its numbers."""
    if torch.is_grad_enabled():
        _refuse_gradient(hidden_states=hidden_states, topk_weights=topk_weights)
    return torch.empty_like(hidden_states, memory_format=torch.contiguous_format)


def _fake(hidden_states, topk_weights, topk_ids, handle):
    return fake_output(hidden_states, topk_weights)


# Use torch.library.Library: one switch from C++ to Python per call, 9 µs. torch.library.custom_op adds two for autograd
# and its checks, 19 µs. Autograd's fallback keeps requires_grad, so kernels can reject it.
library = torch.library.Library(NAMESPACE, "DEF")
library.define("experts(Tensor hidden_states, Tensor topk_weights, Tensor topk_ids, int handle) -> Tensor",
                tags=(torch.Tag.pt2_compliant_tag,))
for _key in ("CPU", "CUDA"):
    library.impl("experts", _kernel, _key)
torch.library.register_fake(f"{NAMESPACE}::experts", _fake, lib=library)
_experts = getattr(torch.ops, NAMESPACE).experts.default


def experts(hidden_states: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor, handle: int) -> torch.Tensor:
    """The output of the packed experts: hidden_states [num_tokens, hidden_size], the rest [num_tokens, top_k]."""
    return _experts(hidden_states, topk_weights, topk_ids, handle)


def run(packed, handle, hidden_states, topk_weights, topk_ids):
    """Calls the operator while torch traces, else the experts directly, without torch's dispatcher."""
    if torch.compiler.is_compiling() or type(hidden_states) is not torch.Tensor:
        return experts(hidden_states, topk_weights, topk_ids, handle)
    return call_packed(packed, hidden_states, topk_weights, topk_ids)


class Experts(torch.nn.Module):
    """PackedExperts as a module without parameters."""

    def __init__(self, packed):
        super().__init__()
        self.packed = packed
        self.handle = handle_of(packed)

    def forward(self, hidden_states, topk_weights, topk_ids):
        return run(self.packed, self.handle, hidden_states, topk_weights, topk_ids)
