"""Arguments on an NVIDIA GPU: errors by name, arrays of other frameworks, memory over many calls."""
import float64_experts as f64
import numpy as np
import pytest
from gpu_layers import TOP_K, H, inputs, layer, matrices, torch

import moracle


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


def test_weights_of_cupy_are_packed_for_their_gpu():
    cupy = pytest.importorskip("cupy", reason="cupy is not installed")
    hidden, weights, ids = (cupy.asarray(t.cpu().numpy()) for t in inputs(8, dtype=torch.float32))
    w1, w2 = (cupy.asarray(w.astype(np.float16)) for w in matrices())
    got = moracle.fused_experts(hidden, w1, w2, weights, ids.astype(np.int64))
    cupy.cuda.get_current_stream().synchronize()
    want = f64.experts(*(cupy.asnumpy(a) for a in (hidden, w1, w2, weights, ids)))
    assert np.linalg.norm(cupy.asnumpy(got) - want) < 6e-3 * np.linalg.norm(want)


def test_arrays_of_jax_on_a_gpu_are_read_in_place(monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # jax would take most of the GPU's memory
    jax = pytest.importorskip("jax", reason="jax is not installed")
    if not any(device.platform == "gpu" for device in jax.devices()):
        pytest.skip("jax finds no NVIDIA GPU")
    packed, _ = layer()
    arguments = inputs(8, dtype=torch.float32)
    want = packed(*arguments)
    hidden, weights, ids = (jax.device_put(t.cpu().numpy(), jax.devices("gpu")[0]) for t in arguments)
    output = torch.empty_like(want)
    torch.cuda.synchronize()
    packed.moe.apply(hidden.block_until_ready(), ids, weights, output)
    torch.cuda.synchronize()
    assert torch.equal(output, want)


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
