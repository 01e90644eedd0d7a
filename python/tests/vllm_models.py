"""Tiny random MoE models of six families, made by transformers, in folders that vLLM loads."""
import pathlib

SIZES = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
         "num_experts_per_tok": 2, "max_position_embeddings": 512, "initializer_range": 0.08, "tie_word_embeddings": False}


def _families():
    import transformers as t
    yield "qwen3moe", t.Qwen3MoeConfig(moe_intermediate_size=128, num_experts=8, head_dim=64, norm_topk_prob=True, **SIZES)
    yield "qwen2moe", t.Qwen2MoeConfig(moe_intermediate_size=128, num_experts=8, shared_expert_intermediate_size=128, **SIZES)
    yield "mixtral", t.MixtralConfig(intermediate_size=128, num_local_experts=8, **SIZES)
    yield "olmoe", t.OlmoeConfig(intermediate_size=128, num_experts=8, **SIZES)
    yield "gptoss", t.GptOssConfig(intermediate_size=128, num_local_experts=8, head_dim=64, sliding_window=128, **SIZES)
    yield "glm4moe", t.Glm4MoeConfig(moe_intermediate_size=128, n_routed_experts=8, n_shared_experts=1, head_dim=64,
                                     first_k_dense_replace=1, n_group=1, topk_group=1, norm_topk_prob=True,
                                     intermediate_size=256, routed_scaling_factor=1.5, **SIZES)


def make(root, families=None):
    """Writes the models of all families, or of those named. Returns {family: folder}."""
    import torch
    from transformers import AutoModelForCausalLM
    folders = {}
    for name, config in _families():
        if families is not None and name not in families:
            continue
        folders[name] = str(pathlib.Path(root) / name)
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folders[name])
    return folders
