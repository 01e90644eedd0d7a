#!/usr/bin/env python3
"""Writes tests/golden/gguf/<type>.bin: blocks of each block type of GGUF with the values that PyPI's gguf computes.

A file holds its blocks, then their values in f32. The blocks are random ones with finite scales, edge blocks (bytes 0 and
255, scales of either sign at the ends of f16's range, subnormal scales), and for types with a grid so many that each line
of the grid occurs.

    pip install gguf==0.19.0
    python3 tools/make_gguf_blocks_golden.py tests/golden/gguf"""
import pathlib
import sys

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES

# Offsets of the f16 scales. The scale of IQ1_M is spread over the high nibbles of its last four words.
HALVES = {
    Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.Q8_0: [0], Type.Q2_K: [80, 82],
    Type.Q3_K: [108], Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208], Type.IQ2_XXS: [0], Type.IQ2_XS: [0],
    Type.IQ3_XXS: [0], Type.IQ1_S: [0], Type.IQ4_NL: [0], Type.IQ3_S: [0], Type.IQ2_S: [0], Type.IQ4_XS: [0],
    Type.IQ1_M: [], Type.MXFP4: [], Type.NVFP4: []}
# Lines of each grid. IQ1_M uses that of IQ1_S.
GRIDS = {Type.IQ2_XXS: 256, Type.IQ2_XS: 512, Type.IQ2_S: 1024, Type.IQ3_XXS: 256, Type.IQ3_S: 512, Type.IQ1_S: 2048}
# Ends of f16's range, subnormal numbers, zeros.
EXTREMES = [0x7bff, 0xfbff, 0x0001, 0x8001, 0x03ff, 0x0400, 0x0000, 0x8000, 0x3c00, 0xbc00]
RANDOM_BLOCKS = 4


def set_half(kind, block, which, bits):
    if kind == Type.IQ1_M:
        for i in range(4):
            block[49 + 2 * i] = (block[49 + 2 * i] & 0x0f) | ((bits >> (4 * i)) & 15) << 4
        return
    at = HALVES[kind][which]
    block[at:at + 2] = np.array([bits], "<u2").view(np.uint8)


def num_halves(kind):
    return 1 if kind == Type.IQ1_M else len(HALVES[kind])


def set_lines(kind, block, lines):
    """Makes the block use these lines of its grid."""
    for i, line in enumerate(lines):
        if kind == Type.IQ2_XXS:
            block[2 + 8 * (i // 4) + i % 4] = line
        elif kind == Type.IQ2_XS:
            block[2 + 2 * i] = line & 255
            block[3 + 2 * i] = (int(block[3 + 2 * i]) & 0xfe) | line >> 8
        elif kind == Type.IQ2_S:
            block[2 + i] = line & 255
            block[66 + i // 4] = (int(block[66 + i // 4]) & ~(3 << 2 * (i % 4)) & 255) | (line >> 8) << 2 * (i % 4)
        elif kind == Type.IQ3_XXS:
            block[2 + i] = line
        elif kind == Type.IQ3_S:
            block[2 + i] = line & 255
            block[66 + i // 8] = (int(block[66 + i // 8]) & ~(1 << i % 8) & 255) | (line >> 8) << i % 8
        elif kind == Type.IQ1_S:
            block[2 + i] = line & 255
            word = block[34 + 2 * (i // 4):36 + 2 * (i // 4)].view("<u2")
            word[0] = (int(word[0]) & ~(7 << 3 * (i % 4)) & 0xffff) | (line >> 8) << 3 * (i % 4)


def blocks_of(kind, random):
    size = GGML_QUANT_SIZES[kind][1]
    moderate = lambda: int(np.float16(random.uniform(0.001, 0.1) * random.choice([-1, 1])).view(np.uint16))

    def block(fill=None):
        one = random.integers(0, 256, size, dtype=np.uint8) if fill is None else np.full(size, fill, np.uint8)
        for which in range(num_halves(kind)):
            set_half(kind, one, which, moderate())
        if kind == Type.MXFP4:
            one[0] = random.integers(110, 135)
        return one

    blocks = [block() for _ in range(RANDOM_BLOCKS)] + [np.zeros(size, np.uint8), block(0), block(255)]
    for i, bits in enumerate(EXTREMES):
        one = block(255 if i % 2 else None)
        if num_halves(kind) == 0:
            continue
        set_half(kind, one, 0, bits)
        if num_halves(kind) == 2:
            set_half(kind, one, 1, EXTREMES[(i * 3 + 1) % len(EXTREMES)])
        blocks.append(one)
    if kind == Type.MXFP4:
        for exponent in [0, 1, 2, 3, 127, 253, 254]:
            one = block()
            one[0] = exponent
            blocks.append(one)
    if kind == Type.NVFP4:
        for first in range(0, 256, 4):
            one = block()
            one[:4] = range(first, first + 4)
            blocks.append(one)
    if kind in GRIDS:
        per_block = 256 * 4 // 32 if kind not in (Type.IQ3_XXS, Type.IQ3_S) else 64
        for first in range(0, GRIDS[kind], per_block):
            one = block()
            set_lines(kind, one, range(first, first + per_block))
            blocks.append(one)
    return np.stack(blocks)


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for kind in HALVES:
        blocks = blocks_of(kind, np.random.default_rng(int(kind) + 1))
        # One block a call: a block's values must not depend on its neighbours.
        with np.errstate(over="ignore"):
            values = np.stack([quants.dequantize(block, kind) for block in blocks]).astype("<f4")
        assert not np.isnan(values).any(), kind
        path = folder / f"{kind.name.lower()}.bin"
        path.write_bytes(blocks.tobytes() + values.tobytes())
        print(path, len(blocks), "blocks")


main()
