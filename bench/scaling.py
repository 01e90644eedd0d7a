#!/usr/bin/env python3
"""A model of step time for experts spread over many GPUs: compute, exchange, imbalance. Prints a table and writes the
picture of docs/scaling.md.

  python3 bench/scaling.py [--svg docs/images/scaling.svg]

Compute of one rank: the bytes that a decode step reads at the bandwidth that `moracle bench` reaches, or its operations
at the rate that it reaches, whichever is longer. Exchange: latency and bandwidth, within a host NVLink, between hosts the
network. Imbalance: the busiest rank's rows over the mean, for experts that are chosen evenly and independently; measured
routing is worse, see --skew. Nothing here was measured on more than two GPUs."""
import argparse
import math
import random

# DeepSeek-V3: 58 layers with 256 experts of 7168 x 2048, top-8, fp8 weights (1 byte); 671e9 weights in all.
LAYERS, EXPERTS, TOP_K, HIDDEN, SIZE = 58, 256, 8, 7168, 2048
OTHER_BYTES = 17e9          # attention, dense layers, shared experts, embedding: on every rank
BANDWIDTH = 4.0e12          # bytes/s that a decode step reads of an H200's memory (85 % of 4.8e12)
FLOPS = 1.2e15              # fp8 operations/s that the experts' products reach
CONTEXT = 4096              # tokens in the cache of each sequence
CACHE_BYTES = 61 * 576 * 2 * CONTEXT  # latent keys and values of one sequence, bf16
NVLINK = (10e-6, 284e9)     # seconds per exchange, bytes/s leaving a GPU: measured between two H200
NETWORK = (15e-6, 45e9)     # one 400 Gbit/s adapter per GPU at 90 %: an assumption
PER_HOST = 8
ROW_THERE = HIDDEN + HIDDEN // 128 * 4 + TOP_K * 8  # fp8 codes, a scale for each 128, ids and weights
ROW_BACK = HIDDEN * 2                               # bf16


def holders(ranks, others_only=True):
    """Mean number of other ranks that hold any of a token's experts."""
    mean = ranks * (1 - (1 - 1 / ranks) ** TOP_K)
    return mean * (ranks - 1) / ranks if others_only else mean


