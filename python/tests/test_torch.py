"""torch tensors: element types, memory in place, gradients, the custom operator under torch.compile."""
import copy

import float64_experts as f64
import numpy as np
import pytest

import moracle

torch = pytest.importorskip("torch", reason="torch is not installed")
E, H, I, TOP_K, TOKENS = 6, 256, 128, 2, 5


@pytest.fixture
def tensors():
    generator = torch.Generator().manual_seed(3)
    ids = torch.stack([torch.randperm(E, generator=generator)[:TOP_K] for _ in range(TOKENS)])
    return {"hidden_states": torch.randn(TOKENS, H, generator=generator),
            "w1": torch.randn(E, 2 * I, H, generator=generator) / 16,
            "w2": torch.randn(E, H, I, generator=generator) / 11,
            "topk_weights": torch.rand(TOKENS, TOP_K, generator=generator), "topk_ids": ids}


def expected(tensors, **options):
    arrays = {name: tensor.double().numpy() for name, tensor in tensors.items() if name != "topk_ids"}
    return f64.experts(arrays["hidden_states"], arrays["w1"], arrays["w2"], arrays["topk_weights"],
                       tensors["topk_ids"].numpy(), **options)


def error(got, want):
    return float(np.linalg.norm(got.double().numpy() - want) / np.linalg.norm(want))


@pytest.mark.parametrize("dtype, bound", [(torch.float32, 1e-4), (torch.bfloat16, 4e-3), (torch.float16, 6e-4)])
def test_output_has_the_type_of_the_input(dtype, bound, tensors):
    tensors |= {name: tensors[name].to(dtype) for name in ("hidden_states", "w1", "w2")}
    got = moracle.fused_experts(**tensors)
    assert (got.dtype, got.shape) == (dtype, (TOKENS, H))
    assert error(got, expected(tensors)) < bound


def test_fp8_tensors_name_their_scheme(tensors):
    arguments = {}
    for name in ("w1", "w2"):
        codes, scale, values = f64.fp8_blocks(tensors[name].double().numpy(), 128, 128)
        arguments |= {name: torch.from_numpy(codes).view(torch.float8_e4m3fn), f"{name}_scale": torch.from_numpy(scale)}
        tensors[name] = torch.from_numpy(values)
    got = moracle.fused_experts(**(tensors | arguments), use_fp8_w8a8=True, block_shape=[128, 128])
    assert error(got, expected(tensors, quantize=f64.fp8_per_group(128))) < 5e-3


def test_output_is_written_in_place(tensors):
    output = torch.empty(TOKENS, H)
    assert moracle.fused_experts(**tensors, output=output) is output
    assert error(output, expected(tensors)) < 1e-4


def test_change_in_place_packs_again(tensors):
    first = moracle.fused_experts(**tensors)
    tensors["w2"].mul_(2)
    assert error(moracle.fused_experts(**tensors), 2 * first.double().numpy()) < 1e-5


def test_gradients_are_refused(tensors):
    tensors["w1"] = torch.nn.Parameter(tensors["w1"])  # weights need no gradient: no error
    moracle.fused_experts(**tensors)
    tensors["hidden_states"].requires_grad_()
    with pytest.raises(moracle.Unsupported, match="hidden_states: needs a call without gradients, such as inside torch.no_grad"):
        moracle.fused_experts(**tensors)
    with torch.no_grad():
        moracle.fused_experts(**tensors)


def test_tensor_of_another_device_is_refused(tensors):
    with pytest.raises(moracle.InvalidArgument, match="hidden"):
        moracle.pack(tensors["w1"], tensors["w2"], top_k=TOP_K)(
            tensors["hidden_states"].to("meta"), tensors["topk_weights"], tensors["topk_ids"])


def test_numpy_bfloat16_is_accepted(tensors):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    for name in ("hidden_states", "w1", "w2"):
        arrays[name] = arrays[name].astype(ml_dtypes.bfloat16)
    assert moracle.fused_experts(**arrays).dtype == ml_dtypes.bfloat16


@pytest.fixture
def module(tensors):
    from moracle.integrations.torch import Experts
    return Experts(moracle.pack(tensors["w1"], tensors["w2"], top_k=TOP_K))


def test_operator_passes_the_checks_of_torch(module, tensors):
    arguments = (tensors["hidden_states"], tensors["topk_weights"], tensors["topk_ids"], module.handle)
    torch.library.opcheck(torch.ops.moracle.experts.default, arguments,
                          test_utils=("test_schema", "test_faketensor"))


def test_compiled_function_has_no_graph_break(module, tensors):
    def layer(hidden, weights, ids):
        return module(hidden * 2, weights, ids) + 1
    arguments = (tensors["hidden_states"], tensors["topk_weights"], tensors["topk_ids"])
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert torch.equal(compiled(*arguments), layer(*arguments))


def test_operator_refuses_gradients_and_freed_experts(module, tensors):
    hidden = tensors["hidden_states"].clone().requires_grad_()
    handle = module.handle
    for call in (module, lambda *arguments: torch.ops.moracle.experts(*arguments, handle)):
        with pytest.raises(moracle.Unsupported, match="needs a call without gradients"):
            call(hidden, tensors["topk_weights"], tensors["topk_ids"])
    del module.packed
    with pytest.raises(moracle.InvalidArgument, match="handle: needs the handle of live packed experts"):
        torch.ops.moracle.experts(tensors["hidden_states"], tensors["topk_weights"], tensors["topk_ids"], handle)


def test_copied_module_shares_the_packed_weights(module, tensors):
    arguments = (tensors["hidden_states"], tensors["topk_weights"], tensors["topk_ids"])
    assert torch.equal(copy.deepcopy(module)(*arguments), module(*arguments))
