"""transformers models with experts. Test files that import this skip if transformers is missing or too old."""
import pytest

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
    from moracle.integrations import transformers as integration
    integration.register()
    return integration


def tiny(name, dtype=torch.float32):
    torch.manual_seed(5)
    config = getattr(transformers, f"{name}Config")(**TINY[name])
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and sinks start as zeros, which test nothing
            parameter.normal_(0, 0.1 if parameter.ndim > 1 else 0.5)
    return model.to(dtype)


def packed_layers(model):
    return sum("_moracle_state" in module.__dict__ for module in model.modules())


def loaded(folder, implementation, **options):
    if implementation == "eager" and "mxfp4" in folder.name:  # running the codes needs downloaded kernels
        options["quantization_config"] = transformers.Mxfp4Config(dequantize=True)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, experts_implementation=implementation, **options).eval()
