"""The plugin in SGLang: its runner core and its methods on a CPU, with SGLang's own dispatch outputs, method classes and hooks.

    pip install --no-deps sglang==0.5.23, and the packages that its layers import       docs/python/sglang.md
"""
import importlib.util
import types

import numpy as np
import pytest
import schemes as numbers

import moracle
from moracle.integrations import sglang as plugin

E, H, I, TOP_K, TOKENS = 4, 128, 64, 2, 7


@pytest.mark.parametrize("version", ["0.5.22", "0.5.24", "0.6.0", "dev"])
def test_unknown_version_is_refused_with_the_range(version):
    with pytest.raises(moracle.Unsupported, match=f"sglang: needs SGLang 0.5.23; it is {version}"):
        plugin.check_version(version)


def test_known_version_is_accepted():
    plugin.check_version("0.5.23")
    plugin.check_version("0.5.23.post1")


torch = pytest.importorskip("torch", reason="torch is not installed")
needs_sglang = pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="sglang is not installed")


@pytest.fixture(scope="module")
def engine():
    """SGLang with the plugin, as after load_plugins() and --moe-runner-backend moracle."""
    from sglang.srt.layers.moe.utils import resolve_moe_runner_backend
    from sglang.srt.plugins.hook_registry import HookRegistry
    from sglang.srt.runtime_context import get_flags
    plugin.register()
    HookRegistry.apply_hooks()
    get_flags().moe.runner_backend = resolve_moe_runner_backend("moracle")
    from moracle.integrations.sglang import methods, runner
    return types.SimpleNamespace(methods=methods, runner=runner)


def config(**changes):
    from sglang.srt.layers.moe.moe_runner.base import MoeRunnerConfig
    fields = {"num_experts": E, "num_local_experts": E, "hidden_size": H, "intermediate_size_per_partition": I, "layer_id": 3,
              "top_k": TOP_K, "params_dtype": torch.float32, "inplace": False}
    return MoeRunnerConfig(**fields | changes)


@pytest.fixture
def floats(rng):
    return ((rng.standard_normal((E, 2 * I, H)) / 11).astype(np.float32), (rng.standard_normal((E, H, I)) / 8).astype(np.float32))


@pytest.fixture
def tokens(rng):
    return (torch.from_numpy(rng.standard_normal((TOKENS, H)).astype(np.float32)),
            torch.from_numpy(rng.random((TOKENS, TOP_K)).astype(np.float32)),
            torch.from_numpy(np.stack([rng.permutation(E)[:TOP_K] for _ in range(TOKENS)]).astype(np.int32)))


def standard(hidden, weights, ids):
    from sglang.srt.layers.moe.token_dispatcher.standard import StandardDispatchOutput
    from sglang.srt.layers.moe.topk import StandardTopKOutput
    return StandardDispatchOutput(hidden, None, StandardTopKOutput(weights, ids, None))


def near(got, expected, bound=1e-5):
    return (got - expected).norm() < bound * expected.norm()


def a_layer(**tensors):
    layer = torch.nn.Module()
    layer.layer_id, layer.num_local_experts = 3, E
    for name, tensor in tensors.items():
        setattr(layer, name, torch.nn.Parameter(torch.as_tensor(tensor), requires_grad=False))
    return layer


def loaded(engine, method, changes=None, form=None, **tensors):
    """A layer of a method that the plugin serves, after loading."""
    layer = a_layer(**tensors)
    layer.scheme = form
    method.__class__ = engine.methods.in_front(engine.methods._Served, type(method))
    method.create_moe_runner(layer, config(layer=layer, **changes or {}))
    method.process_weights_after_loading(layer)
    return layer


@needs_sglang
def test_standard_dispatch_runs_packed_experts(engine, floats, tokens):
    packed = moracle.pack(*map(torch.from_numpy, floats), top_k=TOP_K)
    expected = packed(*tokens)
    core = engine.runner.MoracleRunnerCore(config())
    got = core.run_from_dispatch(standard(*tokens), engine.runner.PackedInfo(packed), config())
    assert got.format.value == "standard" and torch.equal(got.hidden_states, expected)
    scaled = core.run_from_dispatch(standard(*tokens), engine.runner.PackedInfo(packed), config(routed_scaling_factor=2.5))
    assert near(scaled.hidden_states, expected * 2.5)


@needs_sglang
def test_rows_by_expert_have_the_results_of_their_expert(engine, floats, rng):
    """DeepEP's low latency form: batched rows, of which some are no tokens."""
    from sglang.srt.layers.moe.token_dispatcher.deepep import DeepEPLLDispatchOutput
    packed = moracle.pack(*map(torch.from_numpy, floats), top_k=TOP_K)
    rows = torch.from_numpy(rng.standard_normal((E, 6, H)).astype(np.float32))
    rows[1, 2:] = float("nan")  # memory that no token wrote
    counts = torch.tensor([6, 2, 0, 5], dtype=torch.int32)
    sent = DeepEPLLDispatchOutput(rows, None, torch.zeros(9, TOP_K), torch.ones(9, TOP_K), counts, 4)
    got = engine.runner.MoracleRunnerCore(config()).run_from_dispatch(sent, engine.runner.PackedInfo(packed), config())
    assert got.format.value == "deepep_ll" and got.topk_ids is sent.topk_ids and got.topk_weights is sent.topk_weights
    one = moracle.pack(*map(torch.from_numpy, floats), top_k=1)
    for e, count in enumerate(counts.tolist()):
        if count:
            expected = one(rows[e, :count], torch.ones(count, 1), torch.full((count, 1), e, dtype=torch.int32))
            assert near(got.hidden_states[e, :count], expected)
        assert not got.hidden_states[e, count:].any()


