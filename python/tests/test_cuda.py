"""torch's tensors on an NVIDIA GPU: in place, on the current stream, without waiting, captured in graphs."""
import threading
import time

import float64_experts as f64
import numpy as np
import pytest
from schemes import SCHEMES, tensors_of

import moracle

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("torch finds no NVIDIA GPU", allow_module_level=True)
if not moracle.has_cuda():
    pytest.skip("this package is built without CUDA", allow_module_level=True)

E, H, I, TOP_K = 6, 256, 128, 3
GPU = torch.device("cuda", 0)
# f32 weights have no tensor cores: the reference serves them.
FEW = ["f16", "int4-w4a16-g32", "int8-w8a8", "fp8-w8a8-block128x128", "mxfp4-w4a16"]


def gpu(array):
    return torch.from_numpy(np.ascontiguousarray(array)).to(GPU)


def matrices(seed=7):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((E, 2 * I, H)) / 16).astype(np.float32), (rng.standard_normal((E, H, I)) / 11).astype(np.float32)


def layer(scheme="f16", seed=7, **options):
    """Packed experts on the GPU, and the values of both matrices."""
    tensors, values = tensors_of(*matrices(seed), SCHEMES[scheme][0])
    tensors = {name: gpu(array) for name, array in tensors.items()}
    packed = moracle.pack(tensors.pop("w1"), tensors.pop("w2"), top_k=TOP_K, scheme=scheme, **tensors, **options)
    return packed, values


