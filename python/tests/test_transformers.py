"""transformers' models on this library: the same logits and the same text as its own implementations."""
import copy
import json

import numpy as np
import pytest

import moracle

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
if not hasattr(transformers.modeling_utils, "ALL_EXPERTS_FUNCTIONS"):
    pytest.skip("this transformers accepts no registered experts implementations", allow_module_level=True)

COMMON = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
          "vocab_size": 128, "max_position_embeddings": 64, "num_experts_per_tok": 2}
TINY = {
    "Qwen3Moe": dict(COMMON, head_dim=16, intermediate_size=64, moe_intermediate_size=32, num_experts=8,
                     norm_topk_prob=True),
    "Mixtral": dict(COMMON, intermediate_size=48, num_local_experts=4),
    "GptOss": dict(COMMON, head_dim=16, intermediate_size=32, num_local_experts=4, sliding_window=16,
                   layer_types=["sliding_attention", "full_attention"]),
    "DeepseekV3": dict(COMMON, num_key_value_heads=4, intermediate_size=64, moe_intermediate_size=32, n_routed_experts=8,
                       n_group=2, topk_group=1, q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8,
                       v_head_dim=16, first_k_dense_replace=1, n_shared_experts=1),
}


@pytest.fixture(scope="module", autouse=True)
def registered():
    from moracle.integrations import transformers as door
    door.register()
    return door


def tiny(name, dtype=torch.float32):
    torch.manual_seed(5)
    config = getattr(transformers, f"{name}Config")(**TINY[name])
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and sinks start as zeros, which prove nothing
            parameter.normal_(0, 0.1 if parameter.ndim > 1 else 0.5)
    return model.to(dtype)


def packed_layers(model):
    return sum("_moracle_state" in module.__dict__ for module in model.modules())


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


def test_generation_gives_the_same_text():
    model = tiny("Qwen3Moe")
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


def loaded(folder, implementation, **options):
    if implementation == "eager" and "mxfp4" in folder.name:  # the codes as they are need kernels from a hub
        options["quantization_config"] = transformers.Mxfp4Config(dequantize=True)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, experts_implementation=implementation, **options).eval()


@pytest.mark.parametrize("name, layers", [("qwen3moe-bf16", 3), ("gptoss-bf16", 2), ("gptoss-mxfp4", 2)])
def test_shared_checkpoint_gives_the_same_logits_and_text(shared_checkpoint, name, layers):
    folder = shared_checkpoint(name)
    prompt = torch.tensor([[3724, 267, 1105, 17, 9]])
    logits, texts = [], []
    for implementation in ("eager", "moracle"):
        model = loaded(folder, implementation, dtype=torch.float32)
        if implementation == "eager":
            model = model.float()  # transformers 5.17 dequantizes to bf16
        with torch.no_grad():
            logits.append(model(prompt).logits)
        texts.append(model.generate(prompt, max_new_tokens=16, do_sample=False).tolist())
    assert packed_layers(model) == layers
    assert texts[0] == texts[1]
    assert 0 < (logits[1] - logits[0]).norm() < 1e-5 * logits[0].norm()


@pytest.mark.parametrize("name", ["qwen3moe-bf16", "gptoss-bf16", "gptoss-mxfp4"])
def test_shared_checkpoint_gives_the_logits_of_its_reference(shared_checkpoint, name):
    folder = shared_checkpoint(name)
    reference = json.loads((folder / "reference.json").read_text(encoding="utf-8"))
    expected = safetensors.load_file(folder / "reference.safetensors")["logits"]
    model = loaded(folder, "moracle", dtype=torch.float32)
    for prompt, wanted in zip(reference["prompt_ids"], expected):
        with torch.no_grad():
            got = model(torch.tensor([prompt])).logits[0, -1]
        assert (got - wanted).norm() < 1e-5 * wanted.norm()


def test_dequantized_deepseek_gives_the_logits_of_eager(shared_checkpoint):
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    # Without a GPU transformers dequantizes FP8 to bf16.
    model = loaded(shared_checkpoint("dsv3-fp8-block128"), "eager", dtype=torch.bfloat16,
                   quantization_config=transformers.FineGrainedFP8Config(dequantize=True)).float()
    prompt = torch.tensor([[3724, 267, 1105, 17, 9]])
    logits, texts = [], []
    for implementation in ("eager", "moracle"):
        model.set_experts_implementation(implementation)
        with torch.no_grad():
            logits.append(model(prompt).logits)
        texts.append(model.generate(prompt, max_new_tokens=16, do_sample=False).tolist())
    assert packed_layers(model) > 0
    assert texts[0] == texts[1]
    assert 0 < (logits[1] - logits[0]).norm() < 1e-5 * logits[0].norm()


def test_mxfp4_codes_stay_as_stored(shared_checkpoint, registered):
    folder = shared_checkpoint("gptoss-mxfp4")
    model = loaded(folder, "moracle", dtype=torch.bfloat16)
    codes = {name: p for name, p in model.named_parameters() if "blocks" in name or "scales" in name}
    assert len(codes) == 8
    stored = safetensors.load_file(folder / "model.safetensors")
    assert all(p.dtype == torch.uint8 and torch.equal(p, stored[name]) for name, p in codes.items())
    prompt = torch.tensor([[3724, 267, 1105]])
    with torch.no_grad():
        before = model(prompt).logits
        assert registered.pack(model, drop=True) == 2
        assert sum(p.numel() for name, p in model.named_parameters() if "blocks" in name) == 0
        assert torch.equal(model(prompt).logits, before)
        model.set_experts_implementation("eager")
        with pytest.raises(moracle.Unsupported, match='Mxfp4Experts: needs experts_implementation="moracle"'):
            model(prompt)


def test_other_implementations_load_mxfp4_as_before(shared_checkpoint):
    model = loaded(shared_checkpoint("gptoss-mxfp4"), "eager", dtype=torch.bfloat16)
    assert model.model.layers[0].mlp.experts.gate_up_proj.dtype == torch.bfloat16


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no NVIDIA GPU")
@pytest.mark.parametrize("name", TINY)
def test_logits_on_a_gpu_equal_those_of_eager(name):
    if not moracle.has_cuda():
        pytest.skip("this package is built without CUDA")
    model = tiny(name, torch.bfloat16).to("cuda")
    ids = torch.randint(0, 128, (2, 11), generator=torch.Generator().manual_seed(1)).to("cuda")
    logits = {}
    for implementation in ("eager", "moracle"):
        model.set_experts_implementation(implementation)
        with torch.no_grad():
            logits[implementation] = model(ids).logits.float()
    difference = (logits["moracle"] - logits["eager"]).norm() / logits["eager"].norm()
    assert 0 < difference < 2e-2
