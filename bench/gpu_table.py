#!/usr/bin/env python3
"""Prints the table of MoE layers on a GPU beside other libraries: µs, floor, ratios, geometric means.

    bench/gpu_table.py --anchors anchors.json > table.md              runs moracle bench, about two minutes
    bench/gpu_table.py --anchors anchors.json --json bench.json       the same, and keeps the document
    bench/gpu_table.py --from bench.json > table.md                   prints a document that exists

A cell is `µs (floor) vLLM best`: the layer's time, the least time that the GPU allows, and how many times
as long vLLM's choice and the best public kernel take; above 1 Moracle is faster, – means no measurement. anchors.json is what
`moracle bench --anchors` reads: a list of {"shape", "scheme", "impl", "M", "us_graph"}.
"""
import argparse
import json
import math
import statistics
import subprocess
import sys

SHAPES = "qwen3-30b-a3b,mixtral-8x7b,deepseek-v3-ep8,gpt-oss-120b"
SCHEMES = ("int8-w8a8,int4-w4a16-g128,fp8-w8a8-block128x128,fp8-w8a8-channel,bf16,mxfp4-w4a16,"
           "int8-w8a16-g128,mxfp8-w8a16,mxfp8-w8a8")
TOKENS = "1,8,32,128,512,2048,8192"
OTHERS = (("vllm", "vLLM's choice"), ("best_public", "the best public kernel"))


def measure(options):
    command = [options.moracle, "bench", "--device", "cuda", "--shape", SHAPES, "--scheme",
               options.scheme, "--tokens", TOKENS, "--seconds", str(options.seconds), "--json"]
    if options.anchors:
        command += ["--anchors", options.anchors]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: ended with {done.returncode}")
    return json.loads(done.stdout)


def ratio(row, whom):
    return f"{row[whom]['ratio']:.2f}" if whom in row else "–"


def means(rows):
    """One line for each other library: geometric mean, and the cells in which it is faster."""
    for whom, name in OTHERS:
        ratios = [row[whom]["ratio"] for row in rows if whom in row]
        if ratios:
            mean = math.exp(statistics.fmean(map(math.log, ratios)))
            yield f"{name}: {mean:.2f} over {len(ratios)} cells, faster in {sum(q < 1 for q in ratios)}"


def print_table(document):
    rows = [row for row in document["rows"] if row.get("chosen")]
    tokens = sorted({row["num_tokens"] for row in rows})
    print("| layer | scheme | " + " | ".join(f"{t:,}" for t in tokens) + " |")
    print("| --- " * (len(tokens) + 2) + "|")
    layers = {}
    for row in rows:
        layers.setdefault((row["shape"], row["scheme"]), {})[row["num_tokens"]] = row
    for (shape, scheme), cells in layers.items():
        line = [f"{c['us_median']:,.0f} ({c['us_floor']:,.0f}) {ratio(c, 'vllm')} {ratio(c, 'best_public')}"
                if (c := cells.get(t)) else "–" for t in tokens]
        print(f"| {shape} | {scheme} | " + " | ".join(line) + " |")
    print("\nHow many times as long others take, geometric means. All schemes:")
    for line in means(rows):
        print(f"- {line}")
    for scheme in dict.fromkeys(row["scheme"] for row in rows):
        lines = list(means([row for row in rows if row["scheme"] == scheme]))
        if lines:
            print(f"- {scheme}: " + "; ".join(lines))
    backends = ", ".join(sorted({row["backend"] for row in rows}))
    print(f"\nConditions: {backends}, as the oracle chose; replay of CUDA graphs, median; limits as measured: "
          + json.dumps(document["limits"], ensure_ascii=False))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--moracle", default="moracle", help="the command")
    parser.add_argument("--anchors", help="times of other kernels on this GPU")
    parser.add_argument("--scheme", default=SCHEMES)
    parser.add_argument("--seconds", type=float, default=0.1, help="for each cell")
    parser.add_argument("--json", help="also write the document of moracle bench here")
    parser.add_argument("--from", dest="document", help="print this document instead of measuring")
    options = parser.parse_args()
    if options.document:
        with open(options.document, encoding="utf-8") as file:
            document = json.load(file)
    else:
        document = measure(options)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(document, file)
    print_table(document)


if __name__ == "__main__":
    main()