def imbalance(ranks, tokens_per_rank, skew, seed=1, draws=40):
    """Rows of the busiest rank over the mean. `skew` 0: experts are chosen evenly; 1: as by a Zipf law."""
    if ranks == 1:
        return 1.0
    source, tokens = random.Random(seed), min(tokens_per_rank * ranks, 2000)
    weights = [1 / (1 + e) ** skew for e in range(EXPERTS)]
    source.shuffle(weights)
    worst = 0.0
    for _ in range(max(1, draws * 64 // max(tokens, 64))):
        loads = [0] * ranks
        for _ in range(tokens):
            chosen = set()
            while len(chosen) < TOP_K:
                chosen.update(source.choices(range(EXPERTS), weights, k=TOP_K - len(chosen)))
            for e in chosen:
                loads[e * ranks // EXPERTS] += 1
        worst += max(loads) / (sum(loads) / ranks)
    worst /= max(1, draws * 64 // max(tokens, 64))
    if tokens_per_rank * ranks > tokens:  # chance averages out over more tokens
        even = 1 + (worst - 1) * math.sqrt(tokens / (tokens_per_rank * ranks))
        worst = even if skew == 0 else max(even, worst * 0.9)
    return worst


def exchange_seconds(ranks, tokens, row_bytes):
    """One direction: the slower of the host and the network."""
    if ranks == 1:
        return 0.0
    near = min(ranks, PER_HOST) - 1
    far = ranks - min(ranks, PER_HOST)
    rows = tokens * holders(ranks) / (ranks - 1)
    inside = NVLINK[0] + rows * near * row_bytes / NVLINK[1]
    outside = NETWORK[0] + rows * far * row_bytes / NETWORK[1] if far else 0.0
    return max(inside, outside)


def step(ranks, tokens, skew):
    """Seconds of one decode step with `tokens` sequences on each rank: compute of experts, of the rest, exchange."""
    local = EXPERTS / ranks
    rows = tokens * TOP_K * imbalance(ranks, tokens, skew)
    touched = local * (1 - (1 - 1 / EXPERTS) ** (tokens * ranks * TOP_K))
    weights = touched * 3 * HIDDEN * SIZE
    experts = LAYERS * max(weights / BANDWIDTH, rows * 6 * HIDDEN * SIZE / FLOPS)
    rest = max((OTHER_BYTES + tokens * CACHE_BYTES) / BANDWIDTH, tokens * 2 * OTHER_BYTES / FLOPS)
    exchange = LAYERS * (exchange_seconds(ranks, tokens, ROW_THERE) + exchange_seconds(ranks, tokens, ROW_BACK))
    return experts, rest, exchange


def table(counts, tokens, skew):
    lines = [f"{'GPUs':>5} {'experts':>8} {'rest':>8} {'exchange':>9} {'step ms':>8} {'tokens/s/GPU':>13} {'imbalance':>10}"]
    series = []
    for ranks in counts:
        experts, rest, exchange = step(ranks, tokens, skew)
        total = experts + rest + exchange
        series.append((ranks, tokens / total))
        lines.append(f"{ranks:5} {experts * 1e3:8.2f} {rest * 1e3:8.2f} {exchange * 1e3:9.2f} {total * 1e3:8.2f} "
                     f"{tokens / total:13.0f} {imbalance(ranks, tokens, skew):10.2f}")
    return lines, series


def picture(all_series, path):
    width, height, left, bottom = 640, 320, 70, 40
    top_value = max(value for _, series in all_series for _, value in series) * 1.1
    counts = [ranks for ranks, _ in all_series[0][1]]

    def place(i, value):
        return (left + i * (width - left - 150) / (len(counts) - 1),
                height - bottom - value / top_value * (height - bottom - 20))

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
             f'font-size="12"><rect width="100%" height="100%" fill="white"/>']
    for i, ranks in enumerate(counts):
        x, y = place(i, 0)
        parts.append(f'<text x="{x:.0f}" y="{y + 18:.0f}" text-anchor="middle">{ranks}</text>')
    for k in range(5):
        x, y = place(0, top_value * k / 4)
        parts.append(f'<text x="{left - 8}" y="{y + 4:.0f}" text-anchor="end">{top_value * k / 4:.0f}</text>'
                     f'<line x1="{left}" y1="{y:.0f}" x2="{width - 150}" y2="{y:.0f}" stroke="#ddd"/>')
    for (label, series), colour in zip(all_series, ("#1f77b4", "#ff7f0e", "#2ca02c")):
        points = " ".join("%.0f,%.0f" % place(i, value) for i, (_, value) in enumerate(series))
        x, y = place(len(series) - 1, series[-1][1])
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
                     f'<text x="{x + 8:.0f}" y="{y + 4:.0f}" fill="{colour}">{label}</text>')
    parts.append(f'<text x="{(width - 80) / 2:.0f}" y="{height - 6}" text-anchor="middle">GPUs</text>'
                 f'<text x="{left}" y="14">decoded tokens per second and GPU (model, not measured)</text></svg>')
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(parts) + "\n")


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--svg")
    options.add_argument("--skew", type=float, default=0.0, help="0: experts are chosen evenly; 1: as by a Zipf law")
    options.add_argument("--tokens", type=int, nargs="+", default=[16, 64, 256], help="sequences per GPU")
    given = options.parse_args()
    counts, all_series = [8, 16, 32, 64, 128, 256], []
    for tokens in given.tokens:
        lines, series = table(counts, tokens, given.skew)
        all_series.append((f"{tokens} sequences", series))
        print(f"{tokens} sequences per GPU\n" + "\n".join(lines) + "\n")
    if given.svg:
        picture(all_series, given.svg)


if __name__ == "__main__":
    main()
