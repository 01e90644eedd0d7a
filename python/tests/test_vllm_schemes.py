"""The tensors of vLLM's method classes as arguments of pack(), beside the same weights as floats. Needs torch, not vLLM."""
import types

import numpy as np
import pytest
import schemes as numbers

import moracle

torch = pytest.importorskip("torch", reason="torch is not installed")

from moracle.integrations.vllm.schemes import SCHEMES, Declined  # noqa: E402 needs torch

E, H, I, TOP_K, TOKENS = 4, 128, 64, 2, 7


def moe(**changes):
    """The fields of vLLM's FusedMoEConfig that recipes read."""
    fields = {"device": "cpu", "in_dtype": torch.float32, "intermediate_size_per_partition": I}
    return types.SimpleNamespace(**fields | changes)


def method(**fields):
    return types.SimpleNamespace(moe=moe(), **fields)


def layer(**tensors):
    return types.SimpleNamespace(**{name: None if t is None else torch.nn.Parameter(torch.as_tensor(t), requires_grad=False)
                                    for name, t in tensors.items()})


def fp8(codes):
    return torch.as_tensor(codes).view(torch.float8_e4m3fn)


def weights(rng):
    return rng.standard_normal((E, 2 * I, H)) / 11, rng.standard_normal((E, H, I)) / 8


def outputs(rng, recipe, its_method, its_layer, values):
    """(output of the recipe's tensors, output of the values as f32)."""
    hidden = rng.standard_normal((TOKENS, H)).astype(np.float32)
    ids = np.stack([rng.permutation(E)[:TOP_K] for _ in range(TOKENS)]).astype(np.int32)
    gates = rng.random((TOKENS, TOP_K)).astype(np.float32)
    scheme = recipe.scheme(its_method, its_method.moe)
    packed = moracle.pack(top_k=TOP_K, scheme=scheme, **recipe.tensors(its_method, its_layer))
    floats = moracle.pack(*(value.astype(np.float32) for value in values), top_k=TOP_K)
    return packed(hidden, gates, ids), floats(hidden, gates, ids)


def assert_near(got, expected, bound=1e-2):
    assert np.linalg.norm(got - expected) < bound * np.linalg.norm(expected)


@pytest.mark.parametrize("name", ["ModelOptFp8MoEMethod", "Fp8MoEMethod", "CompressedTensorsW8A8Fp8MoEMethod"])
def test_gate_and_up_keep_their_own_fp8_scales(name, rng):
    w1, w2 = weights(rng)
    w1[:, :I] *= 9  # one scale for both would lose precision
    gate, gate_values = numbers.fp8_of(w1[:, :I], None, None)
    up, up_values = numbers.fp8_of(w1[:, I:], None, None)
    down, down_values = numbers.fp8_of(w2, None, None)
    stored = layer(w13_weight=fp8(np.concatenate([gate["w"], up["w"]], 1)), w2_weight=fp8(down["w"]),
                   w13_weight_scale=np.stack([gate["scale"].reshape(E), up["scale"].reshape(E)], 1).astype(np.float32),
                   w2_weight_scale=down["scale"].reshape(E).astype(np.float32), w13_input_scale=None, w2_input_scale=None)
    config = types.SimpleNamespace(activation_scheme="dynamic", is_checkpoint_fp8_serialized=True)
    its = method(block_quant=False, static_input_scales=False, quant_config=config)
    assert SCHEMES[name].scheme(its, its.moe) == "fp8-w8a16-channel"
    assert_near(*outputs(rng, SCHEMES[name], its, stored, (np.concatenate([gate_values, up_values], 1), down_values)))


@pytest.mark.parametrize("name, is_inverse", [
    ("ModelOptNvFp4FusedMoE", False), ("CompressedTensorsW4A4Nvfp4MoEMethod", True)])
