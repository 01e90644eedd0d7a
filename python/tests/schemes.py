"""Weights of every scheme as arguments of fused_experts, and their dequantized values."""
import float64_experts as f64
import numpy as np


def plain(w, dtype):
    values = w.astype(dtype)
    return {"w": values}, values


def int_rows(w, width, group, zero_points):
    codes, scale, zero, values = f64.int_groups(w, width, group, zero_points)
    arguments = {"w": f64.nibbles(codes) if width == 4 else codes, "scale": scale}
    if zero_points:
        arguments["zp"] = f64.nibbles(zero, axis=1) if width == 4 else zero
    return arguments, values


def int8_channel(w):
    scale = (np.abs(w).max(-1) / 127).astype(np.float32)
    codes = np.round(w / scale[..., None]).clip(-127, 127).astype(np.int8)
    return {"w": codes, "scale": scale}, codes * scale[..., None].astype(np.float64)


def fp8_of(w, rows, cols):
    codes, scale, values = f64.fp8_blocks(w, rows or w.shape[1], cols or w.shape[2])
    return {"w": codes, "scale": scale}, values


def mx_of(w, table, most):
    codes, scale, values = f64.mx(w, table, most)
    return {"w": f64.nibbles(codes) if table is f64.E2M1 else codes, "scale": scale}, values


def nvfp4_of(w):
    """Groups of 16 with e4m3 scales times one scale per tensor, merged into one float."""
    parts = w.reshape(*w.shape[:-1], -1, 16)
    whole = np.abs(w).max() / (448 * 6)
    scale = (np.maximum(f64.e4m3(np.abs(parts).max(-1) / 6 / whole), 2.0 ** -9) * whole).astype(np.float32)
    codes, sign = f64.nearest(parts / scale[..., None], f64.E2M1)
    values = np.where(sign, -f64.E2M1[codes], f64.E2M1[codes]) * scale[..., None]
    codes = (codes | np.where(sign, 8, 0)).astype(np.uint8).reshape(w.shape)
    return {"w": f64.nibbles(codes), "scale": scale}, values.reshape(w.shape)


# name: (tensors and values of a matrix, arguments, quantization of activations)
SCHEMES = {
    "f32": (lambda w: plain(w, np.float32), {}, None),
    "f16": (lambda w: plain(w, np.float16), {}, None),
    "int4-w4a16-g32": (lambda w: int_rows(w, 4, 32, False), {"use_int4_w4a16": True, "block_shape": [0, 32]}, None),
    "int4-w4a16-g128": (lambda w: int_rows(w, 4, 128, False), {"use_int4_w4a16": True, "block_shape": [0, 128]}, None),
    "int4-w4a16-g64-asym": (lambda w: int_rows(w, 4, 64, True),
                            {"use_int4_w4a16": True, "block_shape": [0, 64]}, None),
    "int4-w4a16-channel": (lambda w: int_rows(w, 4, w.shape[2], False), {"use_int4_w4a16": True}, None),
    "int8-w8a16-g32": (lambda w: int_rows(w, 8, 32, False), {"use_int8_w8a16": True, "block_shape": [0, 32]}, None),
    "int8-w8a16-g128-asym": (lambda w: int_rows(w, 8, 128, True),
                             {"use_int8_w8a16": True, "block_shape": [0, 128]}, None),
    "int8-w8a16-channel": (int8_channel, {"use_int8_w8a16": True}, None),
    "int8-w8a8": (int8_channel, {"use_int8_w8a8": True, "per_channel_quant": True}, f64.int8_per_token),
    "int4-w4a8-g32": (lambda w: int_rows(w, 4, 32, False), {"scheme": "int4-w4a8-g32"}, f64.int8_per_token),
    "int4-w4a8-g64-asym": (lambda w: int_rows(w, 4, 64, True), {"scheme": "int4-w4a8-g64-asym"}, f64.int8_per_token),
    "int4-w4afp8-g128": (lambda w: int_rows(w, 4, 128, False), {"scheme": "int4-w4afp8-g128"}, f64.fp8_per_group(None)),
    "int8-w8afp8-g64-asym": (lambda w: int_rows(w, 8, 64, True), {"scheme": "int8-w8afp8-g64-asym"},
                             f64.fp8_per_group(None)),
    "fp8-w8a8-tensor": (lambda w: fp8_of(w, None, None), {"use_fp8_w8a8": True}, f64.fp8_per_group(None)),
    "fp8-w8a8-channel": (lambda w: fp8_of(w, 1, None), {"use_fp8_w8a8": True, "per_channel_quant": True},
                         f64.fp8_per_group(None)),
    "fp8-w8a8-block128x128": (lambda w: fp8_of(w, 128, 128), {"use_fp8_w8a8": True, "block_shape": [128, 128]},
                              f64.fp8_per_group(128)),
    "fp8-w8a8-block16x32": (lambda w: fp8_of(w, 16, 32), {"use_fp8_w8a8": True, "block_shape": [16, 32]},
                            f64.fp8_per_group(32)),
    "fp8-w8a16-channel": (lambda w: fp8_of(w, 1, None), {"scheme": "fp8-w8a16-channel"}, None),
    "fp8-w8a16-block128x128": (lambda w: fp8_of(w, 128, 128), {"scheme": "fp8-w8a16-block128x128"}, None),
    "mxfp8-w8a8": (lambda w: mx_of(w, f64.E4M3, 448), {"scheme": "mxfp8-w8a8"}, f64.mxfp8),
    "mxfp8-w8a16": (lambda w: mx_of(w, f64.E4M3, 448), {"scheme": "mxfp8-w8a16"}, None),
    "mxfp4-w4a16": (lambda w: mx_of(w, f64.E2M1, 6), {"scheme": "mxfp4-w4a16"}, None),
    "mxfp4-w4a8": (lambda w: mx_of(w, f64.E2M1, 6), {"scheme": "mxfp4-w4a8"}, f64.int8_per_token),
    "nvfp4-w4a16": (nvfp4_of, {"scheme": "nvfp4-w4a16"}, None),
    "nvfp4-w4a8": (nvfp4_of, {"scheme": "nvfp4-w4a8"}, f64.int8_per_token),
}


def tensors_of(w1, w2, make):
    """Arguments of fused_experts, and the values of both matrices."""
    arguments, values = {}, []
    for name, w in (("w1", w1), ("w2", w2)):
        parts, value = make(w)
        values.append(value)
        arguments |= {name if part == "w" else f"{name}_{part}": tensor for part, tensor in parts.items()}
    return arguments, values
