#!/usr/bin/env python3
"""Times a MoE layer through vLLM's method objects: vLLM's own choice of kernels, and the plugin, on the same tensors.

    bench/vllm_layers.py --device cuda                               the experts of Qwen3-30B-A3B on an NVIDIA GPU
    bench/vllm_layers.py --schemes bf16 --tokens 1,8 --num-experts 16          a smaller layer on the CPU

Both methods take turns within each round. A cell is the median of the rounds in microseconds. On a GPU a round replays a
CUDA graph of 16 calls with other tokens each: together they read more weights than the L2 cache holds. "eager" is the time
of the host for a call that the GPU need not finish. On a CPU the whole layer is timed, because vLLM's own methods there
also route. A scheme that vLLM refuses has no time. Needs the package moracle and vLLM 0.32 or 0.33.
"""
import argparse
import functools
import os
import statistics
import tempfile
import time

os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

import torch
from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
from vllm.distributed.parallel_state import init_distributed_environment, initialize_model_parallel
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers.fused_moe.layer import FusedMoEFactory
from vllm.model_executor.layers.quantization import get_quantization_config
from vllm.v1.worker.workspace import init_workspace_manager

from moracle.integrations.vllm import config as plugin

GROUP = 128
ROUNDS, CALLS = 15, 16


def _compressed(form, weights, inputs=None):
    group = {"targets": ["Linear"], "weights": {"symmetric": True, "dynamic": False} | weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}, "ignore": ["lm_head"]}


# Quantization configs as checkpoints have them. None: no quantization.
SCHEMES = {
    "bf16": None,
    "int4-w4a16-g128": _compressed("pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP}),
    "int8-w8a8": _compressed("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"},
                             {"num_bits": 8, "type": "int", "strategy": "token", "symmetric": True, "dynamic": True}),
    "fp8-w8a8-channel": _compressed("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"},
                                    {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True}),
    "fp8-w8a8-block128x128": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
}


def fill(experts, seed=1):
    """Random weights of the size that trained ones have, by the type of each parameter."""
    generator = torch.Generator(device=next(experts.parameters()).device).manual_seed(seed)
    for name, parameter in experts.named_parameters():
        data, columns = parameter.data, experts.hidden_size if name.startswith("w13") else experts.intermediate_size_per_partition
        step = columns ** -0.5
        if name.endswith("_shape") or "bias" in name:
            continue
        if data.dtype == torch.int32:
            data.random_(-2**31, 2**31 - 1, generator=generator)
        elif data.dtype == torch.int8:
            data.random_(-127, 128, generator=generator)
        elif "scale" in name:  # int4 codes have a deviation of 4.6, int8 codes of 73, the fp8 numbers below of 1
            step /= 4.6 if hasattr(experts, "w13_weight_packed") else 73 if experts.w13_weight.dtype == torch.int8 else 1
            data.copy_(torch.empty_like(data, dtype=torch.float32).uniform_(0.9 * step, 1.1 * step, generator=generator))
        else:
            for expert in data:
                values = torch.empty(expert.shape, device=data.device, dtype=torch.float32).normal_(generator=generator)
                expert.copy_(values if data.dtype == torch.float8_e4m3fn else values * step)


def layer_of(scheme, options, served):
    """A layer of vLLM with its own method, or with that of the plugin."""
    found = SCHEMES[scheme]
    if found is None:
        config = plugin.MoracleConfig() if served else None
    else:
        config = (plugin.MoracleConfig if served else get_quantization_config(found["quant_method"])).from_config(dict(found))
    layer = FusedMoEFactory(options.num_experts, options.top_k, options.hidden_size, options.intermediate_size,
                            params_dtype=torch.bfloat16, quant_config=config,
                            prefix=f"model.layers.{int(served)}.mlp.experts")
    fill(layer.routed_experts)
    method = layer.routed_experts.quant_method
    method.process_weights_after_loading(layer.routed_experts)
    layer.routed_experts._ensure_moe_quant_config_init()
    return layer


def inputs(num_tokens, options, seed):
    """hidden_states, router logits, router weights and ids of the chosen experts."""
    generator = torch.Generator(device=options.device).manual_seed(seed)
    hidden = torch.randn(num_tokens, options.hidden_size, device=options.device, generator=generator).bfloat16()
    logits = torch.randn(num_tokens, options.num_experts, device=options.device, generator=generator).bfloat16()
    weights, ids = logits.float().softmax(-1).topk(options.top_k)
    return hidden, logits, weights / weights.sum(-1, keepdim=True), ids.int()