@needs_sglang
def test_tokens_of_deepep_skip_experts_of_other_ranks(engine, floats, tokens):
    from sglang.srt.layers.moe.token_dispatcher.deepep import DeepEPNormalDispatchOutput
    packed = moracle.pack(*map(torch.from_numpy, floats), top_k=TOP_K)
    hidden, weights, ids = tokens
    ids = ids.clone()
    ids[::2, 0] = -1
    sent = DeepEPNormalDispatchOutput(hidden, None, ids, weights, [1, 2, 3, 4])
    got = engine.runner.MoracleRunnerCore(config()).run_from_dispatch(sent, engine.runner.PackedInfo(packed), config())
    assert torch.equal(got.hidden_states, packed(hidden, weights, ids))


@needs_sglang
def test_quantized_tokens_and_unknown_forms_are_refused(engine, floats, tokens):
    packed = engine.runner.PackedInfo(moracle.pack(*map(torch.from_numpy, floats), top_k=TOP_K))
    core = engine.runner.MoracleRunnerCore(config())
    sent = standard(*tokens)
    with pytest.raises(moracle.Unsupported, match="hidden_states: needs tokens in bf16: deepep_dispatcher_output_dtype bf16"):
        core.run_from_dispatch(sent._replace(hidden_states_scale=torch.ones(1)), packed, config())
    from sglang.srt.layers.moe.token_dispatcher.base import DispatchOutputFormat
    other = types.SimpleNamespace(format=DispatchOutputFormat.FLASHINFER, hidden_states=tokens[0])
    with pytest.raises(moracle.Unsupported, match="dispatch: needs the formats standard, deepep_normal or deepep_ll; it is fl"):
        core.run_from_dispatch(other, packed, config())


@needs_sglang
def test_option_is_a_choice_of_the_command_line(engine):
    from sglang.srt.arg_groups.choices import MOE_RUNNER_BACKEND_CHOICES
    assert "moracle" in MOE_RUNNER_BACKEND_CHOICES


@needs_sglang
def test_method_class_of_sglang_is_followed_by_the_hook(engine, floats, tokens):
    from sglang.srt.layers.quantization.unquant import UnquantizedFusedMoEMethod
    method, layer = UnquantizedFusedMoEMethod(), torch.nn.Module()
    layer.layer_id, layer.moe_runner_config = 3, config()
    method.create_weights(layer, E, H, I, torch.float32)
    assert type(method).__name__ == "UnquantizedFusedMoEMethod" and method._own is UnquantizedFusedMoEMethod
    layer.w13_weight.data.copy_(torch.from_numpy(floats[0]))
    layer.w2_weight.data.copy_(torch.from_numpy(floats[1]))
    method.create_moe_runner(layer, config(layer=layer))
    assert method.get_moe_runner_backend(layer).value == "moracle"
    method.process_weights_after_loading(layer)
    assert layer.w13_weight.numel() == layer.w2_weight.numel() == 0, "one copy of the weights"
    got = method.apply(layer, standard(*tokens)).hidden_states
    assert torch.equal(got, moracle.pack(*map(torch.from_numpy, floats), top_k=TOP_K)(*tokens))
    with pytest.raises(moracle.Unsupported, match="layer 3: needs experts that Moracle serves.*new weights need a new engine"):
        method.process_weights_after_loading(layer)


@needs_sglang
def test_other_backends_keep_sglangs_method(engine):
    from sglang.srt.layers.moe.utils import MoeRunnerBackend
    from sglang.srt.layers.quantization.unquant import UnquantizedFusedMoEMethod
    from sglang.srt.runtime_context import get_flags
    kept = get_flags().moe.runner_backend
    get_flags().moe.runner_backend = MoeRunnerBackend.TRITON
    try:
        method, layer = UnquantizedFusedMoEMethod(), torch.nn.Module()
        layer.moe_runner_config = config()
        method.create_weights(layer, E, H, I, torch.float32)
        assert type(method) is UnquantizedFusedMoEMethod
    finally:
        get_flags().moe.runner_backend = kept


def of_class(name, **fields):
    """An object of a class with that name: recipes go by it."""
    return type(name, (), fields)()


