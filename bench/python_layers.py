#!/usr/bin/env python3
"""Times a layer of transformers with its own experts implementations and with Moracle's, on the same tensors.

    bench/python_layers.py                    a table of one layer of Qwen3-30B-A3B in bf16, on the CPU with 2 threads
    bench/python_layers.py --device cuda      the same on an NVIDIA GPU

Implementations take turns within each round, so that a change of the machine's speed meets all of them. A cell is the
median of the rounds in microseconds. On a GPU a round queues several calls before it waits. Needs the package moracle,
torch and transformers 5.7 or later. bench/python_quantized.py and bench/python_overhead.py measure the rest.
"""
import argparse
import math
import statistics
import time

import torch
import transformers
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

from moracle.integrations import transformers as door

SHAPE = dict(hidden_size=2048, moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8)
IMPLEMENTATIONS = ("eager", "batched_mm", "grouped_mm", "moracle")
MOST_GATHERED = {"cpu": 4 << 30, "cuda": 32 << 30}  # bytes; batched_mm copies the weights of every token's experts


def experts(device):
    """The experts module of transformers with random weights in bf16."""
    config = transformers.Qwen3MoeConfig(**SHAPE)
    config._experts_implementation = "eager"
    with torch.device(device):
        module = Qwen3MoeExperts(config).to(torch.bfloat16).eval()
    for weight in module.parameters():
        weight.data.normal_(0, 0.02)
    return module


def routing(num_tokens, device, seed):
    """hidden_states, ids and weights as a router gives them."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(num_tokens, SHAPE["hidden_size"], generator=generator).bfloat16()
    scores = torch.rand(num_tokens, SHAPE["num_experts"], generator=generator)
    weights, ids = scores.softmax(-1).topk(SHAPE["num_experts_per_tok"])
    weights = (weights / weights.sum(-1, keepdim=True)).bfloat16()
    return hidden.to(device), ids.to(device), weights.to(device)


def call_of(module, implementation, arguments):
    """A function that runs the module with this implementation."""
    def call():
        module.config._experts_implementation = implementation
        return module(*arguments)
    return call


def compare(calls, expected, bound, where):
    """Stops if the output of a call differs from `expected`."""
    for name, call in calls.items():
        difference = (call().float() - expected).norm() / expected.norm()
        if not difference < bound:
            raise SystemExit(f"{name}, {where}: differs by {difference:.3g}")


def in_turns(calls, device, seconds):
    """{name: median of µs}. Each round times every call, and begins with another one."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None

    def microseconds(call, times):
        wait()
        begun = time.perf_counter()
        for _ in range(times):
            call()
        wait()
        return (time.perf_counter() - begun) * 1e6 / times
    once = {name: microseconds(call, 1) for name, call in calls.items()}
    times = {name: max(1, min(20, int(2e4 / us))) if device == "cuda" else 1 for name, us in once.items()}
    rounds = max(3, min(50, int(seconds * 1e6 / sum(us * times[name] for name, us in once.items()))))
    measured, names = {name: [] for name in calls}, list(calls)
    for turn in range(rounds):
        for i in range(len(names)):
            name = names[(turn + i) % len(names)]
            measured[name].append(microseconds(calls[name], times[name]))
    return {name: statistics.median(values) for name, values in measured.items()}


def geometric_mean(values):
    return math.exp(statistics.fmean(map(math.log, values)))


def row(first, times, names, ratios):
    """A line of a Markdown table."""
    cells = [f"{times[name]:,.0f}" if name in times else "–" for name in names]
    print(f"| {first} | " + " | ".join(cells + [f"{ratio:.2f}" for ratio in ratios]) + " |", flush=True)


def parser_of(text):
    """Command line options that the programs of layers share."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch; Moracle takes all CPUs of the process")
    parser.add_argument("--tokens", type=lambda text: [int(part) for part in text.split(",")],
                        default=[1, 8, 32, 128, 512, 2048])
    parser.add_argument("--seconds", type=float, default=12, help="for each row of the table")
    return parser


def main():
    options = parser_of(__doc__).parse_args()
    torch.set_num_threads(options.threads)
    door.register()
    module = experts(options.device)
    print("| tokens | " + " | ".join(IMPLEMENTATIONS) + " | best other / moracle |")
    print("| ---: " * (len(IMPLEMENTATIONS) + 2) + "|")
    ratios = []
    for num_tokens in options.tokens:
        arguments = routing(num_tokens, options.device, num_tokens)
        gathered = num_tokens * SHAPE["num_experts_per_tok"] * 2 * SHAPE["moe_intermediate_size"] * SHAPE["hidden_size"] * 2
        names = [name for name in IMPLEMENTATIONS if name != "batched_mm" or gathered <= MOST_GATHERED[options.device]]
        calls = {name: call_of(module, name, arguments) for name in names}
        compare(calls, calls["eager"]().float(), 2e-2, f"{num_tokens} tokens")
        times = in_turns(calls, options.device, options.seconds)
        ratios.append(min(us for name, us in times.items() if name != "moracle") / times["moracle"])
        row(f"{num_tokens:,}", times, IMPLEMENTATIONS, ratios[-1:])
    print(f"\nGeometric mean: {geometric_mean(ratios):.2f}")


if __name__ == "__main__":
    with torch.no_grad():
        main()
