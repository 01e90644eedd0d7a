#!/usr/bin/env python3
"""Predicts one layer of experts on Intel GPUs that were never measured: published rates, and the instructions
of our own kernels for matrix engines as Intel's offline compiler emits them (Debian: intel-opencl-icd).

usage: intel_roofline.py [--shape E,TOPK,HIDDEN,INTERMEDIATE] [--instructions]

A cell is `floor / prediction` in microseconds. opencl.md beside this file states the model."""
import argparse
import dataclasses
import math
import pathlib
import shutil
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/opencl"))
import compile_for_intel as intel  # noqa: E402
from intel_loops import hot_loop  # noqa: E402

KERNELS = ROOT / "src/kernels/opencl"
TOKENS = (1, 8, 64, 512, 2048)
QWEN3_30B_A3B = "128,8,2048,768"
BLOCK, TILES, SPLITS = 32, 2, 4  # as in matrix_linear.cc


@dataclasses.dataclass(frozen=True)
class Gpu:
    name: str
    target: str     # device name of the compiler
    memory: float   # bytes/s
    half: float     # bf16 operations/s of the matrix engines
    engines: int    # vector engines, each with a matrix engine
    per_core: int   # vector engines that share one load and store unit
    clock: float    # Hz, at which the published rate holds
    lanes: int      # 32-bit lanes of a vector engine


# Published figures. The compiler does not know the B580: its code is that of the Max, also 16 lanes wide.
GPUS = (Gpu("Arc A770", "acm-g10", 560e9, 138e12, 512, 16, 2.1e9, 8),
        Gpu("Arc B580", "pvc", 456e9, 117e12, 160, 8, 2.85e9, 16),
        Gpu("Max 1550", "pvc", 3.2e12, 839e12, 1024, 8, 1.6e9, 16))


@dataclasses.dataclass(frozen=True)
class Scheme:
    name: str
    bytes_per_weight: float  # codes and f32 scales
    options: str             # of matrix.cl
    speedup: int = 1         # of its products over bf16


SCHEMES = (Scheme("int4-w4a16-g128", 0.5 + 4 / 128, "-D X_BF16 -D WEIGHT_I4"),
           Scheme("mxfp4-w4a16", 0.5 + 4 / 32, "-D X_BF16 -D WEIGHT_E2M1"),
           Scheme("fp8-w8a16-block128x128", 1 + 4 / 128**2, "-D X_BF16 -D WEIGHT_E4M3"),
           Scheme("fp8-w8a8-block128x128", 1 + 4 / 128**2, "-D X_E4M3 -D X_GROUPS -D WEIGHT_E4M3"),
           Scheme("int8-w8a8", 1, "-D X_I8 -D INTEGERS -D WEIGHT_I8 -D ONE_GROUP", 2),
           Scheme("bf16", 2, "-D X_BF16 -D WEIGHT_BF16 -D ONE_GROUP"))


def loop_of(gpu, scheme, rows):
    wide = intel.DEVICES[gpu.target]
    registers = " -cl-intel-256-GRF-per-thread" if rows == 32 else ""
    options = f"{scheme.options} -D LANES={wide} -D TILES={TILES} -D SPLITS={SPLITS} -D WHOLE_BLOCKS -D ROWS={rows}"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        binary, log = intel.compiled(folder, KERNELS, gpu.target, "matrix/matrix.cl", options + registers)
        text = binary and intel.disassembled(folder, binary, gpu.target)
    if not text:
        sys.exit(f"cannot compile and disassemble matrix.cl for {gpu.target}; needs ocloc and libiga64\n{log}")
    return hot_loop(text, gpu.lanes)


def dpas_cycles(gpu, wide):
    """Cycles of one dpas.8x8: 8 rows, `wide` columns, 16 products each; 32 of int8 at twice the rate."""
    return 2 * 8 * wide * 16 / (gpu.half / gpu.engines / gpu.clock)


def loop_cycles(gpu, loop):
    """Cycles of one engine: the maximum of matrix engine, all other instructions, and its share of the load
    unit."""
    matrix = loop.dpas * dpas_cycles(gpu, intel.DEVICES[gpu.target])
    return matrix, loop.cycles, loop.sends * gpu.per_core


def spread(tokens, experts, top_k, rows):
    """Expected experts with work, and their expected strips of `rows` rows, with uniform routing."""
    p, touched, strips = top_k / experts, 0, 0
    for count in range(1, tokens + 1):
        log = (math.lgamma(tokens + 1) - math.lgamma(count + 1) - math.lgamma(tokens - count + 1)
               + count * math.log(p) + (tokens - count) * math.log1p(-p))
        touched += experts * math.exp(log)
        strips += experts * math.exp(log) * math.ceil(count / rows)
    return touched, strips


def cell(gpu, scheme, loops, shape, tokens):
    experts, top_k, hidden, intermediate = shape
    rows = 8 if math.ceil(tokens * top_k / experts) <= 8 else 32
    touched, strips = spread(tokens, experts, top_k, rows)
    weights = 3 * hidden * intermediate
    memory = touched * weights * scheme.bytes_per_weight / gpu.memory
    floor = max(memory, 2 * tokens * top_k * weights / (gpu.half * scheme.speedup))
    passes = strips * weights / (intel.DEVICES[gpu.target] * TILES * BLOCK)
    issue = passes * max(loop_cycles(gpu, loops[rows])) / gpu.engines / gpu.clock
    return f"{floor * 1e6:,.0f} / {max(floor, issue) * 1e6:,.0f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default=QWEN3_30B_A3B, help="experts,top-k,hidden,intermediate")
    parser.add_argument("--instructions", action="store_true", help="print the hot loops instead")
    options = parser.parse_args()
    if not shutil.which("ocloc"):
        sys.exit("needs Intel's offline compiler ocloc; install intel-opencl-icd or intel-ocloc")
    shape = [int(size) for size in options.shape.split(",")]
    if options.instructions:
        print("| device | scheme | rows | dpas | other instructions | of these, memory | "
              "cycles of dpas, others, loads | share of dpas rate |\n" + "| --- " * 8 + "|")
    else:
        print("| device | scheme | " + " | ".join(f"{t:,}" for t in TOKENS) + " |\n" + "| --- " * 7 + "|")
    for gpu in GPUS:
        for scheme in SCHEMES:
            loops = {rows: loop_of(gpu, scheme, rows) for rows in (8, 32)}
            if not options.instructions:
                cells = (cell(gpu, scheme, loops, shape, tokens) for tokens in TOKENS)
                print(f"| {gpu.name} | {scheme.name} | " + " | ".join(cells) + " |", flush=True)
                continue
            for rows, loop in loops.items():
                cycles = loop_cycles(gpu, loop)
                print(f"| {gpu.name} | {scheme.name} | {rows} | {loop.dpas} | {loop.others} | {loop.sends} | "
                      f"{' '.join(f'{c:.0f}' for c in cycles)} | {cycles[0] / max(cycles):.0%} |", flush=True)


if __name__ == "__main__":
    main()
