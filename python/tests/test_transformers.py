"""transformers models: logits and text equal those of transformers' own implementations."""
import copy

import numpy as np
import pytest
from moe_models import TINY, packed_layers, registered, tiny, torch, transformers  # noqa: F401

import moracle


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("dtype, bound", [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_logits_equal_those_of_eager(name, dtype, bound):
    model = tiny(name, dtype)
    ids = torch.randint(0, 128, (2, 11), generator=torch.Generator().manual_seed(1))
    logits = {}
    for implementation in ("eager", "moracle"):
        model.set_experts_implementation(implementation)
        with torch.no_grad():
            logits[implementation] = model(ids).logits.float()
    assert packed_layers(model) == (1 if name == "DeepseekV3" else 2)
    difference = (logits["moracle"] - logits["eager"]).norm() / logits["eager"].norm()
    assert 0 < difference < bound


@pytest.mark.parametrize("name", TINY)
def test_generation_gives_the_same_text(name):
    model = tiny(name)
    ids = torch.tensor([[1, 2, 3, 4]])
    texts = []
    for implementation in ("eager", "moracle"):
        model.set_experts_implementation(implementation)
        texts.append(model.generate(ids, max_new_tokens=20, do_sample=False, eos_token_id=None).tolist())
    assert texts[0] == texts[1]
    assert len(texts[0][0]) == 24


def test_dropped_weights_leave_one_copy(registered):
    model = tiny("Qwen3Moe")
    ids = torch.tensor([[1, 2, 3]])
    model.set_experts_implementation("moracle")
    with torch.no_grad():
        before = model(ids).logits
        assert registered.pack(model, drop=True) == 2
        assert sum(p.numel() for name, p in model.named_parameters() if "experts" in name) == 0
        assert torch.equal(model(ids).logits, before)


def test_changed_weights_are_packed_again():
    model = tiny("Mixtral")
    model.set_experts_implementation("moracle")
    ids = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        first = model(ids).logits
        copied = copy.deepcopy(model)
        for module in model.modules():
            if hasattr(module, "down_proj") and hasattr(module, "gate_up_proj"):
                module.down_proj.zero_()
        assert not torch.equal(model(ids).logits, first)
        assert torch.equal(copied(ids).logits, first)


def test_training_is_refused():
    model = tiny("Qwen3Moe")
    model.set_experts_implementation("moracle")
    with pytest.raises(moracle.Unsupported, match="needs a call without gradients"):
        model(torch.tensor([[1, 2, 3]]))


def test_compiled_model_gives_the_same_logits(registered):
    model = tiny("Qwen3Moe")
    model.set_experts_implementation("moracle")
    ids = torch.tensor([[1, 2, 3, 4]])
    registered.pack(model)
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
        compiled = torch.compile(model, backend="aot_eager")
        assert torch.allclose(compiled(ids, use_cache=False).logits, expected, atol=1e-5)


def test_unknown_gate_is_refused():
    model = tiny("Qwen3Moe")
    experts = next(module for module in model.modules() if hasattr(module, "gate_up_proj"))
    experts.act_fn = torch.nn.Tanh()
    model.set_experts_implementation("moracle")
    with pytest.raises(moracle.Unsupported, match="needs a known activation function"), torch.no_grad():
        model(torch.tensor([[1, 2]]))


def test_fp8_experts_match_float64():
    import float64_experts as f64
    from transformers.integrations import finegrained_fp8 as fp8
    config = transformers.Qwen3MoeConfig(**dict(TINY["Qwen3Moe"], hidden_size=256, moe_intermediate_size=128))
    experts = fp8.FP8Experts(config, block_size=(128, 128))
    generator = np.random.default_rng(2)
    values = []
    for weight, scales in ((experts.gate_up_proj, experts.gate_up_proj_scale_inv),
                           (experts.down_proj, experts.down_proj_scale_inv)):
        codes, scale, value = f64.fp8_blocks(generator.standard_normal(weight.shape) / 16, 128, 128)
        weight.data.copy_(torch.from_numpy(codes).view(torch.float8_e4m3fn))
        scales.data.copy_(torch.from_numpy(scale))
        values.append(value)
    hidden = torch.randn(5, 256, generator=torch.Generator().manual_seed(1))
    ids = torch.stack([torch.randperm(8)[:2] for _ in range(5)])
    weights = torch.rand(5, 2)
    with torch.no_grad():
        got = fp8.ALL_FP8_EXPERTS_FUNCTIONS["moracle"](experts, hidden, ids, weights).numpy()
    expected = f64.experts(hidden.numpy(), *values, weights.numpy(), ids.numpy(), f64.fp8_per_group(128))
    assert np.linalg.norm(got - expected) < 5e-3 * np.linalg.norm(expected)
