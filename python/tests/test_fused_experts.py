"""fused_experts and pack: every scheme against float64, on the reference and on the chosen backend."""
import gc
import types

import float64_experts as f64
import numpy as np
import pytest
from schemes import SCHEMES, fp8_of, int8_channel, int_rows, tensors_of

import moracle
from moracle import experts as experts_module

E, H, I, TOP_K, TOKENS = 6, 256, 128, 3, 7


@pytest.fixture
def floats(rng):
    w1 = (rng.standard_normal((E, 2 * I, H)) / 16).astype(np.float32)
    w2 = (rng.standard_normal((E, H, I)) / 11).astype(np.float32)
    ids = np.stack([rng.permutation(E)[:TOP_K] for _ in range(TOKENS)]).astype(np.int32)
    return w1, w2, {"hidden_states": rng.standard_normal((TOKENS, H)).astype(np.float32),
                    "topk_weights": rng.random((TOKENS, TOP_K)).astype(np.float32), "topk_ids": ids}


def error(got, expected):
    return np.linalg.norm(got - expected) / np.linalg.norm(expected)


def bound(w1, w2, **arguments):
    return f64.bound(moracle.pack(w1, w2, top_k=TOP_K, **arguments).selection)


@pytest.mark.parametrize("name", SCHEMES)
def test_scheme_matches_float64(name, floats):
    make, arguments, quantize = SCHEMES[name]
    w1, w2, inputs = floats
    tensors, values = tensors_of(w1, w2, make)
    expected = f64.experts(inputs["hidden_states"], *values, inputs["topk_weights"], inputs["topk_ids"],
                           quantize or (lambda x: x))
    got = moracle.fused_experts(**tensors, **inputs, **arguments)
    packs = {key: value for key, value in tensors.items() if key not in ("w1", "w2")}
    # Rounding to codes may break ties differently.
    close = 5e-3 if quantize else bound(tensors["w1"], tensors["w2"], scheme=name, **packs)
    assert error(got, expected) < close
    reference = moracle.pack(tensors["w1"], tensors["w2"], top_k=TOP_K, scheme=name, backend="reference", **packs)
    assert reference.selection.layer.scheme.name == name
    exact = reference(inputs["hidden_states"], inputs["topk_weights"], inputs["topk_ids"])
    assert error(exact, expected) < (2e-3 if quantize else 2e-6)


def test_quant_config_equals_explicit_arguments(floats):
    w1, w2, inputs = floats
    tensors, _ = tensors_of(w1, w2, int8_channel)
    expected = moracle.fused_experts(**tensors, **inputs, use_int8_w8a8=True, per_channel_quant=True)
    config = types.SimpleNamespace(use_int8_w8a8=True, per_act_token_quant=True, w1_scale=tensors["w1_scale"],
                                   w2_scale=tensors["w2_scale"])
    got = moracle.fused_experts(w1=tensors["w1"], w2=tensors["w2"], **inputs, quant_config=config)
    assert np.array_equal(got, expected)
    tensors, _ = tensors_of(w1, w2, SCHEMES["mxfp4-w4a16"][0])
    expected = moracle.fused_experts(**tensors, **inputs, scheme="mxfp4-w4a16")
    config = types.SimpleNamespace(ocp_mx_scheme="w_mxfp4", w1_scale=tensors["w1_scale"], w2_scale=tensors["w2_scale"])
    got = moracle.fused_experts(w1=tensors["w1"], w2=tensors["w2"], **inputs, quant_config=config)
    assert np.array_equal(got, expected)


@pytest.mark.parametrize("scheme, make, static, factor", [
    ("fp8-w8a8-tensor-static", lambda w: fp8_of(w, None, None), f64.fp8_static, 1),
    ("int8-w8a8-channel-static", int8_channel, f64.int8_static, 3)])
def test_static_activation_scales(scheme, make, static, factor, floats):
    w1, w2, inputs = floats
    tensors, values = tensors_of(w1, w2, make)
    a1, a2 = np.array([0.01 * factor], np.float32), (np.linspace(0.002, 0.004, E) * factor).astype(np.float32)
    experts = moracle.pack(tensors["w1"], tensors["w2"], top_k=TOP_K, scheme=scheme,
                           w1_scale=tensors["w1_scale"], w2_scale=tensors["w2_scale"], a1_scale=a1, a2_scale=a2,
                           backend="reference")
    got = experts(inputs["hidden_states"], inputs["topk_weights"], inputs["topk_ids"])
    expected = sum(f64.experts(inputs["hidden_states"], *values, inputs["topk_weights"],
                               np.where(inputs["topk_ids"] == e, e, -1), static(a1[0]),
                               quantize2=static(a2[e])) for e in range(E))
    assert error(got, expected) < 2e-3