def inputs(num_tokens, seed=3, dtype=torch.bfloat16):
    """hidden_states, topk_weights, topk_ids on the GPU."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randperm(E, generator=generator)[:TOP_K] for _ in range(num_tokens)]).int()
    hidden = torch.randn(num_tokens, H, generator=generator).to(dtype)
    return hidden.to(GPU), torch.rand(num_tokens, TOP_K, generator=generator).to(GPU), ids.to(GPU)


def error(got, want):
    got = got.double().cpu().numpy()
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def expected(values, hidden, weights, ids, quantize=None):
    return f64.experts(hidden.double().cpu().numpy(), *values, weights.double().cpu().numpy(), ids.cpu().numpy(),
                       quantize or (lambda x: x))


def sleep(milliseconds):
    """Keeps the current stream busy."""
    torch.cuda._sleep(int(milliseconds * 2e6))


# ---- results ----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("num_tokens", [1, 5, 70])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_scheme_matches_float64(scheme, num_tokens):
    packed, values = layer(scheme)
    assert packed.moe.device == "cuda:0"
    quantize = SCHEMES[scheme][2]
    arguments = inputs(num_tokens)
    # Activations between the products are bf16, and may change the code of a quantized one.
    assert error(packed(*arguments), expected(values, *arguments, quantize)) < (3e-2 if quantize else 6e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_fused_experts_takes_tensors_of_a_gpu(dtype):
    w1, w2 = (gpu(w).to(dtype) for w in matrices())
    hidden, weights, ids = inputs(9, dtype=dtype)
    got = moracle.fused_experts(hidden, w1, w2, weights, ids.long())
    assert (got.dtype, got.device, got.shape) == (dtype, GPU, hidden.shape)
    values = [w.double().cpu().numpy() for w in (w1, w2)]
    assert error(got, expected(values, hidden, weights, ids)) < 8e-3


def test_more_tokens_than_planned_run_in_parts():
    packed, values = layer(max_num_tokens=16)
    arguments = inputs(37)
    assert error(packed(*arguments), expected(values, *arguments)) < 6e-3


def test_layer_and_linear_of_a_checkpoint(model_folder):
    checkpoint = moracle.Checkpoint(model_folder)
    moe = moracle.FusedMoe(checkpoint.moe_layer(0), device="cuda")
    of_cpu = moracle.FusedMoe(checkpoint.moe_layer(0), device="cpu")
    spec = moe.spec
    hidden = torch.randn(6, spec.hidden_size).bfloat16()
    ids = torch.stack([torch.randperm(spec.num_experts)[:spec.top_k] for _ in range(6)]).int()
    weights = torch.rand(6, spec.top_k)
    got = moe.apply(hidden.to(GPU), ids.to(GPU), weights.to(GPU))
    assert error(got, of_cpu.apply(hidden.float(), ids, weights).double().numpy()) < 8e-3
    name = ["model.layers.0.self_attn.o_proj"]
    linear = moracle.Linear(checkpoint.linear(name), device="cuda")
    x = torch.randn(6, checkpoint.linear(name).shape[1]).bfloat16()
    want = moracle.Linear(checkpoint.linear(name), device="cpu").apply(x.float())
    assert error(linear.apply(x.to(GPU)), want.double().numpy()) < 6e-3
    with pytest.raises(moracle.InvalidArgument, match="x: needs an array on cuda:0; it is on cpu"):
        linear.apply(x)


# ---- memory and streams -----------------------------------------------------------------------------------------------

def test_arrays_are_used_in_place():
    packed, _ = layer()
    hidden, weights, ids = inputs(32)
    wide, out = torch.zeros(32, H + 64, dtype=hidden.dtype, device=GPU), torch.full((32, H + 64), 3.0, device=GPU)
    wide[:, :H] = hidden
    want = packed(hidden, weights, ids, torch.empty(32, H, device=GPU))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    assert packed(wide[:, :H], weights, ids, out[:, :H]).data_ptr() == out.data_ptr()
    assert torch.cuda.max_memory_allocated() == before
    assert torch.equal(out[:, :H], want)
    assert (out[:, H:] == 3).all()


@pytest.mark.parametrize("make", [torch.cuda.default_stream, lambda: torch.cuda.Stream()], ids=["default", "own"])
def test_call_runs_on_the_current_stream_and_does_not_wait(make):
    packed, _ = layer()
    hidden, weights, ids = inputs(8)
    want = packed(hidden, weights, ids)
    torch.cuda.synchronize()
    late, copy = torch.zeros_like(hidden), torch.zeros_like(want)
    torch.cuda.synchronize()
    with torch.cuda.stream(make()):
        sleep(200)
        late.copy_(hidden)
        output = torch.empty_like(want)
        begun = time.perf_counter()
        packed(late, weights, ids, output)
        seconds = time.perf_counter() - begun
        copy.copy_(output)
        done = torch.cuda.Event()
        done.record()
        assert not done.query()  # the host was not held until the sleep ended
        done.synchronize()
    assert seconds < 0.1
    assert torch.equal(copy, want)  # zeros if the layer had not waited for the copy


def test_stream_can_be_named():
    packed, _ = layer()
    hidden, weights, ids = inputs(8)
    want = packed(hidden, weights, ids)
    torch.cuda.synchronize()
    stream, late, output = torch.cuda.Stream(), torch.zeros_like(hidden), torch.zeros_like(want)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        sleep(50)
        late.copy_(hidden)
    packed.moe.apply(late, ids, weights, output, stream=stream.cuda_stream)
    stream.synchronize()
    assert torch.equal(output, want)


def test_two_threads_use_streams_of_their_own():
    packed, _ = layer()
    arguments = inputs(16)
    want = packed(*arguments)
    torch.cuda.synchronize()
    wrong = []

    def work():
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                if not torch.equal(packed(*arguments), want):
                    wrong.append(1)
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_id_of_no_expert_is_reported_by_synchronize():
    packed, _ = layer()
    hidden, weights, ids = inputs(4)
    ids[1, 0] = E + 3
    packed(hidden, weights, ids)
    with pytest.raises(moracle.Error, match=str(E + 3)):
        moracle.Device.shared("cuda:0").synchronize()
    moracle.Device.shared("cuda").synchronize()  # reported once


# ---- graphs -----------------------------------------------------------------------------------------------------------

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


def test_whole_calls_are_captured():
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


# ---- refusals ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("argument, change, text", [
    ("hidden", lambda t: t.cpu(), "needs an array on cuda:0; it is on cpu"),
    ("topk_ids", lambda t: t.cpu(), "needs an array on cuda:0; it is on cpu"),
    ("topk_weights", lambda t: t.cpu().numpy(), "needs an array on cuda:0; it is on cpu"),
    ("hidden", lambda t: t.double(), "it is f64"),
    ("hidden", lambda t: t[:, ::2], "strides"),
    ("hidden", lambda t: t[:, :32].contiguous(), "needs .* 256 columns"),
    ("hidden", lambda t: t.T.contiguous().T, "strides"),
    ("topk_ids", lambda t: t.long(), "it is i64"),
    ("topk_ids", lambda t: t[:-1], "needs i32 \\[8, 3\\]"),
    ("topk_weights", lambda t: t.half(), "it is f16"),
    ("output", lambda t: torch.empty(8, H), "needs an array on cuda:0; it is on cpu"),
    ("stream", lambda t: "0", "needs the handle of a stream as an integer, or None; it is '0'")])
def test_argument_that_does_not_fit_is_refused_by_name(argument, change, text):
    packed, _ = layer()
    hidden, weights, ids = inputs(8)
    arguments = {"hidden": hidden, "topk_ids": ids, "topk_weights": weights}
    arguments[argument] = change(arguments.get(argument))
    with pytest.raises(moracle.InvalidArgument, match=f"{argument}.*{text}"):
        packed.moe.apply(**arguments)


def test_tensor_of_a_gpu_is_refused_by_a_layer_on_a_cpu():
    w1, w2 = (torch.from_numpy(w) for w in matrices())
    hidden, weights, ids = inputs(8)
    with pytest.raises(moracle.InvalidArgument, match="hidden_states: needs an array on cpu; it is on cuda:0"):
        moracle.pack(w1, w2, top_k=TOP_K)(hidden, weights, ids)


# ---- other frameworks, cost -------------------------------------------------------------------------------------------

def test_arrays_of_cupy_run_on_its_current_stream():
    cupy = pytest.importorskip("cupy", reason="cupy is not installed")
    packed, values = layer()
    hidden, weights, ids = (cupy.asarray(t.cpu().numpy()) for t in inputs(8, dtype=torch.float32))
    with cupy.cuda.Stream(non_blocking=True) as stream:
        got = packed(hidden * 1, weights, ids)
        stream.synchronize()
    want = f64.experts(cupy.asnumpy(hidden), *values, cupy.asnumpy(weights), cupy.asnumpy(ids))
    assert isinstance(got, cupy.ndarray)
    assert np.linalg.norm(cupy.asnumpy(got) - want) < 6e-3 * np.linalg.norm(want)


def test_memory_stays_flat_over_calls_and_packs():
    packed, _ = layer()
    arguments = inputs(4)
    output = torch.empty_like(arguments[0])

    def work(calls, packs):
        for _ in range(calls):
            packed(*arguments, output)
        for _ in range(packs):
            layer()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info()[0]
    before = work(1000, 10)
    assert before - work(10_000, 100) < 8e6  # one leaked layer per pack would be 120 MB
