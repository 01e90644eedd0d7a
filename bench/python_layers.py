#!/usr/bin/env python3
"""Times a layer of transformers with its own experts implementations and with Moracle's, on the same tensors.

    bench/python_layers.py                    a table of one layer of Qwen3-30B-A3B in bf16, on the CPU with 2 threads
    bench/python_layers.py --device cuda      the same on an NVIDIA GPU
    bench/python_layers.py --overhead         the host's time for a Python call that computes nothing

Implementations take turns within each round, so that a change of the machine's speed meets all of them. A cell is the
median of the rounds in microseconds. Needs the package moracle, torch and transformers 5.8 or later.
"""
import argparse
import math
import statistics
import time

import torch
import transformers
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

import moracle
from moracle.integrations import transformers as door
from moracle.integrations.torch import Experts

SHAPE = dict(hidden_size=2048, moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8)
IMPLEMENTATIONS = ("eager", "batched_mm", "grouped_mm", "moracle")
MOST_GATHERED = 4 << 30  # bytes; batched_mm copies the weights of every token's experts


def experts(device):
    config = transformers.Qwen3MoeConfig(**SHAPE)
    config._experts_implementation = "eager"
    with torch.device(device):
        module = Qwen3MoeExperts(config).to(torch.bfloat16).eval()
    for weight in module.parameters():
        weight.data.normal_(0, 0.02)
    return module


def routing(num_tokens, device, seed):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(num_tokens, SHAPE["hidden_size"], generator=generator).bfloat16()
    scores = torch.rand(num_tokens, SHAPE["num_experts"], generator=generator)
    weights, ids = scores.softmax(-1).topk(SHAPE["num_experts_per_tok"])
    weights = (weights / weights.sum(-1, keepdim=True)).bfloat16()
    return hidden.to(device), ids.to(device), weights.to(device)


def microseconds(module, implementation, arguments, device, calls):
    module.config._experts_implementation = implementation
    if device == "cuda":
        torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(calls):
        module(*arguments)
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - begun) * 1e6 / calls


def fits(implementation, num_tokens):
    gathered = num_tokens * SHAPE["num_experts_per_tok"] * 2 * SHAPE["moe_intermediate_size"] * SHAPE["hidden_size"] * 2
    return implementation != "batched_mm" or gathered <= MOST_GATHERED


def measure(module, num_tokens, device, seconds):
    """{implementation: median of µs}, after a comparison of the outputs with eager's."""
    arguments = routing(num_tokens, device, num_tokens)
    chosen = [name for name in IMPLEMENTATIONS if fits(name, num_tokens)]
    outputs = {}
    for name in chosen:
        module.config._experts_implementation = name
        outputs[name] = module(*arguments).float()
        difference = (outputs[name] - outputs["eager"]).norm() / outputs["eager"].norm()
        if not difference < 2e-2:
            raise SystemExit(f"{name} at {num_tokens} tokens differs from eager by {difference:.3g}")
    once = {name: microseconds(module, name, arguments, device, 1) for name in chosen}
    rounds = max(3, min(50, int(seconds * 1e6 / sum(once.values()))))
    times = {name: [] for name in chosen}
    for turn in range(rounds):
        for name in chosen[turn % len(chosen):] + chosen[:turn % len(chosen)]:
            times[name].append(microseconds(module, name, arguments, device, 1))
    return {name: statistics.median(values) for name, values in times.items()}


def table(options):
    module = experts(options.device)
    print("| tokens | " + " | ".join(IMPLEMENTATIONS) + " | best other / moracle |")
    print("| ---: " * (len(IMPLEMENTATIONS) + 2) + "|")
    ratios = []
    for num_tokens in options.tokens:
        times = measure(module, num_tokens, options.device, options.seconds)
        ratios.append(min(value for name, value in times.items() if name != "moracle") / times["moracle"])
        cells = [f"{times[name]:,.0f}" if name in times else "–" for name in IMPLEMENTATIONS]
        print(f"| {num_tokens:,} | " + " | ".join(cells) + f" | {ratios[-1]:.2f} |", flush=True)
    print(f"\nGeometric mean: {math.exp(statistics.fmean(map(math.log, ratios))):.2f}")


def overhead(options):
    """Calls with zero tokens: every check and conversion of a call, and no work behind them."""
    tiny = torch.randn(4, 256, 128, dtype=torch.bfloat16, device=options.device)
    packed = moracle.pack(tiny, tiny[:, :128].contiguous(), top_k=2)
    hidden = torch.empty(0, 128, dtype=torch.bfloat16, device=options.device)
    ids, weights = hidden.new_empty(0, 2, dtype=torch.int32), hidden.new_empty(0, 2, dtype=torch.float32)
    output = torch.empty_like(hidden)
    module = Experts(packed)
    calls = {"FusedMoe.apply": lambda: packed.moe.apply(hidden, ids, weights, output),
             "PackedExperts, new output": lambda: packed(hidden, weights, ids),
             "integrations.torch.Experts": lambda: module(hidden, weights, ids),
             "torch.ops.moracle.experts": lambda: torch.ops.moracle.experts(hidden, weights, ids, module.handle)}
    print("| call | µs |\n| --- | ---: |")
    for name, call in calls.items():
        rounds = []
        for _ in range(30):
            begun = time.perf_counter()
            for _ in range(500):
                call()
            rounds.append((time.perf_counter() - begun) * 1e6 / 500)
        print(f"| `{name}` | {statistics.median(rounds):.1f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch; Moracle takes all CPUs of the process")
    parser.add_argument("--tokens", type=lambda text: [int(part) for part in text.split(",")],
                        default=[1, 8, 32, 128, 512, 2048])
    parser.add_argument("--seconds", type=float, default=12, help="for each number of tokens")
    parser.add_argument("--overhead", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    door.register()
    with torch.no_grad():
        (overhead if options.overhead else table)(options)


if __name__ == "__main__":
    main()
