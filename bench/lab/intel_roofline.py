#!/usr/bin/env python3
"""Predicts one layer of experts on Intel GPUs that were never measured: published rates, and the instructions
of our own kernels for matrix engines as Intel's offline compiler emits them (Debian: intel-opencl-icd).

usage: intel_roofline.py [--shape E,TOPK,HIDDEN,INTERMEDIATE] [--instructions]

A cell is `floor / prediction` in microseconds. opencl.md beside this file states the model."""
import argparse
import dataclasses
import heapq
import math
import pathlib
import re
import shutil
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/opencl"))
import compile_for_intel as intel  # noqa: E402

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
    options: str             # of matrix.cl; empty: no row for matrix engines serves it
    speedup: int = 1         # of its products over bf16


SCHEMES = (Scheme("int4-w4a16-g128", 0.5 + 4 / 128, "-D WEIGHT_I4"),
           Scheme("mxfp4-w4a16", 0.5 + 4 / 32, "-D WEIGHT_E2M1"),
           Scheme("fp8-w8a16-block128x128", 1 + 4 / 128**2, "-D WEIGHT_E4M3"),
           Scheme("int8-w8a8", 1, "", 2),
           Scheme("bf16", 2, "-D WEIGHT_BF16 -D ONE_GROUP"))


@dataclasses.dataclass(frozen=True)
class Loop:
    """One pass of the hot loop: 32 columns."""
    dpas: int
    others: int       # instructions that are not dpas
    sends: int        # messages to memory among them
    cycles: int       # that the others occupy an engine of `lanes` lanes


def cycles_of(line, lanes):
    """Cycles of one instruction on 32-bit lanes: registers wider than the engine take several."""
    size = re.search(r"\((\d+)\|M\d+\)", line)
    if size is None or re.search(r"\b(send|sync|goto|join|jmpi)\b", line):
        return 1
    return max(1, math.ceil(int(size[1]) * (2 if re.search(r":(u?q|df)\b", line) else 1) / lanes))


def next_lines(lines, labels, at):
    """Indices of the instructions that may run after this one. SIMD branches count as uniform."""
    line = lines[at]
    if not re.search(r"\b(goto|jmpi|while|endif|brc)\b", line):
        return [at + 1]
    target = labels[re.findall(r"\bL\d+\b", line)[-1]]
    always = re.match(r"(\(W\))?\s*\w", line)
    return [target] if always else [at + 1, target]


def shortest_path(lines, labels, begin, end):
    """Indices of the instructions from `begin` to before `end`, the fewest that lead there."""
    queue, before = [(0, begin, None)], {}
    while queue:
        cost, at, previous = heapq.heappop(queue)
        if at in before or at >= len(lines):
            continue
        before[at] = previous
        if at == end and previous is not None:
            break
        for other in next_lines(lines, labels, at):
            if other == end or other not in before:
                heapq.heappush(queue, (cost + 1, other, at))
    path, at = [], before[end]
    while at is not None:
        path.append(at)
        at = before[at] if at != begin else None
    return path[::-1]


def hot_loop(text, lanes):
    """The loop around the dpas instructions, on its shortest way through all of them."""
    lines, labels = [], {}
    for line in text.splitlines():
        label = re.match(r"(L\d+):", line)
        if label:
            labels[label[1]] = len(lines)
        elif line.strip():
            lines.append(line)
    dpas = [i for i, line in enumerate(lines) if re.search(r"\bdpas", line)]
    backs = [(at - target, target) for at in range(len(lines)) for target in next_lines(lines, labels, at)
             if target <= dpas[0] and at >= dpas[-1]]
    head = min(backs)[1]
    stops = [head, *dpas, head]
    path = []
    for begin, end in zip(stops, stops[1:]):
        path += shortest_path(lines, labels, begin, end)
    others = [lines[i] for i in path if i not in set(dpas)]
    return Loop(len(dpas), len(others), sum("send" in line for line in others),
                sum(cycles_of(line, lanes) for line in others))


def loop_of(gpu, scheme, rows):
    wide = intel.DEVICES[gpu.target]
    registers = " -cl-intel-256-GRF-per-thread" if rows == 32 else ""
    options = f"{scheme.options} -D LANES={wide} -D TILES={TILES} -D SPLITS={SPLITS} -D WHOLE_BLOCKS -D ROWS={rows}"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        binary, log = intel.compiled(folder, KERNELS, gpu.target, "matrix.cl", options + registers)
        text = binary and intel.disassembled(folder, binary, gpu.target)
    if not text:
        sys.exit(f"cannot compile and disassemble matrix.cl for {gpu.target}; needs ocloc and libiga64\n{log}")
    return hot_loop(text, gpu.lanes)


def dpas_cycles(gpu, wide):
    """Cycles of one dpas.8x8: 8 rows, `wide` columns, 16 products each."""
    return 2 * 8 * wide * 16 / (gpu.half / gpu.engines / gpu.clock)


def loop_cycles(gpu, loop):
    """Of one engine: the slowest of matrix engine, all other instructions, and its share of the load unit."""
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
    if not scheme.options:
        return f"{floor * 1e6:,.0f} / –"
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
        print("| device | scheme | rows | dpas | other instructions | of these, memory | cycles of dpas, others, loads | "
              "share of dpas rate |\n| --- | --- | --- | --- | --- | --- | --- | --- |")
    else:
        print("| device | scheme | " + " | ".join(f"{t:,}" for t in TOKENS) + " |\n" + "| --- " * 7 + "|")
    for gpu in GPUS:
        for scheme in SCHEMES:
            loops = {rows: loop_of(gpu, scheme, rows) for rows in (8, 32)} if scheme.options else {}
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
