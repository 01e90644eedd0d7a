"""transformers models on an NVIDIA GPU: logits, text, torch.compile, FP8 and MXFP4 weights, memory."""
import threading

import float64_experts as f64
import numpy as np
import pytest
from gpu_layers import GPU
from moe_models import TINY, loaded, packed_layers, registered, tiny, torch, transformers  # noqa: F401


def relative(got, want):
    return float((got.float() - want.float()).norm() / want.float().norm())


def is_same_text(model, texts):
    """True if both texts are equal, or diverge where eager's top logits differ by less than bf16's precision."""
    model.set_experts_implementation("eager")
    for one, other in zip(*texts):
        at = next((i for i, pair in enumerate(zip(one, other)) if pair[0] != pair[1]), None)
        if at is None:
            continue
        with torch.no_grad():
            logits = model(torch.tensor([one[:at]], device=GPU)).logits[0, -1].float()
        if abs(logits[one[at]] - logits[other[at]]) > 2e-2 * logits.abs().max():
            return False
    return True


@pytest.mark.parametrize("name", TINY)
def test_logits_and_text_equal_those_of_eager(name):
    model = tiny(name, torch.bfloat16).to(GPU)
    ids = torch.randint(0, 128, (2, 11), generator=torch.Generator().manual_seed(1)).to(GPU)
    logits, texts = [], []
    for implementation in ("eager", "moracle"):
        model.set_experts_implementation(implementation)
        with torch.no_grad():
            logits.append(model(ids).logits)
        texts.append(model.generate(ids, max_new_tokens=12, do_sample=False, eos_token_id=None).tolist())
    assert packed_layers(model) == (1 if name == "DeepseekV3" else 2)
    assert 0 < relative(logits[1], logits[0]) < 1e-2
    assert is_same_text(model, texts)


def test_compiled_model_gives_the_same_logits(registered):
    model = tiny("Qwen3Moe", torch.bfloat16).to(GPU)
    model.set_experts_implementation("moracle")
    registered.pack(model)
    ids = torch.tensor([[1, 2, 3, 4]], device=GPU)
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
        # Not inductor: it keeps values in f32 that eager rounds to bf16. test_cuda_graphs.py compiles the experts with
        # it.
        assert relative(torch.compile(model, backend="aot_eager")(ids, use_cache=False).logits, expected) < 1e-2


def test_fp8_experts_match_float64():
    from transformers.integrations import finegrained_fp8 as fp8
    config = transformers.Qwen3MoeConfig(**dict(TINY["Qwen3Moe"], hidden_size=256, moe_intermediate_size=128))
    experts = fp8.FP8Experts(config, block_size=(128, 128)).to(GPU)
    generator = np.random.default_rng(2)
    values = []
    for weight, scales in ((experts.gate_up_proj, experts.gate_up_proj_scale_inv),
                           (experts.down_proj, experts.down_proj_scale_inv)):
        codes, scale, value = f64.fp8_blocks(generator.standard_normal(weight.shape) / 16, 128, 128)
        weight.data.copy_(torch.from_numpy(codes).view(torch.float8_e4m3fn))
        scales.data.copy_(torch.from_numpy(scale))
        values.append(value)
    hidden = torch.randn(5, 256, generator=torch.Generator().manual_seed(1)).bfloat16()
    ids = torch.stack([torch.randperm(8)[:2] for _ in range(5)])
    weights = torch.rand(5, 2)
    with torch.no_grad():
        got = fp8.ALL_FP8_EXPERTS_FUNCTIONS["moracle"](experts, hidden.to(GPU), ids.to(GPU), weights.to(GPU))
    expected = f64.experts(hidden.double().numpy(), *values, weights.numpy(), ids.numpy(), f64.fp8_per_group(128))
    assert np.linalg.norm(got.double().cpu().numpy() - expected) < 3e-2 * np.linalg.norm(expected)


def test_mxfp4_checkpoint_equals_the_dequantized_one(shared_checkpoint):
    folder = shared_checkpoint("gptoss-mxfp4")
    prompt = torch.tensor([[3724, 267, 1105, 17, 9]], device=GPU)
    logits, texts = [], []
    for implementation in ("eager", "moracle"):
        model = loaded(folder, implementation, dtype=torch.bfloat16).to(GPU)
        with torch.no_grad():
            logits.append(model(prompt).logits)
        texts.append(model.generate(prompt, max_new_tokens=12, do_sample=False).tolist())
    assert packed_layers(model) == 2
    assert model.model.layers[0].mlp.experts.gate_up_proj_blocks.dtype == torch.uint8
    assert relative(logits[1], logits[0]) < 1e-2
    assert texts[0] == texts[1]


def test_dropped_weights_leave_one_copy_on_the_gpu(registered):
    config = transformers.Qwen3MoeConfig(**dict(TINY["Qwen3Moe"], hidden_size=1024, num_hidden_layers=6,
                                                moe_intermediate_size=1024, num_experts=32))
    with torch.device(GPU):
        model = transformers.Qwen3MoeForCausalLM(config).bfloat16().eval()
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.05)
    model.set_experts_implementation("moracle")
    layer = 32 * 3 * 1024 * 1024 * 2
    torch.cuda.empty_cache()
    free, lowest, done = torch.cuda.mem_get_info()[0], [], threading.Event()

    def watch():
        while not done.wait(0.001):
            lowest.append(torch.cuda.mem_get_info()[0])
    watcher = threading.Thread(target=watch)
    watcher.start()
    assert registered.pack(model, drop=True) == 6
    done.set()
    watcher.join()
    workspace = 300e6  # 4,096 tokens
    assert free - min(lowest) < 1.5 * layer + workspace  # two copies of one layer, not of the model
    assert free - torch.cuda.mem_get_info()[0] < 0.2 * layer + workspace
    with torch.no_grad():
        assert torch.isfinite(model(torch.tensor([[1, 2, 3]], device=GPU)).logits).all()
