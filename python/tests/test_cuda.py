"""torch tensors on an NVIDIA GPU: every scheme, many tokens, layers from a checkpoint."""
import pytest
from gpu_layers import GPU, error, expected, gpu, inputs, layer, matrices, torch
from schemes import SCHEMES

import moracle


@pytest.mark.parametrize("num_tokens", [1, 5, 70])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_scheme_matches_float64(scheme, num_tokens):
    packed, values = layer(scheme)
    assert packed.moe.device == "cuda:0"
    quantize = SCHEMES[scheme][2]
    arguments = inputs(num_tokens)
    # Activations between the GEMMs are bf16, which may change a quantized code.
    assert error(packed(*arguments), expected(values, *arguments, quantize)) < (3e-2 if quantize else 6e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_fused_experts_takes_tensors_of_a_gpu(dtype):
    w1, w2 = (gpu(w).to(dtype) for w in matrices())
    hidden, weights, ids = inputs(9, dtype=dtype)
    got = moracle.fused_experts(hidden, w1, w2, weights, ids.long())
    assert (got.dtype, got.device, got.shape) == (dtype, GPU, hidden.shape)
    values = [w.double().cpu().numpy() for w in (w1, w2)]
    assert error(got, expected(values, hidden, weights, ids)) < 8e-3


def test_tokens_above_the_limit_run_in_several_calls():
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