@pytest.mark.parametrize("packing", ["gptq", "gptq_v2", "awq"])
@pytest.mark.parametrize("width", [4, 8])
def test_packings_of_producers_give_the_same_bits_as_rows(packing, width, floats):
    if packing == "awq" and width == 8:
        width = 4
    w1, w2, inputs = floats
    scheme = f"int{width}-w{width}a16-g64-asym"
    rows, packed = {}, {}
    for name, w in (("w1", w1), ("w2", w2)):
        codes, scale, zero, _ = f64.int_groups(w, width, 64, True)
        zero = np.maximum(zero, 1)
        rows |= {name: f64.nibbles(codes) if width == 4 else codes, f"{name}_scale": scale,
                 f"{name}_zp": f64.nibbles(zero, axis=1) if width == 4 else zero}
        packed |= {name: words(codes, packing, width, along_k=packing != "awq"),
                   f"{name}_scale": np.ascontiguousarray(scale.transpose(0, 2, 1)),
                   f"{name}_zp": words(zero - (packing == "gptq"), packing, width, along_k=False)}
    expected = moracle.fused_experts(**rows, **inputs, scheme=scheme)
    got = moracle.fused_experts(**packed, **inputs, scheme=scheme, packing=packing)
    assert np.array_equal(got, expected)


def words(codes, packing, width, along_k):
    """[E, N, K] codes packed into words as the producer does: transposed, along K or along N."""
    codes = codes.transpose(0, 2, 1).astype(np.uint32)
    per_word = 32 // width
    axis = 1 if along_k else 2
    order = [0, 2, 4, 6, 1, 3, 5, 7] if packing == "awq" else range(per_word)
    split = np.moveaxis(codes, axis, -1)
    split = split.reshape(*split.shape[:-1], -1, per_word)
    packed = sum(split[..., column] << (width * slot) for slot, column in enumerate(order))
    return np.ascontiguousarray(np.moveaxis(packed, -1, axis)).astype(np.uint32).view(np.int32)


def test_words_of_compressed_tensors_give_the_same_bits_as_bytes(floats):
    w1, w2, inputs = floats
    tensors, _ = tensors_of(w1, w2, lambda w: int_rows(w, 4, 32, False))
    expected = moracle.fused_experts(**tensors, **inputs, scheme="int4-w4a16-g32")
    for name in ("w1", "w2"):
        tensors[name] = tensors[name].view(np.int32)
    assert np.array_equal(moracle.fused_experts(**tensors, **inputs, scheme="int4-w4a16-g32"), expected)


