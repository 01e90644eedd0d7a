"""Experts packed from tensors, for many calls."""
import sys

import numpy as np

from ._moracle import Device, FusedMoe, Scheme, describe_tensors, select
from .errors import InvalidArgument, Unsupported

# Token limit per call: more tokens run as several calls. The workspace grows with it.
MAX_NUM_TOKENS = {"cpu": 1024, "cuda": 4096, "opencl": 1024}
_KINDS = {1: "cpu", 2: "cuda"}  # DLPack device types


def dtype_of(tensor):
    """Name of the element type: "float32"."""
    return str(tensor.dtype).rpartition(".")[2]


def _device(tensor):
    """Name of the tensor's device: "cpu", "cuda:0"."""
    device = getattr(tensor, "device", "cpu")
    kind, index = getattr(device, "type", None), getattr(device, "index", None)
    if kind is None and hasattr(tensor, "__dlpack_device__"):  # other frameworks than torch
        code, index = map(int, tensor.__dlpack_device__())
        kind = _KINDS.get(code, f"device type {code} of DLPack")
    return "cpu" if kind in (None, "cpu") else f"{kind}:{index or 0}"


def _on_host(tensor):
    """Copies the tensor to host memory if it is not there."""
    if tensor is None or _device(tensor) == "cpu":
        return tensor
    if hasattr(tensor, "cpu"):  # torch
        return tensor.cpu()
    return tensor.get() if hasattr(tensor, "get") else np.asarray(tensor)  # cupy, jax


def _open_device(device, w1):
    """Opens the device. Errors: this build or machine lacks it; torch is capturing a graph."""
    if device is None:
        device = _device(w1)
    torch = sys.modules.get("torch")
    on_gpu = device.startswith("cuda") if isinstance(device, str) else device.platform == "cuda"
    # Check before opening the device, which allocates.
    if on_gpu and torch and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        need, fact = "a first call or pack() before a graph is captured", "torch captures a graph"
        raise Unsupported(f"w1: needs {need}; {fact}", "", "w1", need, fact)
    return Device.shared(device) if isinstance(device, str) else device


def float_scheme(w1):
    """Scheme of plain weights. Errors: an element type other than f32, bf16 or f16."""
    names = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
    if dtype_of(w1) not in names:
        need, fact = "float weights, a use_* flag or a scheme", f"its dtype is {dtype_of(w1)}"
        raise InvalidArgument(f"w1: needs {need}; {fact}", "", "w1", need, fact)
    return Scheme(names[dtype_of(w1)])


class PackedExperts:
    """Experts of one layer, packed for the oracle's choice of backend. Keeps none of the caller's tensors."""

    def __init__(self, moe, selection):
        self.moe = moe
        self.selection = selection
        self.apply = moe.apply_any  # saves a Python frame

    def __call__(self, hidden_states, topk_weights, topk_ids, output=None):
        """output[t] = sum over j of topk_weights[t, j] * expert(topk_ids[t, j])(hidden_states[t])

        hidden_states f32, bf16 or f16 [num_tokens, hidden_size]; topk_weights floats and topk_ids integers
        [num_tokens, top_k]. Forward only.
        """
        return self.apply(hidden_states, topk_weights, topk_ids, output)

    def __deepcopy__(self, memo):
        return self  # immutable: share it

    def __repr__(self):
        return f"<PackedExperts {self.moe!r}>"


def pack(w1, w2, *, top_k, scheme=None, w1_scale=None, w2_scale=None, w1_zp=None, w2_zp=None, w1_g_idx=None,
         w2_g_idx=None, w1_bias=None, w2_bias=None, a1_scale=None, a2_scale=None, activation="silu", alpha=1.702,
         beta=1.0, limit=None, apply_router_weight_on_input=False, packing="rows", interleaved=None, expert_map=None,
         backend="auto", device=None, max_num_tokens=None, progress=None):
    """Packs the experts of one layer. The tensors can be freed afterwards.

    w1: gate rows, then up rows [E, 2 * intermediate_size, hidden_size]. w2: [E, hidden_size, intermediate_size].
    `scheme`: a Scheme or its name; None: plain floats of w1's dtype. `packing`: how integer codes are stored, "rows"
    (vLLM, compressed-tensors), "gptq", "gptq_v2" or "awq". `interleaved`: rows of gate and up alternate in w1; None:
    only for activation "swigluoai", as in vLLM. `limit`: None means 7 for swigluoai and swiglustep, else no limit.
    `expert_map[e]`: the index in w1 of expert e, or -1. `device`: a Device or its name; None: the device of w1.
    `max_num_tokens`: more tokens run as several calls; None: 1,024, or 4,096 on an NVIDIA GPU. Errors name the tensor.
    """
    device = _open_device(device, w1)
    if activation == "swigluoai_uninterleave":
        activation, interleaved = "swigluoai", False
    if interleaved is None:
        interleaved = activation == "swigluoai"
    if limit is None:
        limit = 7.0 if activation in ("swigluoai", "swiglustep") else 0.0
    local = [] if expert_map is None else [int(index) for index in _on_host(expert_map)]
    first = {"weight": w1, "scale": w1_scale, "zp": w1_zp, "g_idx": w1_g_idx, "bias": w1_bias, "input_scale": a1_scale}
    second = {"weight": w2, "scale": w2_scale, "zp": w2_zp, "g_idx": w2_g_idx, "bias": w2_bias, "input_scale": a2_scale}
    weights = describe_tensors(
        {part: _on_host(tensor) for part, tensor in first.items()},
        {part: _on_host(tensor) for part, tensor in second.items()},
        scheme=float_scheme(w1) if scheme is None else scheme, top_k=top_k, activation=activation, alpha=alpha, beta=beta,
        limit=limit, weight_on_input=apply_router_weight_on_input, packing=packing, interleaved=interleaved,
        expert_map=local)
    selection = select(weights, device=device.name, backend=backend,
                       max_num_tokens=max_num_tokens or MAX_NUM_TOKENS[device.platform], expert_map=local or None)
    return PackedExperts(FusedMoe(weights, selection, device, progress=progress), selection)
