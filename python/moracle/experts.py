"""fused_experts: the experts of one layer from tensors, with the argument names of vLLM's function."""
import threading
import weakref

from ._moracle import FusedMoe, Scheme, describe_tensors, new_like, select
from .errors import InvalidArgument, Unsupported

# More tokens in one call run as several calls of at most so many. The workspace grows with it.
MAX_NUM_TOKENS = 1024


def _refuse(argument, need, fact):
    raise Unsupported(f"{argument}: needs {need}; {fact}", "", argument, need, fact)


def _dtype(tensor):
    return str(tensor.dtype).rpartition(".")[2]


def _device(tensor):
    """The name of the tensor's device: "cpu", "cuda:0"."""
    device = getattr(tensor, "device", "cpu")
    kind = getattr(device, "type", "cpu")
    if kind == "cpu":
        return "cpu"
    return f"{kind}:{device.index or 0}"


def _on_host(tensor):
    return tensor if tensor is None or _device(tensor) == "cpu" else tensor.cpu()


def _as_type(tensor, name):
    """The tensor in another element type; itself if it has that type."""
    if _dtype(tensor) == name:
        return tensor
    if hasattr(tensor, "astype"):
        return tensor.astype(name)
    import torch
    return tensor.to(getattr(torch, name))


def scheme_of(w1, *, use_fp8_w8a8=False, use_int8_w8a8=False, use_int8_w8a16=False, use_int4_w4a16=False,
              per_channel_quant=False, block_shape=None, has_zero_points=False, is_static=False):
    """The Scheme that vLLM's arguments describe. Without a flag the weights are plain floats.

    fp8 activations without stored scales are quantized per token; vLLM uses one scale for all tokens
    of a call if per_channel_quant is False.
    """
    flags = [use_fp8_w8a8, use_int8_w8a8, use_int8_w8a16, use_int4_w4a16]
    if sum(map(bool, flags)) > 1:
        raise InvalidArgument("use_*: needs at most one of the flags; several are True", "", "use_*",
                              "at most one of the flags", "several are True")
    asym = "-asym" if has_zero_points else ""
    if use_fp8_w8a8:
        if block_shape:
            return Scheme(f"fp8-w8a8-block{block_shape[0]}x{block_shape[1]}")
        return Scheme(f"fp8-w8a8-{'channel' if per_channel_quant else 'tensor'}{'-static' if is_static else ''}")
    if use_int8_w8a8:
        if not per_channel_quant or block_shape:
            _refuse("per_channel_quant", "True and no block_shape with use_int8_w8a8",
                    f"it is {per_channel_quant}, block_shape is {block_shape}")
        return Scheme("int8-w8a8")
    if use_int8_w8a16 or use_int4_w4a16:
        group = f"g{block_shape[1]}" if block_shape and block_shape[1] > 0 else "channel"
        return Scheme(f"{'int8-w8a16' if use_int8_w8a16 else 'int4-w4a16'}-{group}{asym}")
    names = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
    if _dtype(w1) not in names:
        need, fact = "float weights, a use_* flag or a scheme", f"its dtype is {_dtype(w1)}"
        raise InvalidArgument(f"w1: needs {need}; {fact}", "", "w1", need, fact)
    return Scheme(names[_dtype(w1)])


class PackedExperts:
    """The experts of one layer, packed for the backend that the oracle chose. Holds no tensor of the caller."""

    def __init__(self, moe, selection):
        self.moe = moe
        self.selection = selection
        self._most = moe.max_num_tokens

    def __call__(self, hidden_states, topk_weights, topk_ids, output=None):
        """output[t] = sum over j of topk_weights[t, j] * expert(topk_ids[t, j])(hidden_states[t])

        hidden_states f32, bf16 or f16 [num_tokens, hidden_size]; topk_weights floats and topk_ids integers
        [num_tokens, top_k]. Forward only.
        """
        ids, weights = _as_type(topk_ids, "int32"), _as_type(topk_weights, "float32")
        if len(hidden_states) <= self._most:
            return self.moe.apply(hidden_states, ids, weights, output)
        if output is None:
            output = new_like(hidden_states, *hidden_states.shape)
        for first in range(0, len(hidden_states), self._most):
            part = slice(first, first + self._most)
            self.moe.apply(hidden_states[part], ids[part], weights[part], output[part])
        return output

    def __deepcopy__(self, memo):
        return self  # it never changes

    def __repr__(self):
        return f"<PackedExperts {self.moe!r}>"