def test_nvfp4_multiplies_group_scales_by_those_of_tensors(name, is_inverse, rng):
    tensors, values = {}, []
    for prefix, w, parts in (("w13_", weights(rng)[0], 2), ("w2_", weights(rng)[1], 1)):
        quantized, value = numbers.nvfp4_of(w)
        whole = np.full((E, parts), np.float32(np.abs(w).max() / (448 * 6)))
        groups = torch.as_tensor(quantized["scale"] / whole[0, 0]).to(torch.float8_e4m3fn)
        assert np.allclose(groups.float().numpy() * whole[0, 0], quantized["scale"], rtol=1e-5), "exact in e4m3"
        scale_name, weight = ("weight_global_scale", "weight_packed") if is_inverse else ("weight_scale_2", "weight")
        tensors |= {prefix + weight: quantized["w"], prefix + "weight_scale": groups,
                    prefix + scale_name: 1 / whole if is_inverse else whole}
        values.append(value)
    assert_near(*outputs(rng, SCHEMES[name], method(), layer(**tensors), values))


@pytest.mark.parametrize("name, weight, make, scheme", [
    ("CompressedTensorsW4A4Mxfp4MoEMethod", "weight_packed", "mxfp4-w4a16", "mxfp4-w4a16"),
    ("GptOssMxfp4MoEMethod", "weight", "mxfp4-w4a16", "mxfp4-w4a16"),
    ("CompressedTensorsW8A8Mxfp8MoEMethod", "weight", "mxfp8-w8a16", "mxfp8-w8a16"),
    ("ModelOptMxFp8FusedMoE", "weight", "mxfp8-w8a16", "mxfp8-w8a16")])
def test_mx_formats_are_used_as_stored(name, weight, make, scheme, rng):
    tensors, values = {}, []
    for prefix, w in zip(("w13_", "w2_"), weights(rng)):
        quantized, value = numbers.SCHEMES[make][0](w)
        tensors |= {prefix + weight: quantized["w"], prefix + "weight_scale": quantized["scale"]}
        values.append(value)
    its = method()
    assert SCHEMES[name].scheme(its, its.moe) == scheme
    assert_near(*outputs(rng, SCHEMES[name], its, layer(**tensors), values))


@pytest.mark.parametrize("name, fields, change, text", [
    ("Fp8MoEMethod", {"block_quant": True, "weight_scale_refine": (2, 2)}, {}, "vLLM splits them"),
    ("Fp8MoEMethod", {"block_quant": True, "weight_scale_refine": None, "weight_block_size": [128, 128]}, {},
     "blocks of 128"),
    ("Fp8MoEMethod", {"block_quant": False, "quant_config": types.SimpleNamespace(is_checkpoint_fp8_serialized=False)}, {},
     "a checkpoint in fp8"),
    ("UnquantizedFusedMoEMethod", {}, {"in_dtype": torch.float64}, "bf16, f16 or f32")])
def test_declined_formats_give_their_reason(name, fields, change, text):
    with pytest.raises(Declined, match=text):
        SCHEMES[name].scheme(method(**fields), moe(**change))


@pytest.mark.parametrize("name, fields, scheme", [
    ("CompressedTensorsWNA16MoEMethod", {"num_bits": 8, "group_size": -1, "symmetric": True}, "int8-w8a16-channel"),
    ("CompressedTensorsWNA16MoEMethod", {"num_bits": 4, "group_size": 64, "symmetric": False}, "int4-w4a16-g64-asym"),
    ("AutoAWQMoEMethod", {"quant_config": types.SimpleNamespace(group_size=32, zero_point=True)}, "int4-w4a16-g32-asym"),
    ("AutoGPTQMoEMethod", {"quant_config": types.SimpleNamespace(weight_bits=8, group_size=128)}, "int8-w8a16-g128")])
def test_schemes_have_moracles_names(name, fields, scheme):
    its = method(**fields)
    assert SCHEMES[name].scheme(its, its.moe) == moracle.Scheme(scheme).name


def test_fp8_on_a_gpu_quantizes_activations():
    its = types.SimpleNamespace(moe=moe(device="cuda"), block_quant=False, static_input_scales=True)
    assert SCHEMES["CompressedTensorsW8A8Fp8MoEMethod"].scheme(its, its.moe) == "fp8-w8a8-channel-static"
