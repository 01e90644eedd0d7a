"""Calls captured in CUDA graphs and compiled by torch."""
import pytest
from gpu_layers import gpu, inputs, layer, matrices, torch

import moracle

FEW = ["f16", "int4-w4a16-g32", "int8-w8a8", "fp8-w8a8-block128x128", "mxfp4-w4a16"]


def captured(packed, arguments, output):
    packed(*arguments, output)  # loads the kernels
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        packed(*arguments, output)
    return graph


@pytest.mark.parametrize("num_tokens", [1, 16, 300])
@pytest.mark.parametrize("scheme", FEW)
def test_replay_gives_the_bits_of_a_call(scheme, num_tokens):
    packed, _ = layer(scheme)
    arguments = inputs(num_tokens)
    output = torch.empty_like(arguments[0])
    graph = captured(packed, arguments, output)
    for seed in (5, 6):
        for tensor, other in zip(arguments, inputs(num_tokens, seed)):
            tensor.copy_(other)
        output.zero_()
        graph.replay()
        replayed = output.clone()
        assert torch.equal(replayed, packed(*arguments))
        assert replayed.any()


def test_fused_experts_call_is_captured():
    w1, w2 = (gpu(w).bfloat16() for w in matrices())
    hidden, weights, ids = inputs(8)
    ids = ids.long()  # converted within the graph
    moracle.fused_experts(hidden, w1, w2, weights, ids)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = moracle.fused_experts(hidden * 2, w1, w2, weights, ids) + 1
    graph.replay()
    assert torch.equal(output, moracle.fused_experts(hidden * 2, w1, w2, weights, ids) + 1)


def test_packing_during_capture_is_refused():
    w1, w2 = (gpu(w).bfloat16() for w in matrices())
    hidden, weights, ids = inputs(8)
    torch.cuda.synchronize()
    with pytest.raises(moracle.Unsupported, match="w1: needs a first call or pack\\(\\) before a graph is captured"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            moracle.fused_experts(hidden, w1, w2, weights, ids)


def test_graph_outlives_a_larger_layer():
    packed, _ = layer(max_num_tokens=16)
    arguments = inputs(16)
    output = torch.empty_like(arguments[0])
    graph = captured(packed, arguments, output)
    want = output.clone()
    larger, _ = layer(seed=8, max_num_tokens=4096)  # the shared workspace grows
    larger(*inputs(2000))
    output.zero_()
    graph.replay()
    assert torch.equal(output, want)


@pytest.mark.parametrize("backend", ["aot_eager", "cudagraphs", "inductor"])
def test_compiled_function_has_no_graph_break(backend):
    from moracle.integrations.torch import Experts
    module = Experts(layer()[0])

    def work(hidden, weights, ids):
        return module(hidden * 2, weights, ids) + 1
    arguments = inputs(12)
    compiled = torch.compile(work, fullgraph=True, backend=backend)
    with torch.no_grad():
        for _ in range(4):  # the third call replays
            got = compiled(*arguments).clone()
            assert torch.equal(got, work(*arguments))