def pack(w1, w2, *, top_k, scheme=None, w1_scale=None, w2_scale=None, w1_zp=None, w2_zp=None, w1_g_idx=None,
         w2_g_idx=None, w1_bias=None, w2_bias=None, a1_scale=None, a2_scale=None, activation="silu", alpha=1.702,
         beta=1.0, limit=None, apply_router_weight_on_input=False, packing="rows", interleaved=None, expert_map=None,
         backend="auto", device=None, max_num_tokens=MAX_NUM_TOKENS, progress=None):
    """Packs the experts of one layer. The tensors are not needed afterwards.

    w1: gate rows, then up rows [E, 2 * intermediate_size, hidden_size]. w2: [E, hidden_size, intermediate_size].
    `scheme`: a Scheme or its name; None: plain floats of w1's dtype. `packing`: how integer codes are stored, "rows"
    (vLLM, compressed-tensors), "gptq", "gptq_v2" or "awq". `interleaved`: rows of gate and up alternate in w1; None:
    only for activation "swigluoai", as in vLLM. `limit`: None means 7 for swigluoai and swiglustep, else no limit.
    `expert_map[e]`: the index in w1 of expert e, or -1. `device`: a Device or its name; None: the device of w1.
    Errors name the tensor.
    """
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
        scheme=scheme_of(w1) if scheme is None else scheme, top_k=top_k, activation=activation, alpha=alpha, beta=beta,
        limit=limit, weight_on_input=apply_router_weight_on_input, packing=packing, interleaved=interleaved,
        expert_map=local)
    device = _device(w1) if device is None else device
    selection = select(weights, device=device if isinstance(device, str) else device.name, backend=backend,
                       max_num_tokens=max_num_tokens, expert_map=local or None)
    return PackedExperts(FusedMoe(weights, selection, device, progress=progress), selection)


class _Entry:
    def __init__(self, packed, tensors, key):
        self.packed = packed
        self.versions = _versions(tensors)
        self.references = [weakref.ref(tensor, lambda _: _packed.pop(key, None)) for tensor in tensors]


# Packed experts by the identity of their tensors. An entry goes when one of its tensors goes.
_packed = {}
_packing = threading.RLock()


def _versions(tensors):
    """Counts of changes in place, which torch keeps; the same number for others."""
    return [getattr(tensor, "_version", 0) for tensor in tensors]


def _packed_for(tensors, options, make):
    key = (tuple(map(id, tensors)), options)
    present = [tensor for tensor in tensors if tensor is not None]
    entry = _packed.get(key)
    if entry is not None and entry.versions == _versions(present):
        return entry.packed
    with _packing:
        _packed.pop(key, None)
        entry = _packed[key] = _Entry(make(), present, key)
        return entry.packed


def fused_experts(hidden_states, w1, w2, topk_weights, topk_ids, inplace=False, activation="silu",
                  apply_router_weight_on_input=False, use_fp8_w8a8=False, use_int8_w8a8=False, use_int8_w8a16=False,
                  use_int4_w4a16=False, per_channel_quant=False, global_num_experts=-1, expert_map=None, w1_scale=None,
                  w2_scale=None, w1_zp=None, w2_zp=None, a1_scale=None, a2_scale=None, block_shape=None, w1_bias=None,
                  w2_bias=None, *, scheme=None, packing="rows", output=None, **unknown):
    """The experts of one layer, with the argument names of vLLM's fused_experts. Forward only.

    The first call packs the weights; later calls with the same tensor objects use the packed copy, which is freed with
    the tensors. torch's changes in place are seen; those of numpy are not. pack() frees the tensors.
    `scheme` and `packing` (see pack) go beyond vLLM: "mxfp4-w4a16", "mxfp8-w8a8", GPTQ and AWQ tensors.
    Returns a new tensor like hidden_states, or `output`.
    """
    for argument, value in {"inplace": inplace, **unknown}.items():
        if value is not None and value is not False:
            _refuse(argument, "its default", f"moracle's fused_experts does not take it; it is {value!r}")
    activation = getattr(activation, "value", activation)
    if expert_map is None and global_num_experts not in (-1, w1.shape[0]):
        _refuse("global_num_experts", f"{w1.shape[0]}, the experts in w1, or an expert_map", f"it is {global_num_experts}")
    tensors = (w1, w2, w1_scale, w2_scale, w1_zp, w2_zp, w1_bias, w2_bias, a1_scale, a2_scale, expert_map)
    options = (use_fp8_w8a8, use_int8_w8a8, use_int8_w8a16, use_int4_w4a16, per_channel_quant,
               tuple(block_shape) if block_shape else None, str(scheme), packing, activation,
               apply_router_weight_on_input, topk_ids.shape[-1])

    def make():
        chosen = scheme or scheme_of(
            w1, use_fp8_w8a8=use_fp8_w8a8, use_int8_w8a8=use_int8_w8a8, use_int8_w8a16=use_int8_w8a16,
            use_int4_w4a16=use_int4_w4a16, per_channel_quant=per_channel_quant, block_shape=block_shape,
            has_zero_points=w1_zp is not None, is_static=a1_scale is not None)
        return pack(w1, w2, top_k=topk_ids.shape[-1], scheme=chosen, w1_scale=w1_scale, w2_scale=w2_scale, w1_zp=w1_zp,
                    w2_zp=w2_zp, w1_bias=w1_bias, w2_bias=w2_bias, a1_scale=a1_scale, a2_scale=a2_scale,
                    activation=activation, apply_router_weight_on_input=apply_router_weight_on_input, packing=packing,
                    expert_map=expert_map)
    return _packed_for(tensors, options, make)(hidden_states, topk_weights, topk_ids, output)
