"""Arrays of frameworks other than numpy and torch, and plain buffers."""
import array

import numpy as np
import pytest

import moracle


@pytest.fixture(scope="module")
def moe(model_folder, device):
    return moracle.FusedMoe(moracle.Checkpoint(model_folder).moe_layer(0), device=device)


def inputs(moe, rng):
    spec = moe.spec
    ids = np.stack([rng.permutation(spec.num_experts)[:spec.top_k] for _ in range(3)]).astype(np.int32)
    return rng.standard_normal((3, spec.hidden_size)).astype(np.float32), ids, rng.random((3, spec.top_k)).astype(np.float32)


def test_arrays_of_jax_are_read_in_place(moe, rng):
    jax = pytest.importorskip("jax", reason="jax is not installed")
    arrays = inputs(moe, rng)
    expected = moe.apply(*arrays)
    cpu = jax.devices("cpu")[0]
    of_jax = [jax.device_put(a, cpu) for a in arrays]
    output = np.empty_like(expected)
    moe.apply(*of_jax, output)
    assert np.array_equal(output, expected)
    with pytest.raises(moracle.InvalidArgument, match="output: needs an array, because jax"):
        moe.apply(*of_jax)
    halves = jax.device_put(of_jax[0].astype("bfloat16"), cpu)
    moe.apply(halves, *of_jax[1:], output)
    assert np.linalg.norm(output - expected) < 1e-2 * np.linalg.norm(expected)


def test_objects_of_the_buffer_protocol_are_used_in_place(moe, rng):
    hidden, ids, weights = inputs(moe, rng)
    expected = moe.apply(hidden, ids, weights)
    memory = bytearray(expected.nbytes)
    output = memoryview(memory).cast("f", expected.shape)
    moe.apply(memoryview(hidden), memoryview(ids), memoryview(weights), output)
    assert np.array_equal(np.frombuffer(memory, np.float32).reshape(expected.shape), expected)
    with pytest.raises(moracle.InvalidArgument, match="hidden"):
        moe.apply(array.array("d", [1.0]), ids, weights)
