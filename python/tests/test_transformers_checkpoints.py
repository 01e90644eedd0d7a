"""Shared checkpoints in transformers: logits, text, and MXFP4 codes as stored."""
import json

import float64_experts as f64
import pytest
from moe_models import loaded, packed_layers, registered, safetensors, torch, transformers  # noqa: F401

import moracle


def bound(folder, layers):
    """Bound of logits: f32 rounding, and for codes kept as stored the error of the serving row."""
    if "mxfp4" not in folder.name:
        return 1e-5
    return f64.bound(moracle.select(moracle.Checkpoint(folder).moe_layer(0), device="cpu"), layers) + 1e-5


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
    assert 0 < (logits[1] - logits[0]).norm() < bound(folder, layers) * logits[0].norm()


@pytest.mark.parametrize("name", ["qwen3moe-bf16", "gptoss-bf16", "gptoss-mxfp4"])
def test_shared_checkpoint_gives_the_logits_of_its_reference(shared_checkpoint, name):
    folder = shared_checkpoint(name)
    reference = json.loads((folder / "reference.json").read_text(encoding="utf-8"))
    expected = safetensors.load_file(folder / "reference.safetensors")["logits"]
    model = loaded(folder, "moracle", dtype=torch.float32)
    for prompt, wanted in zip(reference["prompt_ids"], expected):
        with torch.no_grad():
            got = model(torch.tensor([prompt])).logits[0, -1]
        assert (got - wanted).norm() < bound(folder, packed_layers(model)) * wanted.norm()


@pytest.mark.parametrize("name", ["dsv3-fp8-block128", "qwen3moe-fp8-block128"])
def test_dequantized_fp8_checkpoint_gives_the_logits_of_eager(shared_checkpoint, name):
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    if tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 17):
        pytest.skip("this transformers does not dequantize blocks that the end of a matrix cuts")
    # Without a GPU transformers dequantizes FP8 to bf16.
    model = loaded(shared_checkpoint(name), "eager", dtype=torch.bfloat16,
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


PROMPT = [[3724, 267, 1105, 17, 9]]


def scheme_of(model):
    return model.model.layers[-1].mlp.experts._moracle_state.packed.moe.spec.scheme.name


def test_experts_of_the_checkpoint_equal_those_that_transformers_loaded(shared_checkpoint, registered):
    folder = shared_checkpoint("qwen3moe-bf16")
    model = loaded(folder, "moracle", dtype=torch.bfloat16)
    with torch.no_grad():
        expected = model(torch.tensor(PROMPT)).logits
        assert registered.pack(model, drop=True, checkpoint=folder) == 3
        assert torch.equal(model(torch.tensor(PROMPT)).logits, expected)


@pytest.mark.parametrize("name, scheme", [("qwen3moe-ct-w4a16-g128", "int4-w4a16-g128"),
                                          ("qwen3moe-ct-fp8-dynamic", "fp8-w8a8-channel")])
def test_codes_of_the_checkpoint_replace_dequantized_experts(shared_checkpoint, registered, name, scheme):
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
    folder = shared_checkpoint(name)
    model = loaded(folder, "eager", dtype=torch.bfloat16)
    with torch.no_grad():
        expected = model(torch.tensor(PROMPT)).logits
        model.set_experts_implementation("moracle")
        registered.pack(model)
        dequantized = model.model.layers[-1].mlp.experts._moracle_state.packed.moe
        assert dequantized.spec.scheme.name == "bf16"
        registered.pack(model, drop=True, checkpoint=folder)
        assert scheme_of(model) == scheme
        assert model.model.layers[-1].mlp.experts._moracle_state.packed.moe.weight_bytes < 0.6 * dequantized.weight_bytes
        # Attention in bf16, and activations in fp8 where the scheme has them.
        assert (model(torch.tensor(PROMPT)).logits - expected).norm() < 0.05 * expected.norm()


def test_checkpoint_of_another_model_is_refused(shared_checkpoint, registered):
    model = loaded(shared_checkpoint("qwen3moe-bf16"), "moracle", dtype=torch.bfloat16)
    with pytest.raises(moracle.InvalidArgument, match="checkpoint: needs 3 layers with experts, as the model; it has 2"):
        registered.pack(model, checkpoint=shared_checkpoint("gptoss-bf16"))
