"""fused_experts: the experts of one layer from tensors, with the argument names of vLLM's function."""
import threading
import weakref

from ._moracle import Scheme
from .errors import InvalidArgument, Unsupported
from .packed import float_scheme, pack


def _refuse(argument, need, fact):
    raise Unsupported(f"{argument}: needs {need}; {fact}", "", argument, need, fact)


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
    return float_scheme(w1)


class _Entry:
    """Packed experts, with weak references to their tensors."""

    def __init__(self, packed, tensors, key):
        self.packed = packed
        self.references = [weakref.ref(tensor, lambda _: _packed.pop(key, None)) for tensor in tensors]
        # Only torch counts in-place changes.
        self.versions = [(reference, tensor._version) for reference, tensor in zip(self.references, tensors)
                         if hasattr(tensor, "_version")]

    def is_current(self):
        for reference, version in self.versions:
            tensor = reference()
            if tensor is None or tensor._version != version:
                return False
        return True


# Packed experts, keyed by the identity of their tensors and by options. An entry is dropped with any of its tensors.
_packed = {}
_packing = threading.RLock()


def _pack_once(key, tensors, make):
    with _packing:
        entry = _packed.get(key)  # another thread may have packed them meanwhile
        if entry is None or not entry.is_current():
            _packed.pop(key, None)
            entry = _packed[key] = _Entry(make(), [tensor for tensor in tensors if tensor is not None], key)
        return entry.packed


# Arguments, and the matching attributes of vLLM's FusedMoEQuantConfig.
_OF_CONFIG = {name: name for name in (
    "use_fp8_w8a8", "use_int8_w8a8", "use_int8_w8a16", "use_int4_w4a16", "block_shape", "w1_scale", "w2_scale", "w1_zp",
    "w2_zp", "a1_scale", "a2_scale", "w1_bias", "w2_bias")} | {"per_channel_quant": "per_act_token_quant"}
_REFUSED_IN_CONFIG = ("use_mxfp4_w4a4", "use_nvfp4_w4a4", "use_nvfp4_w4a16", "use_mxfp4_w4a8")


def _arguments_of(config):
    """Converts vLLM's quant_config to arguments. Rejects unsupported values."""
    for name in _REFUSED_IN_CONFIG:
        if getattr(config, name, False):
            _refuse(f"quant_config.{name}", "False", "it is True")
    mx = getattr(config, "ocp_mx_scheme", None)
    if mx is not None and mx != "w_mxfp4":
        _refuse("quant_config.ocp_mx_scheme", "None or w_mxfp4", f"it is {mx}")
    arguments = {name: getattr(config, attribute, None) for name, attribute in _OF_CONFIG.items()}
    return arguments | ({"scheme": "mxfp4-w4a16"} if mx else {})


def fused_experts(hidden_states, w1, w2, topk_weights, topk_ids, inplace=False, activation="silu",
                  apply_router_weight_on_input=False, use_fp8_w8a8=False, use_int8_w8a8=False, use_int8_w8a16=False,
                  use_int4_w4a16=False, per_channel_quant=False, global_num_experts=-1, expert_map=None, w1_scale=None,
                  w2_scale=None, w1_zp=None, w2_zp=None, a1_scale=None, a2_scale=None, block_shape=None, w1_bias=None,
                  w2_bias=None, *, quant_config=None, scheme=None, packing="rows", output=None, **unknown):
    """The experts of one layer, with the argument names of vLLM's fused_experts. Forward only.

    The first call packs the weights. Later calls with the same tensor objects reuse the packed copy, which is freed with
    the tensors. An in-place change of a torch tensor packs again; one of a numpy array is not seen. pack() needs no tensors
    afterwards.
    `quant_config`: vLLM's FusedMoEQuantConfig, in place of flags, scales, zero points and biases.
    `scheme` and `packing` (see pack) go beyond vLLM: "mxfp4-w4a16", "mxfp8-w8a8", GPTQ and AWQ tensors.
    Returns a new tensor like hidden_states, or `output`.
    """
    if inplace or unknown:
        for argument, value in {"inplace": inplace, **unknown}.items():
            if value is not None and value is not False:
                _refuse(argument, "its default", f"moracle's fused_experts does not take it; it is {value!r}")
    if quant_config is not None:
        return fused_experts(hidden_states, w1, w2, topk_weights, topk_ids, activation=activation,
                             apply_router_weight_on_input=apply_router_weight_on_input, expert_map=expert_map,
                             global_num_experts=global_num_experts, output=output, **_arguments_of(quant_config))
    top_k = topk_ids.shape[-1]
    key = (id(w1), id(w2), id(w1_scale), id(w2_scale), id(w1_zp), id(w2_zp), id(w1_bias), id(w2_bias), id(a1_scale),
           id(a2_scale), id(expert_map), use_fp8_w8a8, use_int8_w8a8, use_int8_w8a16, use_int4_w4a16, per_channel_quant,
           tuple(block_shape) if block_shape else None, scheme, packing, activation, apply_router_weight_on_input, top_k,
           global_num_experts)
    entry = _packed.get(key)
    if entry is not None and entry.is_current():
        return entry.packed.apply(hidden_states, topk_weights, topk_ids, output)
    if expert_map is None and global_num_experts not in (-1, w1.shape[0]):
        _refuse("global_num_experts", f"{w1.shape[0]}, the experts in w1, or an expert_map", f"it is {global_num_experts}")

    def make():
        chosen = scheme or scheme_of(
            w1, use_fp8_w8a8=use_fp8_w8a8, use_int8_w8a8=use_int8_w8a8, use_int8_w8a16=use_int8_w8a16,
            use_int4_w4a16=use_int4_w4a16, per_channel_quant=per_channel_quant, block_shape=block_shape,
            has_zero_points=w1_zp is not None, is_static=a1_scale is not None)
        return pack(w1, w2, top_k=top_k, scheme=chosen, w1_scale=w1_scale, w2_scale=w2_scale, w1_zp=w1_zp, w2_zp=w2_zp,
                    w1_bias=w1_bias, w2_bias=w2_bias, a1_scale=a1_scale, a2_scale=a2_scale,
                    activation=getattr(activation, "value", activation),  # vLLM's is an enum
                    apply_router_weight_on_input=apply_router_weight_on_input, packing=packing, expert_map=expert_map)
    tensors = (w1, w2, w1_scale, w2_scale, w1_zp, w2_zp, w1_bias, w2_bias, a1_scale, a2_scale, expert_map)
    return _pack_once(key, tensors, make)(hidden_states, topk_weights, topk_ids, output)