def quantized(name, floats):
    """(form, tensors, values) of a quantized scheme, with the parameter names of SGLang's class."""
    w1, w2 = floats
    if name == "Fp8MoEMethod":
        parts = [numbers.fp8_of(w, 32, 64) for w in (w1, w2)]
        fields = {"block_quant": True, "use_mxfp8": False, "is_fp4_expert": False, "weight_block_size": [32, 64],
                  "quant_config": types.SimpleNamespace(is_checkpoint_fp8_serialized=True, activation_scheme="dynamic")}
        tensors = {f"{w}_weight": torch.as_tensor(p["w"]).view(torch.float8_e4m3fn) for w, (p, _) in zip(("w13", "w2"), parts)}
        tensors |= {f"{w}_weight_scale_inv": p["scale"] for w, (p, _) in zip(("w13", "w2"), parts)}
    elif name == "W8A8Int8MoEMethod":
        parts, fields = [numbers.int8_channel(w) for w in (w1, w2)], {}
        tensors = {f"{w}_weight": p["w"] for w, (p, _) in zip(("w13", "w2"), parts)}
        tensors |= {f"{w}_weight_scale": p["scale"][..., None] for w, (p, _) in zip(("w13", "w2"), parts)}
    elif name == "Mxfp4MoEMethod":
        parts, fields = [numbers.SCHEMES["mxfp4-w4a16"][0](w) for w in (w1, w2)], {}
        tensors = {f"{w}_weight": p["w"] for w, (p, _) in zip(("w13", "w2"), parts)}
        tensors |= {f"{w}_weight_scale": p["scale"] for w, (p, _) in zip(("w13", "w2"), parts)}
    else:
        from test_fused_experts import words
        awq = name == "AWQMoEScheme"
        found = [numbers.f64.int_groups(w, 4, 32, awq) for w in (w1, w2)]
        parts = [(None, values) for *_, values in found]
        kind = "awq" if awq else "gptq"
        names = ("weight_packed", "weight_scale") if name.startswith("Compressed") else ("qweight", "scales")
        tensors = {f"{w}_{names[0]}": words(codes, kind, 4, along_k=not awq) for w, (codes, *_) in zip(("w13", "w2"), found)}
        tensors |= {f"{w}_{names[1]}": np.ascontiguousarray(scale.transpose(0, 2, 1))
                    for w, (_, scale, *_) in zip(("w13", "w2"), found)}
        if awq:
            tensors |= {f"{w}_qzeros": words(zero, "awq", 4, along_k=False) for w, (_, _, zero, _) in zip(("w13", "w2"), found)}
        fields = {"num_bits": 4, "group_size": 32, "sym": True, "actorder": None,
                  "quant_config": types.SimpleNamespace(weight_bits=4, group_size=32, desc_act=False)}
    return of_class(name, **fields), tensors, [values for _, values in parts]


@needs_sglang
@pytest.mark.parametrize("name, scheme, bound", [
    ("Fp8MoEMethod", "fp8-w8a16-block32x64", 1e-2), ("W8A8Int8MoEMethod", "int8-w8a8", 2e-2),
    ("Mxfp4MoEMethod", "mxfp4-w4a16", 1e-2), ("CompressedTensorsWNA16MoE", "int4-w4a16-g32", 1e-2),
    ("GPTQMarlinMoEScheme", "int4-w4a16-g32", 1e-2), ("AWQMoEScheme", "int4-w4a16-g32-asym", 1e-2)])
def test_recipe_gives_the_values_of_the_checkpoint(name, scheme, bound, engine, floats, tokens):
    form, tensors, values = quantized(name, floats)
    is_method = "MoEMethod" in name
    method = form if is_method else of_class("AMethodWithSchemes", apply=None)
    layer = loaded(engine, method, form=None if is_method else form, **tensors)
    assert method._packed.moe.spec.scheme.name == scheme
    expected = moracle.pack(*(torch.from_numpy(v.astype(np.float32)) for v in values), top_k=TOP_K)(*tokens)
    assert near(method.apply(layer, standard(*tokens)).hidden_states, expected, bound)


@needs_sglang
@pytest.mark.parametrize("changes, activation", [
    ({}, {"activation": "silu", "limit": 0.0}), ({"swiglu_limit": 5.0}, {"activation": "silu", "limit": 5.0}),
    ({"gemm1_alpha": 1.702, "gemm1_clamp_limit": 7.0},
     {"activation": "swigluoai", "alpha": 1.702, "limit": 7.0, "interleaved": True})])
def test_activation_of_the_config(changes, activation):
    from moracle.integrations.sglang.schemes import activation_of
    assert activation_of(config(**changes)) == activation


@needs_sglang
@pytest.mark.parametrize("changes, reason", [({"is_gated": False}, "needs experts with a gate"),
                                             ({"activation": "relu2"}, "needs silu or gelu; the activation is relu2"),
                                             ({"no_combine": True}, "no_combine is set")])
def test_layer_that_no_scheme_serves_is_refused_by_number(changes, reason, engine, floats):
    with pytest.raises(moracle.Unsupported, match=f"layer 3: needs experts that Moracle serves, because .* is moracle; {reason}"):
        loaded(engine, of_class("W8A8Int8MoEMethod"), changes)
