"""pack_linear: linear layers of every scheme from tensors, against float64."""
import float64_experts as f64
import numpy as np
import pytest
from schemes import SCHEMES, int_rows
from test_fused_experts import words

import moracle

N, K, TOKENS = 256, 384, 5


def error(got, expected):
    return np.linalg.norm(got - expected) / np.linalg.norm(expected)


def without_experts(parts):
    """Arguments of pack_linear from the tensors of one expert."""
    return {"weight" if name == "w" else name: tensor[0] for name, tensor in parts.items()}


@pytest.fixture
def layer(rng):
    return (rng.standard_normal((1, N, K)) / 16).astype(np.float32), rng.standard_normal((TOKENS, K)).astype(np.float32)


@pytest.mark.parametrize("name", SCHEMES)
def test_scheme_matches_float64(name, layer):
    make, _, quantize = SCHEMES[name]
    w, x = layer
    parts, values = make(w)
    tensors = without_experts(parts)
    expected = (quantize or (lambda x: x))(x.astype(np.float64)) @ values[0].astype(np.float64).T
    packed = moracle.pack_linear(scheme=name, **tensors)
    assert packed.linear.spec.is_linear and packed.linear.spec.scheme.name == name
    close = 5e-3 if quantize else f64.bound(packed.selection)
    assert error(packed(x), expected) < close
    reference = moracle.pack_linear(scheme=name, backend="reference", **tensors)
    assert error(reference(x), expected) < (2e-3 if quantize else 2e-6)


@pytest.mark.parametrize("packing", ["gptq", "gptq_v2", "awq"])
def test_packings_of_producers_give_the_same_bits_as_rows(packing, layer):
    w, x = layer
    codes, scale, zero, _ = f64.int_groups(w, 4, 64, True)
    zero = np.maximum(zero, 1)
    rows = moracle.pack_linear(f64.nibbles(codes)[0], scale=scale[0], zp=f64.nibbles(zero, axis=1)[0],
                               scheme="int4-w4a16-g64-asym")
    packed = moracle.pack_linear(
        words(codes, packing, 4, along_k=packing != "awq")[0], scale=np.ascontiguousarray(scale[0].T),
        zp=words(zero - (packing == "gptq"), packing, 4, along_k=False)[0], scheme="int4-w4a16-g64-asym", packing=packing)
    assert np.array_equal(packed(x), rows(x))


def test_bias_is_added(layer, rng):
    w, x = layer
    bias = rng.standard_normal(N).astype(np.float32)
    got = moracle.pack_linear(w[0], bias=bias)(x)
    assert error(got, x.astype(np.float64) @ w[0].T + bias) < 1e-5


def test_more_tokens_than_planned_run_as_several_calls(layer, rng):
    w, _ = layer
    x = rng.standard_normal((11, K)).astype(np.float32)
    packed = moracle.pack_linear(w[0], max_num_tokens=4)
    assert packed.linear.max_num_tokens == 4
    assert error(packed(x), x.astype(np.float64) @ w[0].T) < 1e-5


def test_output_has_the_type_of_the_input(layer):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    w, x = layer
    packed = moracle.pack_linear(torch.from_numpy(w[0]))
    exact = x.astype(np.float64) @ w[0].T
    for dtype, bound in ((torch.float32, 1e-5), (torch.bfloat16, 4e-3), (torch.float16, 5e-4)):
        rounded = torch.from_numpy(x).to(dtype)
        got = packed(rounded)
        assert got.dtype == dtype
        expected = rounded.double().numpy() @ w[0].T.astype(np.float64)
        assert error(got.double().numpy(), expected) < bound, f"{dtype}, and {error(got.double().numpy(), exact)} from f32"
        output = torch.empty_like(got)
        assert packed(rounded, output) is output and torch.equal(output, got)


@pytest.mark.parametrize("change, message", [
    ({"weight": np.zeros((2, 2, 64), np.int8)}, r"weight: needs \[rows, columns\]"),
    ({"scale": None}, r"weight_scale: needs f32, f16 or bf16 \[256, 12\]; it is missing"),
    ({"scale": np.zeros((N, 3), np.float32)}, r"weight_scale: needs f32, f16 or bf16 \[256, 12\]; it is f32 \[256, 3\]"),
    ({"scale": np.full((N, 12), np.nan, np.float32)}, "weight_scale: needs finite numbers; element 0 is NaN"),
    ({"bias": np.zeros(3, np.float32)}, r"weight_bias: needs f32, f16 or bf16 \[256\]; it is f32 \[3\]"),
    ({"zp": np.zeros((N, 4), np.uint8)}, "weight_zp: needs no tensor")])
def test_wrong_tensor_is_named(change, message, layer):
    parts, _ = int_rows(layer[0], 4, 32, False)
    with pytest.raises(moracle.InvalidArgument, match=message):
        moracle.pack_linear(**without_experts(parts) | change, scheme="int4-w4a16-g32")


def test_spec_of_a_linear_layer_selects_without_weights():
    spec = moracle.LayerSpec.linear(input_size=K, output_size=N, scheme="fp8-w8a16-block128x128")
    assert spec.is_linear and (spec.hidden_size, spec.intermediate_size) == (K, N)
    assert moracle.select(spec, device="cpu").backend
