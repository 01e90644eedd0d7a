#!/usr/bin/env python3
"""Experts from tensors in Python: int8 weights with one scale per row, on torch tensors, or on numpy arrays without torch.

    pip install . numpy && python experts_tensors.py
"""
import numpy as np

import moracle

try:
    import torch
except ImportError:
    torch = None

NUM_EXPERTS, TOP_K, HIDDEN, INNER, TOKENS = 8, 2, 128, 64, 5


def quantize(weights):
    """int8 codes and a scale for each row."""
    scales = np.abs(weights).max(-1) / 127
    return np.round(weights / scales[..., None]).astype(np.int8), scales.astype(np.float32)


def expected(hidden, w13, w2, ids, gates):
    """The same experts in float64."""
    output = np.zeros(hidden.shape)
    for token in range(len(hidden)):
        for expert, gate in zip(ids[token], gates[token]):
            gate_up = w13[expert].astype(np.float64) @ hidden[token]
            g, u = gate_up[:INNER], gate_up[INNER:]
            output[token] += gate * (w2[expert].astype(np.float64) @ (g / (1 + np.exp(-g)) * u))
    return output


def main():
    generator = np.random.default_rng(1)
    w13 = generator.standard_normal((NUM_EXPERTS, 2 * INNER, HIDDEN)) / HIDDEN**0.5  # gate rows, then up rows
    w2 = generator.standard_normal((NUM_EXPERTS, HIDDEN, INNER)) / INNER**0.5
    hidden = generator.standard_normal((TOKENS, HIDDEN)).astype(np.float32)
    ids = np.stack([generator.choice(NUM_EXPERTS, TOP_K, replace=False) for _ in range(TOKENS)]).astype(np.int32)
    gates = np.full((TOKENS, TOP_K), 0.5, np.float32)

    (codes13, scales13), (codes2, scales2) = quantize(w13), quantize(w2)
    tensor = torch.from_numpy if torch else np.asarray
    experts = moracle.pack(tensor(codes13), tensor(codes2), w1_scale=tensor(scales13), w2_scale=tensor(scales2),
                           scheme="int8-w8a16-channel", top_k=TOP_K)
    print(experts.selection)  # the oracle's reasons
    output = experts(tensor(hidden), tensor(gates), tensor(ids))  # a tensor of the same kind

    want = expected(hidden, w13, w2, ids, gates)
    error = np.linalg.norm(np.asarray(output) - want) / np.linalg.norm(want)
    print(f"{'torch' if torch else 'numpy'}: relative error of int8 weights: {error:.4f}")
    assert error < 0.03, "8-bit weights are closer than this"


main()
