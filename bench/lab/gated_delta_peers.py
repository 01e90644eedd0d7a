#!/usr/bin/env python3
"""µs of the gated delta rule by flash-linear-attention and by transformers' torch code, at Qwen3-Next's shape: gates
and norms of queries and keys included, as in gated_delta.cc. By replay of CUDA graphs; torch's code is not captured.

    pip install torch transformers fla-core
    for i in 0 1 2 3 4 5 6 7; do WARM=$i/8 bench/lab/gated_delta_peers.py & done; wait  # compiles side by side
    bench/lab/gated_delta_peers.py

WARM=i/n runs only every n-th of the configurations that Triton tries, so that n processes compile all of them. The last
command then only times them.
"""

import os
import statistics

import torch
from triton.runtime.autotuner import Autotuner

WARM = os.environ.get("WARM")
if WARM:
    first, of = map(int, WARM.split("/"))
    every_config = Autotuner.prune_configs

    def some_configs(self, *arguments, **named):
        configs = list(every_config(self, *arguments, **named))
        return configs[first % len(configs)::of] or configs[:1]

    Autotuner.prune_configs = some_configs

from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule  # noqa: E402

KEY_HEADS, HEADS, DIM = 16, 32, 128
A_LOG = torch.full((HEADS,), -3.0, device="cuda")
DT_BIAS = torch.full((HEADS,), -3.0, device="cuda")


def inputs(sequences: int, tokens: int):
    def normal(*shape):
        return torch.randn(sequences, tokens, *shape, device="cuda", dtype=torch.bfloat16)

    state = 0.1 * torch.randn(sequences, HEADS, DIM, DIM, device="cuda")
    return normal(KEY_HEADS, DIM), normal(KEY_HEADS, DIM), normal(HEADS, DIM), normal(HEADS), normal(HEADS), state


def by_fla(rule):
    def run(q, k, v, a, b, state):
        return rule(q, k, v, g=a, beta=b, initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=True,
                    use_gate_in_kernel=True, A_log=A_LOG, dt_bias=DT_BIAS, use_beta_sigmoid_in_kernel=True)
    return run


def by_torch(rule):
    def run(q, k, v, a, b, state):
        g = -A_LOG.exp() * torch.nn.functional.softplus(a.float() + DT_BIAS)
        times = HEADS // KEY_HEADS
        return rule(q.repeat_interleave(times, 2), k.repeat_interleave(times, 2), v, g=g, beta=torch.sigmoid(b),
                    initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=True)
    return run


def median(call, calls: int) -> float:
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    times = []
    with torch.cuda.stream(stream):
        for i in range(min(calls, 4)):
            call(i)
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            for i in range(calls):
                call(i)
        for _ in range(9):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            stream.synchronize()
            times.append(begin.elapsed_time(end) * 1e3 / calls)
    return statistics.median(times)


def median_of_calls(call) -> float:
    times = []
    for _ in range(6):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times[1:])


def main() -> None:
    torch.set_grad_enabled(False)
    chunks, steps = by_fla(chunk_gated_delta_rule), by_fla(fused_recurrent_gated_delta_rule)
    if WARM:
        chunks(*inputs(1, 2048)), chunks(*inputs(4, 2048)), steps(*inputs(1, 1))
        return
    for sequences, tokens in ((1, 1), (8, 1), (64, 1), (1, 2048), (1, 8192), (4, 2048)):
        run = steps if tokens == 1 else chunks
        bytes_of_one = 8 * sequences * HEADS * DIM * DIM + 30000 * sequences * tokens
        turns = max(1, min(16, (512 << 20) // bytes_of_one))
        sets = [inputs(sequences, tokens) for _ in range(turns)]
        print(f"fla {sequences} x {tokens}: {median(lambda i: run(*sets[i % turns]), max(turns, 4)):.1f} µs", flush=True)
    from transformers.models.qwen3_next import modeling_qwen3_next as qwen
    for sequences, tokens in ((1, 1), (64, 1), (1, 2048), (1, 8192)):
        run = by_torch(qwen.torch_recurrent_gated_delta_rule if tokens == 1 else qwen.torch_chunk_gated_delta_rule)
        one = inputs(sequences, tokens)
        print(f"torch {sequences} x {tokens}: {median_of_calls(lambda: run(*one)):.0f} µs", flush=True)


main()