def call(layer, given):
    hidden, logits, weights, ids = given
    if hidden.device.type == "cpu":
        return layer(hidden, logits)
    experts = layer.routed_experts
    return experts.quant_method.apply(experts, hidden, weights, ids, None, None)


def graph_of(layer, many):
    """A CUDA graph of a call for each input."""
    for given in many[:2]:
        call(layer, given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for given in many:
            call(layer, given)
    return graph


def seconds(work, on_gpu):
    begun = time.perf_counter()
    work()
    if on_gpu:
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def measure(layers, num_tokens, options):
    """For each layer: µs of a call, and of the host on a GPU."""
    on_gpu = options.device == "cuda"
    many = [inputs(num_tokens, options, seed) for seed in range(CALLS if on_gpu else 4)]
    eager = [functools.partial(lambda layer: [call(layer, given) for given in many], layer) for layer in layers]
    works = [graph_of(layer, many).replay for layer in layers] if on_gpu else eager
    taken, host = [[] for _ in layers], [[] for _ in layers]
    for number in range(ROUNDS + 2):
        for index in range(len(layers)):
            taken[index].append(seconds(works[index], on_gpu))
            if on_gpu and num_tokens == 1:
                host[index].append(seconds(eager[index], False))
                torch.cuda.synchronize()
    micro = [statistics.median(times[2:]) * 1e6 / len(many) for times in taken]
    return micro, [statistics.median(times[2:]) * 1e6 / len(many) if times else None for times in host]


def report(scheme, options):
    layers, served = [], layer_of(scheme, options, True)
    try:
        layers = [layer_of(scheme, options, False), served]
    except Exception as error:  # the message of vLLM is the result
        print(f"| {scheme} | refused: {str(error).splitlines()[0][:80]} | | | |", flush=True)
        layers = [served]
    method = layers[0].routed_experts.quant_method
    kernel = type(getattr(getattr(method.moe_kernel, "impl", None), "fused_experts", method)).__name__
    for num_tokens in options.tokens:
        given = inputs(num_tokens, options, 99)
        outputs = [call(layer, given).float() for layer in layers]
        apart = ((outputs[0] - outputs[-1]).norm() / outputs[0].norm()).item()
        # vLLM quantizes activations to 8 bits where Moracle does not, and the other way round; 1 is another function
        assert apart < 0.1, f"{scheme}, {num_tokens} tokens: {apart} apart"
        micro, host = measure(layers, num_tokens, options)
        own = f"{micro[0]:.1f}" if len(layers) > 1 else ""
        ratio = f"{micro[0] / micro[-1]:.2f}" if len(layers) > 1 else ""
        times = "" if host[0] is None else f"{host[0]:.0f}, {host[-1]:.0f}"
        print(f"| {scheme} ({kernel}) | {num_tokens} | {own} | {micro[-1]:.1f} | {ratio} | {apart:.4f} | {times} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--schemes", type=lambda text: text.split(","), default=list(SCHEMES))
    parser.add_argument("--tokens", type=lambda text: [int(number) for number in text.split(",")], default=[1, 8, 64, 512])
    for name, default in (("num-experts", 128), ("top-k", 8), ("hidden-size", 2048), ("intermediate-size", 768)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    on_gpu = options.device == "cuda"
    config = VllmConfig(device_config=DeviceConfig(options.device))
    config.scheduler_config.max_num_batched_tokens = max(options.tokens)
    print("| scheme (vLLM's experts) | tokens | vLLM µs | plugin µs | vLLM / plugin | apart | eager µs: vLLM, plugin |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder, set_current_vllm_config(config), torch.no_grad():
        init_distributed_environment(1, 0, f"file://{folder}/store", 0, "nccl" if on_gpu else "gloo")
        initialize_model_parallel()
        init_workspace_manager(torch.device(options.device))
        torch.set_default_dtype(torch.bfloat16)
        with torch.device(options.device):
            for scheme in options.schemes:
                config.compilation_config.static_forward_context.clear()
                with set_forward_context(None, config, num_tokens=max(options.tokens)):
                    report(scheme, options)


if __name__ == "__main__":
    main()
