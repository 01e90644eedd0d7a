"""FusedMoe and Linear from a checkpoint, on the caller's arrays."""
import threading

import float64_experts as f64
import numpy as np
import pytest

import moracle


@pytest.fixture(scope="module")
def moe(model_folder, device):
    return moracle.FusedMoe(moracle.Checkpoint(model_folder).moe_layer(0), device=device)


def inputs(moe, rng, num_tokens=5):
    spec = moe.spec
    hidden = rng.standard_normal((num_tokens, spec.hidden_size)).astype(np.float32)
    ids = np.stack([rng.permutation(spec.num_experts)[:spec.top_k] for _ in range(num_tokens)]).astype(np.int32)
    return hidden, ids, rng.random((num_tokens, spec.top_k)).astype(np.float32)


def test_chosen_backend_agrees_with_reference(model_folder, device, moe, rng):
    weights = moracle.Checkpoint(model_folder).moe_layer(0)
    reference = moracle.FusedMoe(weights, moracle.select(weights, backend="reference", device="cpu"), device)
    assert (reference.backend, moe.backend != "reference") == ("reference", True)
    arrays = inputs(moe, rng)
    expected = reference.apply(*arrays)
    chosen = moracle.select(moracle.Checkpoint(model_folder).moe_layer(0), device="cpu")
    assert chosen.backend == moe.backend
    assert np.linalg.norm(moe.apply(*arrays) - expected) < f64.bound(chosen) * np.linalg.norm(expected)


def test_output_is_written_in_place(moe, rng):
    arrays = inputs(moe, rng)
    output = np.zeros_like(arrays[0])
    assert moe.apply(*arrays, output) is output
    assert np.array_equal(output, moe.apply(*arrays))
    assert output.any()


def test_rows_with_a_stride_are_used_in_place(moe, rng):
    hidden, ids, weights = inputs(moe, rng)
    wide = np.zeros((5, hidden.shape[1] + 16), np.float32)
    wide[:, :hidden.shape[1]] = hidden
    out = np.full_like(wide, 3)
    moe.apply(wide[:, :hidden.shape[1]], ids, weights, out[:, :hidden.shape[1]])
    assert np.array_equal(out[:, :hidden.shape[1]], moe.apply(hidden, ids, weights))
    assert (out[:, hidden.shape[1]:] == 3).all()


def test_id_of_minus_one_adds_zero(moe, rng):
    hidden, ids, weights = inputs(moe, rng)
    assert not moe.apply(hidden, np.full_like(ids, -1), weights).any()


@pytest.mark.parametrize("argument, change, text", [
    ("hidden", lambda a: a.astype(np.float64), "it is f64"),
    ("hidden", lambda a: a[0], "it is f32 \\[256\\]"),
    ("hidden", lambda a: np.asfortranarray(a), "strides"),
    ("hidden", lambda a: a[:, ::2], "strides"),
    ("hidden", lambda a: "text", "it is a str"),
    ("hidden", lambda a: a[:, :32].copy(), "needs .* 256 columns"),
    ("topk_ids", lambda a: a.astype(np.int64), "it is i64"),
    ("topk_ids", lambda a: a[:, :1].copy(), "needs i32 \\[5, 4\\]"),
    ("topk_ids", lambda a: a[:-1], "it is i32 \\[4, 4\\]"),
    ("topk_ids", lambda a: np.asfortranarray(a), "contiguous"),
    ("topk_weights", lambda a: a.astype(np.float16), "it is f16"),
    ("topk_weights", lambda a: None, "it is a NoneType"),
])
def test_wrong_input_is_refused_by_name(moe, rng, argument, change, text):
    arrays = dict(zip(("hidden", "topk_ids", "topk_weights"), inputs(moe, rng)))
    arrays[argument] = change(arrays[argument])
    with pytest.raises(moracle.InvalidArgument, match=f"{argument}.*{text}"):
        moe.apply(**arrays)


def test_read_only_output_is_refused(moe, rng):
    arrays = inputs(moe, rng)
    output = np.empty_like(arrays[0])
    output.flags.writeable = False
    with pytest.raises(moracle.InvalidArgument, match="output: needs a writable array; it is read-only"):
        moe.apply(*arrays, output)


def test_read_only_inputs_are_accepted(moe, rng):
    arrays = inputs(moe, rng)
    expected = moe.apply(*arrays)
    for array in arrays:
        array.flags.writeable = False
    assert np.array_equal(moe.apply(*arrays), expected)


def test_calls_of_two_threads_give_the_same_results(moe, rng):
    arrays = inputs(moe, rng)
    expected = moe.apply(*arrays)
    wrong = []

    def work():
        for _ in range(50):
            if not np.array_equal(moe.apply(*arrays), expected):
                wrong.append(1)
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_two_threads_use_two_devices(model_folder, moe, rng):
    arrays = inputs(moe, rng)
    expected = moe.apply(*arrays)
    results = []

    def work():
        own = moracle.FusedMoe(moracle.Checkpoint(model_folder).moe_layer(0), device=moracle.Device("cpu", threads=1))
        results.append(all(np.allclose(own.apply(*arrays), expected, rtol=1e-4, atol=1e-4) for _ in range(20)))
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True, True]


def test_linear_multiplies_as_numpy(model_folder, device, rng):
    checkpoint = moracle.Checkpoint(model_folder)
    weights = checkpoint.linear(["model.layers.0.self_attn.o_proj"])
    out, size = weights.shape
    close = f64.bound(moracle.select(weights, device="cpu"))
    linear = moracle.Linear(weights, device=device)
    x = rng.standard_normal((3, size)).astype(np.float32)
    identity = linear.apply(np.eye(size, dtype=np.float32))
    assert identity.shape == (size, out)
    expected = x.astype(np.float64) @ identity.astype(np.float64)
    assert np.abs(linear.apply(x) - expected).max() < close * np.abs(expected).max()
    with pytest.raises(moracle.InvalidArgument, match="x"):
        linear.apply(x.astype(np.float64))


def resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


def test_memory_stays_flat_over_calls_and_loads(model_folder, device, moe, rng):
    arrays = inputs(moe, rng)
    output = np.empty_like(arrays[0])

    def work(calls, loads):
        for _ in range(calls):
            moe.apply(*arrays, output)
        for _ in range(loads):
            moracle.FusedMoe(moracle.Checkpoint(model_folder).moe_layer(0), device=device)
    work(1000, 20)
    before = resident_bytes()
    work(10_000, 100)
    # One leaked array per call would be 50 MB, one leaked layer per load 80 MB.
    assert resident_bytes() - before < 8e6
