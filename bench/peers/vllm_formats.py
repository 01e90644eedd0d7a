"""Converts float32 rows to codes and scales as vLLM's CPU kernels take them, before vLLM packs them."""

import numpy as np

from .problem import BLOCK, from_bf16, to_bf16


def bf16(floats):
    """bf16 bits as i16; no scales."""
    return (to_bf16(floats).view(np.int16),)


def int8(floats):
    scales = np.abs(floats).max(axis=1, keepdims=True) / 127
    return np.rint(floats / scales).astype(np.int8), scales.astype(np.float32)


def fp8(floats):
    """e4m3 as bytes, and the scale of each block of 128 x 128, in each of its rows."""
    import torch

    blocks = floats.reshape(-1, BLOCK, floats.shape[1] // BLOCK, BLOCK)
    scales = np.abs(blocks).max(axis=(1, 3), keepdims=True) / 448
    codes = torch.from_numpy(blocks / scales).to(torch.float8_e4m3fn).view(torch.uint8)
    return codes.numpy().reshape(floats.shape), np.repeat(scales[:, 0, :, 0], BLOCK, axis=0)


def int4(floats):
    """Eight codes in an i32 along K, offset by 8, and scales [rows, K / BLOCK]."""
    groups = floats.reshape(len(floats), -1, BLOCK)
    scales = from_bf16(to_bf16(np.abs(groups).max(axis=2, keepdims=True) / 7))
    codes = np.clip(np.rint(groups / scales) + 8, 0, 15).astype(np.uint32)
    codes = codes.reshape(len(floats), -1, 8) << (4 * np.arange(8, dtype=np.uint32))
    return codes.sum(axis=2, dtype=np.uint32).view(np.int32), to_bf16(scales[:, :, 0])


def mxfp4(floats):
    """Two codes in a byte along K, the even column low, and exponents [rows, K / 32]."""
    groups = floats.reshape(len(floats), -1, 32)
    largest = np.maximum(np.abs(groups).max(axis=2, keepdims=True), 1e-10)
    exponents = np.floor(np.log2(largest)) - 2
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    middles = (values[1:] + values[:-1]) / 2
    scaled = groups / np.exp2(exponents)
    codes = np.searchsorted(middles, np.abs(scaled)).astype(np.uint8)
    codes = (codes | (np.signbit(scaled) << 3).astype(np.uint8)).reshape(len(floats), -1, 2)
    return codes[:, :, 0] | codes[:, :, 1] << 4, (exponents[:, :, 0] + 127).astype(np.uint8)
