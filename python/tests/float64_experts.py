"""Reference experts in float64, from the definitions of docs/numerics.md, and tensors of every scheme."""
import numpy as np

# All finite e4m3 numbers from 0 to 448, by code.
E4M3 = np.array([(m / 8 * 2.0 ** -6) if e == 0 else (1 + m / 8) * 2.0 ** (e - 7) for e in range(16) for m in range(8)][:127])
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def bound(selection, layers=1):
    """Three times the root mean square error of the serving row (tests/models/logit_bounds.h)."""
    matrices = selection.to_dict()["plan"]["matrices"]
    squares = sum(4.0 ** -matrix["product_bits"] + matrix["k"] * 4.0 ** -24 for matrix in matrices)
    return 3 * 0.42 * (layers * squares) ** 0.5


def nearest(values, table):
    """Codes of the nearest numbers in an ascending table, ties to the even code. Adds `table.size` for negative values."""
    sign = np.signbit(values)
    magnitude = np.minimum(np.abs(values), table[-1])
    upper = np.clip(np.searchsorted(table, magnitude), 1, table.size - 1)
    below, above = magnitude - table[upper - 1], table[upper] - magnitude
    codes = np.where((below < above) | ((below == above) & ((upper - 1) % 2 == 0)), upper - 1, upper)
    return codes, sign


def e4m3(values):
    codes, sign = nearest(values, E4M3)
    return np.where(sign, -E4M3[codes], E4M3[codes])


def e4m3_bytes(values):
    codes, sign = nearest(values, E4M3)
    return (codes | np.where(sign, 128, 0)).astype(np.uint8)


def exponent_scales(largest, most):
    """Powers of two that bring `largest` to at most `most`, and their e8m0 bytes."""
    exponents = np.ceil(np.log2(np.maximum(largest, 1e-30) / most)).clip(-127, 127)
    return 2.0 ** exponents, (exponents + 127).astype(np.uint8)


def int8_per_token(x):
    scale = np.maximum(np.abs(x).max(-1, keepdims=True), 1e-10) / 127
    return np.round(x / scale) * scale


def fp8_per_group(group):
    def quantize(x):
        parts = x.reshape(*x.shape[:-1], -1, group or x.shape[-1])
        scale = np.maximum(np.abs(parts).max(-1, keepdims=True), 1e-10) / 448
        return (e4m3(parts / scale) * scale).reshape(x.shape)
    return quantize


def mxfp8(x):
    parts = x.reshape(*x.shape[:-1], -1, 32)
    scale, _ = exponent_scales(np.abs(parts).max(-1, keepdims=True), 448)
    return (e4m3(parts / scale) * scale).reshape(x.shape)


def fp8_static(scale):
    return lambda x: e4m3(x / scale) * scale


def int8_static(scale):
    return lambda x: np.round(x / scale).clip(-128, 127) * scale


def silu(x):
    return x / (1 + np.exp(-x))


def gated(name, gate, up, alpha=1.702, limit=7.0):
    if name == "silu":
        return silu(gate) * up
    if name == "gelu_tanh":
        return 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate ** 3))) * up
    assert name == "swigluoai"
    gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    return gate / (1 + np.exp(-alpha * gate)) * (up + 1)


def experts(hidden, w1, w2, topk_weights, topk_ids, quantize=lambda x: x, activation="silu", b1=None, b2=None,
            weight_on_input=False, quantize2=None):
    """The layer in float64. w1: gate rows, then up rows. quantize: quantization of GEMM inputs."""
    hidden, w1, w2 = (np.asarray(a, np.float64) for a in (hidden, w1, w2))
    output = np.zeros_like(hidden)
    for t, e, weight in zip(np.repeat(np.arange(len(hidden)), topk_ids.shape[1]), topk_ids.ravel(),
                            topk_weights.ravel().astype(np.float64)):
        if e < 0:
            continue
        x = hidden[t] * weight if weight_on_input else hidden[t]
        y = quantize(x) @ w1[e].T + (0 if b1 is None else b1[e])
        gate, up = np.split(y, 2)
        y = (quantize2 or quantize)(gated(activation, gate, up)) @ w2[e].T + (0 if b2 is None else b2[e])
        output[t] += y if weight_on_input else y * weight
    return output


# ---- tensors of each scheme: (arguments of fused_experts, values) ---------------------------------------------------

def int_groups(w, width, group, zero_points, offset=True):
    """Codes, scales [E, N, G], zero points and values of integers in groups along K. Unsigned codes."""
    parts = w.reshape(*w.shape[:-1], -1, group)
    middle = 2 ** (width - 1)
    if zero_points:
        low, high = parts.min(-1, keepdims=True), parts.max(-1, keepdims=True)
        scale = ((high - low) / (2 ** width - 1)).astype(np.float32)
        zero = np.clip(np.round(-low / scale), 0, 2 ** width - 1)
    else:
        scale = (np.abs(parts).max(-1, keepdims=True) / (middle - 1)).astype(np.float32)
        zero = np.full(scale.shape, middle, np.float64)
    codes = np.clip(np.round(parts / scale) + zero, 0, 2 ** width - 1)
    values = ((codes - zero) * scale).reshape(w.shape)
    return codes.reshape(w.shape).astype(np.uint8), np.ascontiguousarray(scale[..., 0]), zero[..., 0].astype(np.uint8), values


def nibbles(codes, axis=-1):
    """Two codes per byte along an axis, the low bits first."""
    codes = np.moveaxis(codes, axis, -1)
    packed = codes[..., ::2] | codes[..., 1::2] << 4
    return np.ascontiguousarray(np.moveaxis(packed, -1, axis))


def fp8_blocks(w, rows, cols):
    """e4m3 bytes, scales [E, N / rows, K / cols] and values."""
    experts, n, k = w.shape
    parts = w.reshape(experts, n // rows, rows, k // cols, cols)
    scale = (np.abs(parts).max((2, 4), keepdims=True) / 448).astype(np.float32)
    values = (e4m3(parts / scale) * scale).reshape(w.shape)
    return e4m3_bytes(parts / scale).reshape(w.shape), scale[:, :, 0, :, 0], values


def mx(w, table, most):
    """Codes, e8m0 bytes [E, N, K / 32] and values of microscaling weights."""
    parts = w.reshape(*w.shape[:-1], -1, 32)
    scale, exponents = exponent_scales(np.abs(parts).max(-1, keepdims=True), most)
    codes, sign = nearest(parts / scale, table)
    values = (np.where(sign, -table[codes], table[codes]) * scale).reshape(w.shape)
    codes = (codes | np.where(sign, 128 if table is E4M3 else 8, 0)).reshape(w.shape).astype(np.uint8)
    return codes, exponents[..., 0], values
