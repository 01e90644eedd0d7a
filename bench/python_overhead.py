#!/usr/bin/env python3
"""Times calls from Python with zero tokens: every check and conversion of a call, and no work behind them.

    bench/python_overhead.py                  on the CPU
    bench/python_overhead.py --device cuda    on an NVIDIA GPU

A cell is the median of 30 rounds of 500 calls, in microseconds.
"""
import argparse
import statistics
import time

import torch
import transformers
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

import moracle
from moracle.integrations import transformers as door
from moracle.integrations.torch import Experts
from moracle.integrations.vllm import operator as of_vllm

E, H, I, TOP_K = 4, 128, 128, 2


def calls_on(device):
    """{name: a call with zero tokens}"""
    door.register()
    config = transformers.Qwen3MoeConfig(hidden_size=H, moe_intermediate_size=I, num_experts=E, num_experts_per_tok=TOP_K)
    config._experts_implementation = "moracle"
    with torch.device(device):
        of_transformers = Qwen3MoeExperts(config).to(torch.bfloat16).eval()
    for weight in of_transformers.parameters():
        weight.data.normal_(0, 0.02)
    w1, w2 = of_transformers.gate_up_proj.detach(), of_transformers.down_proj.detach()
    packed = moracle.pack(w1, w2, top_k=TOP_K)
    module = Experts(packed)
    hidden = torch.empty(0, H, dtype=torch.bfloat16, device=device)
    ids, weights = hidden.new_empty(0, TOP_K, dtype=torch.int32), hidden.new_empty(0, TOP_K, dtype=torch.float32)
    output = torch.empty_like(hidden)
    operator = torch.ops.moracle.experts
    layer = of_vllm.name_of(packed, "layer")
    return {"FusedMoe.apply": lambda: packed.moe.apply(hidden, ids, weights, output),
            "PackedExperts, new output": lambda: packed(hidden, weights, ids),
            "fused_experts": lambda: moracle.fused_experts(hidden, w1, w2, weights, ids),
            "integrations.torch.Experts": lambda: module(hidden, weights, ids),
            "torch.ops.moracle.experts": lambda: operator(hidden, weights, ids, module.handle),
            "a layer of the vLLM plugin, eager": lambda: of_vllm.experts(hidden, weights, ids, layer),
            "torch.ops.moracle.layer_experts": lambda: torch.ops.moracle.layer_experts(hidden, weights, ids, layer),
            "experts module of transformers": lambda: of_transformers(hidden, ids, weights)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    print("| call | µs |\n| --- | ---: |")
    for name, call in calls_on(options.device).items():
        rounds = []
        for _ in range(30):
            begun = time.perf_counter()
            for _ in range(500):
                call()
            rounds.append((time.perf_counter() - begun) * 1e6 / 500)
        print(f"| `{name}` | {statistics.median(rounds):.1f} |", flush=True)


if __name__ == "__main__":
    with torch.no_grad():
        main()