def test_group_index_orders_columns(floats, rng):
    w1, w2, inputs = floats
    index = {name: np.stack([rng.permutation(np.repeat(np.arange(w.shape[2] // 32), 32)) for _ in range(E)]).astype(np.int32)
             for name, w in (("w1", w1), ("w2", w2))}
    tensors, values = {}, []
    for name, w in (("w1", w1), ("w2", w2)):
        order = np.argsort(index[name], axis=1, kind="stable")
        sorted_w = np.stack([w[e][:, order[e]] for e in range(E)])
        codes, scale, _, value = f64.int_groups(sorted_w, 4, 32, False)
        back = np.argsort(order, axis=1)
        values.append(np.stack([value[e][:, back[e]] for e in range(E)]))
        codes = np.stack([codes[e][:, back[e]] for e in range(E)])
        tensors |= {name: f64.nibbles(codes), f"{name}_scale": scale, f"{name}_g_idx": index[name]}
    w1_packed, w2_packed = tensors.pop("w1"), tensors.pop("w2")
    experts = moracle.pack(w1_packed, w2_packed, top_k=TOP_K, scheme="int4-w4a16-g32", **tensors)
    got = experts(inputs["hidden_states"], inputs["topk_weights"], inputs["topk_ids"])
    expected = f64.experts(inputs["hidden_states"], *values, inputs["topk_weights"], inputs["topk_ids"])
    assert error(got, expected) < f64.bound(experts.selection)
    tensors["w1_g_idx"][0, 3] = 99
    with pytest.raises(moracle.InvalidArgument, match="w1_g_idx, expert 0: needs groups from 0 to 7; column 3 has 99"):
        moracle.pack(w1_packed, w2_packed, top_k=TOP_K, scheme="int4-w4a16-g32", **tensors)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "swigluoai", "swigluoai_uninterleave"])
def test_activations_and_biases(activation, floats, rng):
    w1, w2, inputs = floats
    b1, b2 = rng.standard_normal((E, 2 * I)).astype(np.float32), rng.standard_normal((E, H)).astype(np.float32)
    got = moracle.fused_experts(w1=w1, w2=w2, **inputs, activation=activation, w1_bias=b1, w2_bias=b2)
    if activation == "swigluoai":  # rows of gate and up alternate
        w1, b1 = (np.concatenate([a[:, ::2], a[:, 1::2]], 1) for a in (w1, b1))
    expected = f64.experts(inputs["hidden_states"], w1, w2, inputs["topk_weights"], inputs["topk_ids"],
                           activation=activation.removesuffix("_uninterleave"), b1=b1, b2=b2)
    assert error(got, expected) < bound(w1, w2)


def test_interleaved_rows_keep_their_block_scales(floats):
    w1, w2, inputs = floats
    tensors, values = tensors_of(w1, w2, lambda w: fp8_of(w, 128, 128))
    scales = {name: tensors[name] for name in ("w1_scale", "w2_scale")}
    experts = moracle.pack(tensors["w1"], tensors["w2"], top_k=TOP_K, scheme="fp8-w8a16-block128x128", interleaved=True,
                           **scales)
    w1 = np.concatenate([values[0][:, ::2], values[0][:, 1::2]], 1)
    got = experts(inputs["hidden_states"], inputs["topk_weights"], inputs["topk_ids"])
    expected = f64.experts(inputs["hidden_states"], w1, values[1], inputs["topk_weights"], inputs["topk_ids"])
    assert error(got, expected) < f64.bound(experts.selection)


def test_expert_map_computes_local_experts_only(floats):
    w1, w2, inputs = floats
    local = np.array([-1, 1, -1, 0, 2, -1], np.int32)
    kept = [3, 1, 4]
    got = moracle.fused_experts(w1=w1[kept], w2=w2[kept], **inputs, expert_map=local, global_num_experts=E)
    ids = np.where(local[inputs["topk_ids"]] < 0, -1, inputs["topk_ids"])
    expected = f64.experts(inputs["hidden_states"], w1, w2, inputs["topk_weights"], ids)
    assert error(got, expected) < bound(w1, w2)


def test_router_weight_on_input(floats):
    w1, w2, inputs = floats
    one = inputs | {"topk_ids": inputs["topk_ids"][:, :1].copy(), "topk_weights": inputs["topk_weights"][:, :1].copy()}
    got = moracle.fused_experts(w1=w1, w2=w2, **one, apply_router_weight_on_input=True)
    expected = f64.experts(one["hidden_states"], w1, w2, one["topk_weights"], one["topk_ids"], weight_on_input=True)
    assert error(got, expected) < bound(w1, w2)


def test_ids_and_weights_of_other_types_are_converted(floats):
    w1, w2, inputs = floats
    expected = moracle.fused_experts(w1=w1, w2=w2, **inputs)
    other = inputs | {"topk_ids": inputs["topk_ids"].astype(np.int64)}
    assert np.array_equal(moracle.fused_experts(w1=w1, w2=w2, **other), expected)
    halved = inputs | {"topk_weights": inputs["topk_weights"].astype(np.float16)}
    assert error(moracle.fused_experts(w1=w1, w2=w2, **halved), expected) < 1e-3


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_ids_of_every_integer_type_select_the_same_experts(dtype, floats):
    w1, w2, inputs = floats
    expected = moracle.fused_experts(w1=w1, w2=w2, **inputs)
    other = inputs | {"topk_ids": inputs["topk_ids"].astype(dtype)}
    assert np.array_equal(moracle.fused_experts(w1=w1, w2=w2, **other), expected)


@pytest.mark.parametrize("dtype, outside", [
    ("int64", 2**32), ("int64", -2**32), ("int64", 2**62), ("int64", -2**63), ("int64", 2**31), ("int64", -2**31 - 1),
    ("uint64", 2**32), ("uint64", 2**63), ("uint64", 2**64 - 8), ("uint32", 2**31), ("uint32", 2**32 - 8)])
def test_ids_outside_int32_add_exactly_zero(dtype, outside, floats):
    w1, w2, inputs = floats
    ids = inputs["topk_ids"]
    far = (ids.astype(object) + outside).astype(dtype)
    assert not moracle.fused_experts(w1=w1, w2=w2, **inputs | {"topk_ids": far}).any()
    # Mixed with valid ids: must act as -1.
    mixed, without = ids.astype(dtype), ids.copy()
    mixed[:, 1], without[:, 1] = far[:, 1], -1
    expected = moracle.fused_experts(w1=w1, w2=w2, **inputs | {"topk_ids": without})
    assert np.array_equal(moracle.fused_experts(w1=w1, w2=w2, **inputs | {"topk_ids": mixed}), expected)


class OnlyDlpack:
    """An array with DLPack only."""

    def __init__(self, array):
        self.array, self.shape = array, array.shape

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("wrap", [OnlyDlpack, memoryview])
def test_ids_of_objects_without_a_framework_are_converted(wrap, floats):
    w1, w2, inputs = floats
    expected = moracle.fused_experts(w1=w1, w2=w2, **inputs)
    ids = inputs["topk_ids"].astype(np.int64)
    got = moracle.fused_experts(w1=w1, w2=w2, **inputs | {"topk_ids": wrap(ids)})
    assert np.array_equal(got, expected)
    assert not moracle.fused_experts(w1=w1, w2=w2, **inputs | {"topk_ids": wrap(ids + 2**32)}).any()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "uint16", "uint32", "uint64"])
def test_ids_of_torch_outside_int32_add_exactly_zero(dtype, floats):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    w1, w2, inputs = ({name: torch.from_numpy(value) for name, value in part.items()} if isinstance(part, dict)
                      else torch.from_numpy(part) for part in floats)
    expected = moracle.fused_experts(w1=w1, w2=w2, **inputs)
    ids = inputs["topk_ids"].to(getattr(torch, dtype))
    assert torch.equal(moracle.fused_experts(w1=w1, w2=w2, **inputs | {"topk_ids": ids}), expected)
    if dtype in ("int64", "uint64"):
        far = (inputs["topk_ids"].to(torch.int64) + 2**32).to(getattr(torch, dtype))
        assert not moracle.fused_experts(w1=w1, w2=w2, **inputs | {"topk_ids": far}).any()


@pytest.mark.parametrize("dtype", ["bool", "float32"])
def test_ids_that_are_no_integers_are_refused(dtype, floats):
    w1, w2, inputs = floats
    with pytest.raises(moracle.InvalidArgument, match="topk_ids"):
        moracle.fused_experts(w1=w1, w2=w2, **inputs | {"topk_ids": inputs["topk_ids"].astype(dtype)})


def test_tokens_above_the_limit_run_in_several_calls(floats, rng):
    w1, w2, _ = floats
    experts = moracle.pack(w1, w2, top_k=2, max_num_tokens=16)
    hidden = rng.standard_normal((37, H)).astype(np.float32)
    ids = rng.integers(0, E, (37, 2)).astype(np.int32)
    weights = rng.random((37, 2)).astype(np.float32)
    expected = f64.experts(hidden, w1, w2, weights, ids)
    assert error(experts(hidden, weights, ids), expected) < f64.bound(experts.selection)


def test_packed_weights_live_as_long_as_their_tensors(floats):
    w1, w2, inputs = floats
    before = len(experts_module._packed)
    moracle.fused_experts(w1=w1, w2=w2, **inputs)
    first = [entry.packed for entry in experts_module._packed.values()][-1]
    moracle.fused_experts(w1=w1, w2=w2, **inputs)
    assert len(experts_module._packed) == before + 1
    assert [entry.packed for entry in experts_module._packed.values()][-1] is first
    moracle.fused_experts(w1=w1.copy(), w2=w2, **inputs)  # another w1, freed after the call
    gc.collect()
    assert len(experts_module._packed) == before + 1


def test_pack_keeps_no_tensor(floats):
    import weakref
    w1, w2, inputs = floats
    w1 = w1.copy()
    gone = weakref.ref(w1)
    experts = moracle.pack(w1, w2, top_k=TOP_K)
    expected = experts(inputs["hidden_states"], inputs["topk_weights"], inputs["topk_ids"])
    del w1
    gc.collect()
    assert gone() is None
    again = experts(inputs["hidden_states"], inputs["topk_weights"], inputs["topk_ids"])
    assert np.array_equal(again, expected)


@pytest.mark.parametrize("change, text", [
    ({"inplace": True}, "inplace"), ({"use_mxfp4_w4a4": True}, "use_mxfp4_w4a4"),
    ({"quant_config": types.SimpleNamespace(use_nvfp4_w4a4=True)}, "quant_config.use_nvfp4_w4a4"),
    ({"quant_config": types.SimpleNamespace(ocp_mx_scheme="w_mxfp4_a_mxfp4")}, "quant_config.ocp_mx_scheme"),
    ({"allow_deep_gemm": True}, "allow_deep_gemm"),
    ({"use_int8_w8a8": True}, "per_channel_quant"), ({"global_num_experts": 12}, "global_num_experts")])
def test_arguments_that_are_not_served_are_refused_by_name(change, text, floats):
    w1, w2, inputs = floats
    with pytest.raises(moracle.Unsupported, match=text):
        moracle.fused_experts(w1=w1, w2=w2, **inputs, **change)


@pytest.mark.parametrize("change, text", [
    ({"w2": np.zeros((E, H, I + 1), np.float32)}, "w2: needs f32 \\[6, 256, 128\\]"),
    ({"w2": np.zeros((E - 1, H, I), np.float32)}, "w2: needs 6 experts"),
    ({"w1": np.zeros((E, 2 * I - 1, H), np.float32)}, "w1: needs as many rows of gate as of up"),
    ({"w1": np.zeros((E, 2 * I, H + 1), np.float32)}, "w1: needs f32 \\[6, 256, 256\\]"),
    ({"w1": np.zeros((2 * I, H), np.float32)}, "w1: needs \\[experts, rows, columns\\]"),
    ({"w1": np.zeros((E, H, 2 * I), np.float32).transpose(0, 2, 1)}, "w1: needs contiguous memory"),
    ({"w1": np.zeros((E, 2 * I, H), np.int64)}, "w1: needs float weights"),
    ({"w1_scale": np.zeros(E, np.float32)}, "w1_scale: needs no tensor"),
    ({"w2_zp": np.zeros(E, np.uint8)}, "w2_zp: needs no tensor"),
    ({"w1_bias": np.zeros((E, I), np.float32)}, "w1_bias: needs"),
    ({"a1_scale": np.ones(1, np.float32)}, "a1_scale: needs no tensor"),
    ({"scheme": "int4-w4a16-g32"}, "w1: needs u8 \\[6, 256, 128\\]"),
    ({"expert_map": np.array([0, 9], np.int32)}, "expert_map: needs -1 to 5; expert 1 has 9"),
    ({"packing": "gptq"}, "w1: needs integer codes for this packing"),
    ({"packing": "marlin"}, "packing: needs rows, gptq, gptq_v2 or awq"),
    ({"use_fp8_w8a8": True, "use_int8_w8a8": True}, "use_\\*: needs at most one")])
def test_tensors_that_do_not_fit_are_refused_by_name(change, text, floats):
    w1, w2, inputs = floats
    with pytest.raises(moracle.InvalidArgument, match=text):
        moracle.fused_experts(**({"w1": w1, "w2": w2} | inputs | change))


@pytest.mark.parametrize("name, make", [
    ("w1", lambda: np.full((E, 2 * I, H), np.nan, np.float32)), ("w2", lambda: np.full((E, H, I), np.inf, np.float32)),
    ("w1_bias", lambda: np.full((E, 2 * I), np.nan, np.float32))])
def test_numbers_that_are_not_finite_are_refused(name, make, floats):
    w1, w2, inputs = floats
    with pytest.raises(moracle.InvalidArgument, match=f"{name}, expert 0: needs finite numbers; element 0"):
        moracle.fused_experts(**({"w1": w1, "w2": w2} | inputs | {name: make()}))


def test_missing_scales_are_named(floats):
    w1, w2, inputs = floats
    codes = np.zeros((E, 2 * I, H // 2), np.uint8)
    with pytest.raises(moracle.InvalidArgument, match="w1_scale: needs f32, f16 or bf16 .*; it is missing"):
        moracle.fused_experts(w1=codes, w2=np.zeros((E, H, I // 2), np.uint8), **inputs, scheme="int4-w4a16-g32")
