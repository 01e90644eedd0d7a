#!/usr/bin/env python3
"""Writes tests/golden/{architectures,compressed,multimodal,sensitive}/*: tiny models of random numbers, and what transformers computes
with them in float32 on a CPU.

    pip install torch transformers
    python3 tools/make_architecture_golden.py [output]

The numbers are drawn so that everything an architecture has matters: norms are not 1, biases, sinks
and correction biases not 0, windows shorter than the prompt, YaRN with a factor and, for DeepSeek-V3,
its mscale. Routers are far enough from ties, and logits change little with the last bit of the
embedding: another seed where 7 gives neither. Indexers of sparse attention, too, choose far from ties: a
score of 0 is frequent with few index heads, and torch leaves the order of equal scores open. Stored as bf16 (transformers reads them back before it
computes), except what published files keep in f32. reference.safetensors: "ids" i32 [tokens] and
"logits" f32 [tokens, vocabulary] of one prompt.
"""

import contextlib
import functools
import json
import pathlib
import shutil
import sys
import tempfile

import safetensors.torch
import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

VOCABULARY, TOKENS = 40, 19
COMMON = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=4, vocab_size=VOCABULARY,
              max_position_embeddings=256, tie_word_embeddings=False, pad_token_id=None,
              bos_token_id=0, eos_token_id=1)
YARN = dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=32, beta_fast=4.0,
            beta_slow=1.0)
QWEN = dict(num_key_value_heads=2, moe_intermediate_size=8, intermediate_size=28, num_experts=4,
            num_experts_per_tok=2, rope_theta=1e4)
DEEPSEEK = dict(intermediate_size=28, moe_intermediate_size=8, n_routed_experts=8,
                num_experts_per_tok=3, n_shared_experts=2, n_group=4, topk_group=2,
                routed_scaling_factor=2.5, norm_topk_prob=True, first_k_dense_replace=1,
                kv_lora_rank=12, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=8,
                num_key_value_heads=4)
DEEPSEEK_V4 = dict(num_key_value_heads=1, head_dim=8, q_lora_rank=10, qk_rope_head_dim=4,
                   moe_intermediate_size=8, n_routed_experts=8, num_experts_per_tok=3,
                   routed_scaling_factor=1.7, swiglu_limit=0.6, sliding_window=5, o_groups=2,
                   o_lora_rank=6, index_n_heads=8, index_head_dim=6, index_topk=3,
                   compress_rates=dict(compressed_sparse_attention=2, heavily_compressed_attention=4),
                   compress_rope_theta=4e4)
# KDA, and MLA whose indexer chooses pools of positions; several residual streams.
GLM5_NEXT = dict({key: value for key, value in DEEPSEEK.items() if key != "first_k_dense_replace"}, n_shared_experts=1,
                 qk_rope_head_dim=0, q_lora_rank=10, index_n_heads=8, index_head_dim=6, swiglu_limit=0.6,
                 linear_head_dim=6, linear_num_heads=4, num_hidden_layers=4, pad_token_id=0)
GLM5_NEXT_VISION = dict(depth=1, hidden_size=8, intermediate_size=8, num_heads=2, patch_size=2, temporal_patch_size=1,
                        spatial_merge_size=1, out_hidden_size=24, projection_intermediate_size=8)
GLM = dict(num_key_value_heads=2, head_dim=8, intermediate_size=28, moe_intermediate_size=8,
           n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=2, n_group=1, topk_group=1,
           routed_scaling_factor=1.7, first_k_dense_replace=1)
HEADS = dict(num_key_value_heads=2, head_dim=8, intermediate_size=28, moe_intermediate_size=8,
             num_experts_per_tok=3)
# Layers with a window and others; those without share keys as values and rotate a part of wider heads.
GEMMA4 = dict(num_key_value_heads=2, head_dim=8, global_head_dim=12, num_global_key_value_heads=1,
              intermediate_size=14, moe_intermediate_size=8, num_experts=8, top_k_experts=3,
              enable_moe_block=True, hidden_size_per_layer_input=0, sliding_window=5,
              tie_word_embeddings=True, attention_k_eq_v=True, final_logit_softcapping=3.0,
              layer_types=["sliding_attention", "full_attention"],
              rope_parameters=dict(
                  sliding_attention=dict(rope_type="default", rope_theta=1e3),
                  full_attention=dict(rope_type="proportional", rope_theta=1e4,
                                      partial_rotary_factor=0.5)))
# Dense layers with full attention, then experts and attention to selected blocks of keys.
MINIMAX_M3 = dict(num_key_value_heads=2, head_dim=8, rotary_dim=4, intermediate_size=8,
                  dense_intermediate_size=28, shared_intermediate_size=14, num_local_experts=8,
                  num_experts_per_tok=3, num_hidden_layers=3, swiglu_limit=0.9, index_n_heads=2,
                  index_head_dim=12, index_block_size=3, index_topk_blocks=3,
                  mlp_layer_types=["dense", "sparse", "sparse"],
                  layer_types=["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
                  rope_parameters=dict(rope_type="default", rope_theta=1e3, partial_rotary_factor=0.5))
HYBRID = dict(QWEN, head_dim=8, num_hidden_layers=3, shared_expert_intermediate_size=14,
              linear_conv_kernel_dim=4, linear_key_head_dim=12, linear_value_head_dim=10,
              rms_norm_eps=0.02,
              linear_num_key_heads=2, linear_num_value_heads=4,
              layer_types=["linear_attention", "full_attention", "linear_attention"],
              rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5))
# Gated residual streams, n-grams, and attention to pools of positions whose index keys are averages.
QWEN4_EXP = dict({key: value for key, value in HYBRID.items() if key not in ("rope_theta", "intermediate_size")},
                 num_hidden_layers=4, num_experts=8, num_experts_per_tok=3, hc_lowrank=10, indexer_n_heads=8,
                 indexer_kv_heads=1, indexer_head_dim=6, ngram_vocab_size_base=30, make_ngram_vocab_size_divisible_by=8)
# Heads of Mamba-2 whose columns are not hidden_size times `expand`.
NEMOTRON = dict(num_key_value_heads=2, head_dim=8, intermediate_size=28, moe_intermediate_size=8,
                moe_shared_expert_intermediate_size=14, n_routed_experts=8, num_experts_per_tok=3,
                routed_scaling_factor=1.7, mamba_num_heads=6, mamba_head_dim=5, n_groups=2,
                ssm_state_size=10, layer_norm_epsilon=1e-3)

MODELS = {
    "mixtral": (transformers.MixtralConfig, dict(
        num_key_value_heads=2, intermediate_size=12, num_local_experts=4, num_experts_per_tok=2,
        rope_theta=1e4, sliding_window=5)),
    "gpt_oss": (transformers.GptOssConfig, dict(
        num_key_value_heads=2, head_dim=8, intermediate_size=12, num_local_experts=4,
        num_experts_per_tok=2, sliding_window=6, swiglu_limit=1.5, swiglu_alpha=1.2,
        rope_parameters=dict(YARN, truncate=False, rope_theta=150000.0))),
    "deepseek_v3": (transformers.DeepseekV3Config, dict(
        DEEPSEEK, q_lora_rank=10,
        rope_parameters=dict(YARN, rope_theta=1e4, mscale=1.3, mscale_all_dim=0.7))),
    "deepseek_v3_plain_query": (transformers.DeepseekV3Config, dict(
        DEEPSEEK, q_lora_rank=None, rope_interleave=False, attention_bias=True, norm_topk_prob=False,
        rope_parameters=dict(rope_type="default", rope_theta=1e4))),
    # DeepSeek-V2's groups: softmax scores; a group ranks by its best expert.
    "deepseek_v2": (transformers.DeepseekV2Config, dict(
        DEEPSEEK, seed=9, q_lora_rank=10, norm_topk_prob=False, topk_method="group_limited_greedy",
        rope_parameters=dict(YARN, rope_theta=1e4, mscale=0.7, mscale_all_dim=0.7))),
    "deepseek_v2_lite": (transformers.DeepseekV2Config, dict(
        DEEPSEEK, q_lora_rank=None, norm_topk_prob=False, topk_method="greedy", n_group=None,
        topk_group=None, routed_scaling_factor=1.0,
        rope_parameters=dict(rope_type="default", rope_theta=1e4))),
    "glm4_moe": (transformers.Glm4MoeConfig, dict(
        GLM, use_qk_norm=True, attention_bias=True, norm_topk_prob=True,
        rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5))),
    "glm4_moe_air": (transformers.Glm4MoeConfig, dict(
        GLM, seed=8, use_qk_norm=False, norm_topk_prob=False, n_group=4, topk_group=2, head_dim=12,
        rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5))),
    "glm4_moe_lite": (transformers.Glm4MoeLiteConfig, dict(
        {key: value for key, value in DEEPSEEK.items() if key != "first_k_dense_replace"}, seed=9,
        q_lora_rank=10, n_group=1, topk_group=1, mlp_layer_types=["dense", "sparse"],
        rope_parameters=dict(rope_type="default", rope_theta=1e4))),
    "glm4_moe_lite_order": (transformers.Glm4MoeLiteConfig, dict(
        {key: value for key, value in DEEPSEEK.items() if key != "first_k_dense_replace"}, seed=6,
        q_lora_rank=None, n_group=1, topk_group=1, num_hidden_layers=3,
        mlp_layer_types=["sparse", "dense", "sparse"],
        rope_parameters=dict(rope_type="default", rope_theta=1e4))),
    "dots1": (transformers.Dots1Config, dict(
        GLM, head_dim=8, sliding_window=5, max_window_layers=1, norm_topk_prob=True,
        rope_parameters=dict(rope_type="default", rope_theta=1e4))),
    "ernie4_5_moe": (transformers.Ernie4_5_MoeConfig, dict(
        num_key_value_heads=2, intermediate_size=28, moe_intermediate_size=8, moe_num_experts=8,
        moe_k=3, moe_num_shared_experts=2, moe_layer_start_index=1,
        rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=2.5))),
    "exaone_moe": (transformers.ExaoneMoeConfig, dict(
        {key: value for key, value in GLM.items() if "routed" not in key and "n_sh" not in key},
        seed=12, num_experts=8, num_shared_experts=1, routed_scaling_factor=1.7, num_hidden_layers=3,
        sliding_window=5, sliding_window_pattern="LLG",
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters=dict(rope_type="default", rope_theta=1e4))),
    "solar_open": (transformers.SolarOpenConfig, dict(
        {key: value for key, value in GLM.items() if "dense" not in key and key != "intermediate_size"},
        seed=12, rope_parameters=dict(YARN, rope_theta=1e4))),
    "qwen2_moe_llama3": (transformers.Qwen2MoeConfig, dict(
        QWEN, shared_expert_intermediate_size=14, norm_topk_prob=True, qkv_bias=False,
        rope_parameters=dict(rope_type="llama3", rope_theta=1e4, factor=4.0, low_freq_factor=1.0,
                             high_freq_factor=4.0, original_max_position_embeddings=24))),
    "hunyuan_v1_moe": (transformers.HunYuanMoEV1Config, dict(
        num_key_value_heads=2, head_dim=8, intermediate_size=12, num_experts=8, moe_topk=[3, 2],
        rope_parameters=dict(rope_type="dynamic", rope_theta=1e4, factor=1.0, alpha=50.0))),
    "minimax_m2": (transformers.MiniMaxM2Config, dict(
        num_key_value_heads=2, head_dim=8, intermediate_size=12, num_local_experts=8,
        num_experts_per_tok=3,
        rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5))),
    # Several blocks around a token are always chosen; all layers have experts.
    "minimax_m3": (transformers.MiniMaxM3VLTextConfig, dict(
        MINIMAX_M3, seed=8, rms_norm_eps=1e-5, swiglu_alpha=1.2, index_block_size=2,
        index_topk_blocks=4, index_local_blocks=2, index_head_dim=8, mlp_layer_types=["sparse"] * 3,
        layer_types=["minimax_m3_sparse", "full_attention", "minimax_m3_sparse"])),
    "olmoe": (transformers.OlmoeConfig, dict(
        num_key_value_heads=2, intermediate_size=12, num_experts=4, num_experts_per_tok=2,
        norm_topk_prob=False, rope_theta=1e4)),
    "deepseek_v32": (transformers.DeepseekV32Config, dict(
        DEEPSEEK, seed=7, q_lora_rank=10, index_topk=24, index_head_dim=6, index_n_heads=2,
        rope_parameters=dict(YARN, rope_theta=1e4, mscale=1.0, mscale_all_dim=1.0))),
    "glm_moe_dsa": (transformers.GlmMoeDsaConfig, dict(
        DEEPSEEK, seed=9, q_lora_rank=10, n_group=1, topk_group=1, index_topk=24, index_head_dim=6,
        index_n_heads=2, indexer_types=["full", "shared"],
        rope_parameters=dict(rope_type="default", rope_theta=1e4))),
    # Layers with a window alone, with entries that an indexer chooses, and with all entries.
    "deepseek_v4": (transformers.DeepseekV4Config, dict(
        DEEPSEEK_V4, seed=17, num_hidden_layers=4, num_hash_layers=2, hc_mult=3, hc_sinkhorn_iters=3,
        layer_types=["sliding_attention", "compressed_sparse_attention",
                     "heavily_compressed_attention", "compressed_sparse_attention"],
        rope_parameters=dict(YARN))),
    # As Pro: every layer has entries. No token chooses its experts.
    "deepseek_v4_pro": (transformers.DeepseekV4Config, dict(
        DEEPSEEK_V4, seed=7, num_hidden_layers=4, num_hash_layers=0, hc_mult=4, hc_sinkhorn_iters=20,
        n_routed_experts=4,
        layer_types=2 * ["heavily_compressed_attention"] + 2 * ["compressed_sparse_attention"])),
    "glm5_next_pools": (transformers.Glm5NextConfig, dict(
        GLM5_NEXT, seed=107, n_group=1, topk_group=1, index_kpool=4, index_topk=8,
        mlp_layer_types=["dense", "sparse", "sparse", "sparse"], indexer_types=4 * ["full"],
        layer_types=2 * ["linear_attention", "indexed_attention"])),
    # Pools that do not divide a page of the cache. Decays without a bound, and a layer that shares a selection.
    "glm5_next_shared": (transformers.Glm5NextConfig, dict(
        GLM5_NEXT, seed=2, n_shared_experts=2, index_kpool=3, index_topk=9, hc_mult=3, hc_sinkhorn_iters=3,
        attention_bias=True, norm_topk_prob=False, linear_head_dim=16, linear_num_heads=2, linear_conv_kernel_dim=3,
        linear_lower_bound=None, mlp_layer_types=["sparse", "dense", "sparse", "sparse"],
        indexer_types=["full", "shared", "full", "full"],
        layer_types=["indexed_attention", "indexed_attention", "linear_attention", "indexed_attention"])),
    "qwen4_exp": (transformers.Qwen4ExpTextConfig, dict(
        QWEN4_EXP, seed=15, hc_count=4, ple_layer_ids=[2], output_gate_type="sigmoid", heads_per_ngram=2,
        split_ngram_parts=4, ple_embed_dim=24, indexer_budget=8, indexer_compress_ratio=4,
        layer_types=["linear_attention", "linear_attention", "indexed_attention", "indexed_attention"])),
    "qwen4_exp_bigrams": (transformers.Qwen4ExpTextConfig, dict(
        QWEN4_EXP, seed=3, hc_count=3, ple_layer_ids=[1, 4], ngram_size=2, heads_per_ngram=3, split_ngram_parts=1,
        ple_conv_kernel_size=2, ple_embed_dim=12, indexer_budget=9, indexer_compress_ratio=3, attention_bias=True,
        norm_topk_prob=False, eos_token_id=[5, 1],
        layer_types=["linear_attention", "indexed_attention", "indexed_attention", "linear_attention"])),
    # The same beyond the top-k of the indexer.
    "deepseek_v32_sparse": (transformers.DeepseekV32Config, dict(
        DEEPSEEK, seed=17, q_lora_rank=10, index_topk=8, index_head_dim=6, index_n_heads=8,
        rope_parameters=dict(YARN, rope_theta=1e4, mscale=1.0, mscale_all_dim=1.0))),
    "glm_moe_dsa_sparse": (transformers.GlmMoeDsaConfig, dict(
        DEEPSEEK, seed=33, q_lora_rank=10, n_group=1, topk_group=1, index_topk=8, index_head_dim=6,
        index_n_heads=8, num_hidden_layers=4, indexer_types=["full", "shared", "full", "shared"],
        rope_parameters=dict(rope_type="default", rope_theta=1e4))),
    "afmoe": (transformers.AfmoeConfig, dict(
        num_key_value_heads=2, head_dim=8, intermediate_size=28, moe_intermediate_size=8,
        seed=7, num_experts=8, num_experts_per_tok=3, num_shared_experts=2, num_dense_layers=1,
        num_hidden_layers=3, route_scale=1.7, sliding_window=5, global_attn_every_n_layers=2,
        mup_enabled=True, rope_parameters=dict(rope_type="default", rope_theta=1e4))),
    # YaRN's factor applies only to the layers with RoPE.
    "afmoe_yarn": (transformers.AfmoeConfig, dict(
        num_key_value_heads=2, head_dim=8, intermediate_size=28, moe_intermediate_size=8,
        seed=7, num_experts=4, num_experts_per_tok=2, num_shared_experts=1, num_dense_layers=0,
        num_hidden_layers=2, route_scale=1.7, sliding_window=5,
        layer_types=["full_attention", "sliding_attention"],
        rope_parameters=dict(YARN, rope_theta=1e4))),
    "exaone_moe_yarn": (transformers.ExaoneMoeConfig, dict(
        {key: value for key, value in GLM.items()
         if "routed" not in key and "n_sh" not in key and "dense" not in key},
        seed=12, num_experts=4, num_experts_per_tok=2, num_shared_experts=1, routed_scaling_factor=1.7,
        n_group=2, topk_group=1, sliding_window=5, sliding_window_pattern="LG", first_k_dense_replace=0,
        layer_types=["sliding_attention", "full_attention"], mlp_layer_types=["sparse", "dense"],
        rope_parameters=dict(YARN, rope_theta=1e4, attention_factor=1.4))),
    "granite_moe": (transformers.GraniteMoeConfig, dict(
        num_key_value_heads=2, intermediate_size=12, num_local_experts=8, num_experts_per_tok=3,
        seed=7, embedding_multiplier=3.0, residual_multiplier=0.6, logits_scaling=1.7,
        attention_multiplier=0.3, rope_parameters=dict(rope_type="default", rope_theta=1e4))),
    "granite_moe_shared": (transformers.GraniteMoeSharedConfig, dict(
        num_key_value_heads=4, intermediate_size=12, num_local_experts=4, num_experts_per_tok=2,
        seed=7, shared_intermediate_size=14, attention_bias=True, embedding_multiplier=3.0,
        residual_multiplier=0.6, logits_scaling=1.7, attention_multiplier=0.3,
        rope_parameters=dict(rope_type="default", rope_theta=1e4))),
    "lfm2_moe": (transformers.Lfm2MoeConfig, dict(
        num_key_value_heads=2, intermediate_size=28, moe_intermediate_size=8, num_experts=8,
        seed=7, num_experts_per_tok=3, num_dense_layers=1, num_hidden_layers=4, conv_L_cache=3,
        routed_scaling_factor=1.3, layer_types=["conv", "full_attention", "conv", "full_attention"],
        rope_parameters=dict(rope_type="default", rope_theta=1e4))),
    "phimoe": (transformers.PhimoeConfig, dict(
        num_key_value_heads=2, intermediate_size=12, num_local_experts=6, attention_bias=True,
        lm_head_bias=True, router_jitter_noise=0.1, seed=11, sliding_window=7,
        rope_parameters=dict(rope_type="longrope", rope_theta=1e4, short_factor=[1.0, 1.3, 2.0],
                             long_factor=[1.5, 3.0, 6.0], short_mscale=1.2, long_mscale=1.5,
                             original_max_position_embeddings=24))),
    # The prompt is longer than the original context.
    "phimoe_long": (transformers.PhimoeConfig, dict(
        num_key_value_heads=2, intermediate_size=12, num_local_experts=6, seed=26,
        rope_parameters=dict(rope_type="longrope", rope_theta=1e4, short_factor=[1.0, 1.3, 2.0],
                             long_factor=[1.5, 3.0, 6.0], short_mscale=1.2, long_mscale=1.5,
                             original_max_position_embeddings=12))),
    "phimoe_plain": (transformers.PhimoeConfig, dict(
        num_key_value_heads=4, intermediate_size=12, num_local_experts=4, router_jitter_noise=0.05,
        rope_parameters=dict(rope_type="default", rope_theta=1e4))),
    "llama4": (transformers.Llama4TextConfig, dict(
        num_key_value_heads=2, head_dim=8, intermediate_size=10, intermediate_size_mlp=28,
        num_local_experts=4, num_hidden_layers=4, interleave_moe_layer_step=2, seed=7,
        no_rope_layers=[1, 0, 1, 1], attention_chunk_size=7, floor_scale=4, attn_scale=0.4,
        rope_parameters=dict(rope_type="llama3", rope_theta=1e4, factor=4.0, low_freq_factor=1.0,
                             high_freq_factor=1.0, original_max_position_embeddings=24))),
    "llama4_plain": (transformers.Llama4TextConfig, dict(
        num_key_value_heads=4, head_dim=6, intermediate_size=14, num_local_experts=4,
        intermediate_size_mlp=28, no_rope_layer_interval=2, use_qk_norm=False, attention_bias=True,
        attn_temperature_tuning=False, seed=8, attention_chunk_size=5,
        rope_parameters=dict(rope_type="default", rope_theta=1e4))),
    "gemma4": (transformers.Gemma4TextConfig, dict(GEMMA4, seed=7)),
    "gemma4_plain": (transformers.Gemma4TextConfig, dict(
        GEMMA4, seed=7, attention_k_eq_v=False, attention_bias=True, final_logit_softcapping=None,
        tie_word_embeddings=False)),
    "qwen2_moe": (transformers.Qwen2MoeConfig, dict(
        QWEN, shared_expert_intermediate_size=14, mlp_only_layers=[0], norm_topk_prob=False)),
    "qwen2_moe_windows": (transformers.Qwen2MoeConfig, dict(
        QWEN, seed=8, shared_expert_intermediate_size=14, norm_topk_prob=False, num_hidden_layers=3,
        use_sliding_window=True, sliding_window=5, max_window_layers=2)),
    "qwen3_moe_window": (transformers.Qwen3MoeConfig, dict(
        QWEN, head_dim=8, norm_topk_prob=False, use_sliding_window=True, sliding_window=5,
        rope_parameters=dict(rope_type="dynamic", rope_theta=1e4, factor=3.0))),
    "qwen3_next": (transformers.Qwen3NextConfig, dict(
        {key: value for key, value in HYBRID.items() if key != "rope_theta"}, seed=18, mlp_only_layers=[2],
        attention_bias=True)),
    "qwen3_5_moe": (transformers.Qwen3_5MoeTextConfig, dict(
        {key: value for key, value in HYBRID.items()
         if key not in ("rope_theta", "intermediate_size")}, seed=21, linear_conv_kernel_dim=3,
        linear_num_value_heads=2)),
    "qwen3_moe": (transformers.Qwen3MoeConfig, dict(
        QWEN, head_dim=10, norm_topk_prob=True, hidden_act="gelu_pytorch_tanh",
        mlp_only_layers=[1], tie_word_embeddings=True)),
    # Hy3, with a dense layer among those with experts.
    "hy_v3": (transformers.HYV3Config, dict(
        HEADS, seed=7, num_experts=8, num_shared_experts=2, router_scaling_factor=1.7, num_hidden_layers=3,
        mlp_layer_types=["dense", "sparse", "sparse"],
        rope_parameters=dict(rope_type="default", rope_theta=1e4))),
    "hy_v3_biased": (transformers.HYV3Config, dict(
        HEADS, seed=7, num_experts=4, attention_bias=True, tie_word_embeddings=True,
        mlp_layer_types=["sparse", "sparse"], rope_parameters=dict(YARN, rope_theta=1e4))),
    "axk1": (transformers.AXK1Config, dict(
        {key: value for key, value in DEEPSEEK.items() if key != "first_k_dense_replace"}, seed=7,
        q_lora_rank=10, num_hidden_layers=3, mlp_layer_types=["dense", "sparse", "sparse"],
        rope_parameters=dict(YARN, rope_theta=1e4, mscale=1.0, mscale_all_dim=1.0))),
    "axk1_order": (transformers.AXK1Config, dict(
        {key: value for key, value in DEEPSEEK.items() if key != "first_k_dense_replace"}, seed=7,
        q_lora_rank=10, num_hidden_layers=3, mlp_layer_types=["sparse", "dense", "sparse"], n_group=1,
        topk_group=1, norm_topk_prob=False, rope_interleave=False,
        rope_parameters=dict(rope_type="default", rope_theta=1e4))),
    # transformers saves these two as Glm4MoeForCausalLM and DeepseekV3ForCausalLM.
    "sarvam_moe": (transformers.SarvamMoEConfig, dict(
        GLM, seed=7, norm_topk_prob=True, rope_parameters=dict(rope_type="default", rope_theta=1e4))),
    "sarvam_moe_biased": (transformers.SarvamMoEConfig, dict(
        GLM, seed=7, norm_topk_prob=False, attention_bias=True, use_qk_norm=False, n_group=4, topk_group=2,
        rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=2.5))),
    "sarvam_mla": (transformers.SarvamMLAConfig, dict(
        DEEPSEEK, seed=7, q_lora_rank=None, n_group=1, topk_group=1,
        rope_parameters=dict(YARN, rope_theta=1e4, mscale=1.0, mscale_all_dim=1.0))),
    "sarvam_mla_groups": (transformers.SarvamMLAConfig, dict(
        DEEPSEEK, seed=9, q_lora_rank=10, rope_interleave=False,
        rope_parameters=dict(rope_type="default", rope_theta=1e4))),
    "mellum": (transformers.MellumConfig, dict(
        HEADS, seed=7, num_experts=8, num_hidden_layers=3, sliding_window=5,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters=dict(full_attention=dict(YARN, rope_theta=1e4),
                             sliding_attention=dict(rope_type="default", rope_theta=1e3)))),
    "mellum_dense": (transformers.MellumConfig, dict(
        HEADS, seed=7, num_experts=4, norm_topk_prob=False, attention_bias=True,
        mlp_layer_types=["dense", "sparse"],
        rope_parameters=dict(full_attention=dict(rope_type="default", rope_theta=1e4)))),
    "flex_olmo": (transformers.FlexOlmoConfig, dict(
        num_key_value_heads=2, intermediate_size=12, num_experts=7, num_experts_per_tok=5, seed=7,
        rope_theta=1e4)),
    "flex_olmo_biased": (transformers.FlexOlmoConfig, dict(
        num_key_value_heads=4, intermediate_size=12, num_experts=4, num_experts_per_tok=2, seed=8,
        attention_bias=True, norm_topk_prob=True, rope_theta=1e4)),
    # Sinks in every layer; the second one has no RoPE.
    "granite_moe_swa": (transformers.GraniteMoeSWAConfig, dict(
        num_key_value_heads=2, intermediate_size=12, num_local_experts=8, num_experts_per_tok=3, seed=7,
        num_hidden_layers=3, embedding_multiplier=3.0, residual_multiplier=0.6, logits_scaling=1.7,
        attention_multiplier=0.3, sliding_window=5, layer_rope_theta=[1e4, 0, 1e3],
        layer_types=["full_attention", "sliding_attention", "sliding_attention"],
        rope_parameters=dict(rope_type="default", rope_theta=1e4))),
    "granite_moe_swa_shared": (transformers.GraniteMoeSWAConfig, dict(
        num_key_value_heads=4, intermediate_size=12, num_local_experts=4, num_experts_per_tok=2, seed=9,
        shared_intermediate_size=14, attention_bias=True, attention_multiplier=0.3, sliding_window=5,
        layer_types=["sliding_attention", "full_attention"],
        rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=2.5))),
    "mimo_v2_flash": (transformers.MiMoV2FlashConfig, dict(
        HEADS, seed=9, n_routed_experts=8, v_head_dim=6, sliding_window=5, num_hidden_layers=3,
        num_key_value_heads=1, layer_types=["full_attention", "sliding_attention", "sliding_attention"],
        rope_parameters=dict(
            full_attention=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5),
            sliding_attention=dict(rope_type="default", rope_theta=1e3, partial_rotary_factor=0.5)))),
    "mimo_v2_flash_biased": (transformers.MiMoV2FlashConfig, dict(
        HEADS, seed=7, n_routed_experts=8, v_head_dim=12, sliding_window=4, num_key_value_heads=2,
        n_group=4, topk_group=2, norm_topk_prob=False, routed_scaling_factor=1.7, attention_bias=True,
        attention_value_scale=None, layer_types=["sliding_attention", "full_attention"],
        mlp_layer_types=["sparse", "dense"],
        rope_parameters=dict(
            full_attention=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5),
            sliding_attention=dict(rope_type="default", rope_theta=1e3, partial_rotary_factor=1.0)))),
    # Layers with their own numbers of heads; the middle one has no window.
    "laguna": (transformers.LagunaConfig, dict(
        HEADS, seed=7, num_experts=8, shared_expert_intermediate_size=14, num_hidden_layers=3,
        num_attention_heads_per_layer=[4, 2, 6], sliding_window=5, moe_routed_scaling_factor=1.7,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters=dict(
            full_attention=dict(YARN, rope_theta=1e4, partial_rotary_factor=0.5),
            sliding_attention=dict(rope_type="default", rope_theta=1e3, partial_rotary_factor=1.0)))),
    "laguna_columns": (transformers.LagunaConfig, dict(
        HEADS, seed=7, num_experts=4, shared_expert_intermediate_size=14, gating="per-element",
        tie_word_embeddings=True, mlp_layer_types=["sparse", "dense"],
        rope_parameters=dict(full_attention=dict(rope_type="default", rope_theta=1e4)))),
    # The dense first layer rotates without a window, the last layer neither rotates nor has one.
    "cohere2_moe": (transformers.Cohere2MoeConfig, dict(
        num_key_value_heads=2, head_dim=8, intermediate_size=12, num_experts=8, num_experts_per_tok=3,
        seed=7, num_hidden_layers=3, first_k_dense_replace=1, prefix_dense_intermediate_size=28,
        sliding_window=5, sliding_window_pattern=2, num_shared_experts=2, logit_scale=0.7,
        tie_word_embeddings=True)),
    "cohere2_moe_sigmoid": (transformers.Cohere2MoeConfig, dict(
        num_key_value_heads=4, head_dim=8, intermediate_size=12, num_experts=8, num_experts_per_tok=3,
        seed=7, num_hidden_layers=3, rms_norm_eps=1e-5, expert_selection_fn="sigmoid",
        num_shared_experts=1, shared_expert_combination_strategy="sum", attention_bias=True,
        sliding_window=5, layer_types=["full_attention", "sliding_attention", "full_attention"],
        mlp_layer_types=["sparse", "dense", "sparse"], prefix_dense_sliding_window_pattern=2)),
    "cohere2_moe_plain": (transformers.Cohere2MoeConfig, dict(
        num_key_value_heads=2, head_dim=8, intermediate_size=12, num_experts=4, num_experts_per_tok=2,
        seed=7, expert_selection_fn="sigmoid", norm_topk_prob=False, sliding_window=5,
        sliding_window_pattern=2, logit_scale=1.5)),
    "granite_moe_hybrid": (transformers.GraniteMoeHybridConfig, dict(
        num_key_value_heads=2, intermediate_size=12, num_local_experts=8, num_experts_per_tok=3, seed=7,
        shared_intermediate_size=14, num_hidden_layers=3, embedding_multiplier=3.0, residual_multiplier=0.6,
        logits_scaling=1.7, attention_multiplier=0.3, mamba_n_heads=6, mamba_n_groups=2, mamba_d_state=10,
        layer_types=["linear_attention", "full_attention", "linear_attention"])),
    # Without experts, with RoPE; steps of Mamba-2 are clamped on both sides. Heads have the sizes of chunks.
    "granite_moe_hybrid_dense": (transformers.GraniteMoeHybridConfig, dict(
        num_key_value_heads=4, num_local_experts=0, seed=7, shared_intermediate_size=14, hidden_size=32,
        attention_bias=True, attention_multiplier=0.3, tie_word_embeddings=True, mamba_n_heads=2,
        mamba_n_groups=1, mamba_d_state=8, mamba_d_conv=3, mamba_conv_bias=False,
        mamba_proj_bias=True, time_step_limit=(0.4, 0.9), position_embedding_type="rope",
        layer_types=["linear_attention", "full_attention"],
        rope_parameters=dict(rope_type="default", rope_theta=1e4))),
    # As GGUF can express it: plain steps and biases, no RoPE. Published models have no experts per token.
    "granite_moe_hybrid_mlp": (transformers.GraniteMoeHybridConfig, dict(
        num_key_value_heads=4, num_local_experts=0, num_experts_per_tok=0, seed=7, intermediate_size=14,
        shared_intermediate_size=14, attention_bias=True, attention_multiplier=0.3, tie_word_embeddings=True,
        mamba_n_heads=6, mamba_n_groups=1, mamba_d_state=8, mamba_d_conv=3,
        layer_types=["linear_attention", "full_attention"])),
    "nemotron_h": (transformers.NemotronHConfig, dict(
        NEMOTRON, seed=15, n_group=1, topk_group=1,
        layers_block_type=["linear_attention", "moe", "linear_attention", "full_attention", "moe", "mlp"])),
    # The experts read a latent vector. Feed-forwards follow each other, and come first.
    "nemotron_h_latent": (transformers.NemotronHConfig, dict(
        NEMOTRON, seed=7, n_group=4, topk_group=2, norm_topk_prob=False, moe_latent_size=10,
        mlp_hidden_act="silu", mlp_bias=True, use_bias=True, use_conv_bias=False,
        n_groups=1, conv_kernel=3, time_step_min=0.2,
        layers_block_type=["mlp", "moe", "full_attention", "linear_attention"])),
    # As GGUF can express it: no MLP, no biases of linear layers.
    "nemotron_h_experts": (transformers.NemotronHConfig, dict(
        NEMOTRON, seed=7, n_group=4, topk_group=2, norm_topk_prob=False, moe_latent_size=10, mamba_head_dim=8,
        n_groups=1, conv_kernel=3, layers_block_type=["moe", "full_attention", "linear_attention", "moe"])),
    # The prompt ends with the original context.
    "mistral4": (transformers.Mistral4Config, dict(
        DEEPSEEK, seed=11, q_lora_rank=10, n_group=1, topk_group=1, first_k_dense_replace=0,
        rope_parameters=dict(YARN, rope_theta=1e4, mscale=1.0, mscale_all_dim=1.0,
                             llama_4_scaling_beta=0.1))),
    # The prompt exceeds the original context twice: queries grow there.
    "mistral4_long": (transformers.Mistral4Config, dict(
        DEEPSEEK, seed=152, q_lora_rank=10, n_group=1, topk_group=1, first_k_dense_replace=0,
        rope_parameters=dict(YARN, rope_theta=1e4, original_max_position_embeddings=8,
                             mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.9))),
    "mistral4_groups": (transformers.Mistral4Config, dict(
        DEEPSEEK, seed=7, q_lora_rank=None, norm_topk_prob=False, rope_interleave=False,
        attention_bias=True, rope_parameters=dict(YARN, rope_theta=1e4, llama_4_scaling_beta=0.0))),
}

# Rings of KDA layers and MLA; the first layer is dense.
KIMI = dict(intermediate_size=28, moe_intermediate_size=8, kv_lora_rank=12, qk_rope_head_dim=4, v_head_dim=8,
            qk_nope_head_dim=6, num_key_value_heads=4, num_experts_per_tok=3, num_local_experts=8,
            routed_scaling_factor=1.7, num_hidden_layers=3, rms_norm_eps=0.02)
MINIMAX = dict(num_key_value_heads=2, head_dim=8, intermediate_size=12, num_experts_per_tok=2, num_hidden_layers=3,
               block_size=8, full_attn_alpha_factor=3.5, full_attn_beta_factor=1.1, linear_attn_alpha_factor=3.0,
               linear_attn_beta_factor=0.9, mlp_alpha_factor=2.5, mlp_beta_factor=1.2,
               rope_parameters=dict(rope_type="default", rope_theta=1e4))
# Branches weigh as much as the stream, so that rounding grows from layer to layer: compared in f32 alone.
SENSITIVE = dict(MINIMAX, full_attn_alpha_factor=1.3, full_attn_beta_factor=0.7, linear_attn_alpha_factor=0.8,
                 linear_attn_beta_factor=1.2, mlp_alpha_factor=0.6, mlp_beta_factor=1.4)
LONGCAT = dict(num_hidden_layers=4, ffn_hidden_size=28, expert_ffn_hidden_size=8, q_lora_rank=10, kv_lora_rank=12,
               qk_nope_head_dim=6, qk_rope_head_dim=4, head_dim=4, v_head_dim=8, moe_topk=3, n_routed_experts=6,
               zero_expert_num=4, routed_scaling_factor=1.7)
MODELS |= {
    "kimi_linear": (transformers.KimiLinearConfig, dict(
        KIMI, seed=13, n_group=1, topk_group=1,
        linear_attn_config=dict(head_dim=6, num_heads=3, short_conv_kernel_size=4, full_attn_layers=[2],
                                kda_layers=[1, 3]))),
    # As many heads in all layers, as GGUF has.
    "kimi_linear_heads": (transformers.KimiLinearConfig, dict(
        KIMI, seed=10, n_group=1, topk_group=1,
        linear_attn_config=dict(head_dim=6, num_heads=4, short_conv_kernel_size=4, full_attn_layers=[2],
                                kda_layers=[1, 3]))),
    # The first layer has experts and MLA with queries of low rank.
    "kimi_linear_order": (transformers.KimiLinearConfig, dict(
        KIMI, seed=8, n_group=4, topk_group=2, q_lora_rank=10, attention_bias=True, norm_topk_prob=False,
        n_shared_experts=2, linear_head_dim=16, linear_num_heads=2, linear_conv_kernel_dim=3,
        layer_types=["full_attention", "linear_attention", "linear_attention"],
        mlp_layer_types=["sparse", "dense", "sparse"])),
    "bailing_hybrid": (transformers.BailingHybridConfig, dict(
        KIMI, seed=7, n_group=4, topk_group=2, first_k_dense_replace=1, head_dim=4, layer_group_size=2,
        num_mtp_layers=0, rope_parameters=dict(rope_type="default", rope_theta=1e4))),
    "bailing_hybrid_plain": (transformers.BailingHybridConfig, dict(
        KIMI, seed=21, n_group=1, topk_group=1, q_lora_rank=10, qk_rope_head_dim=16, head_dim=16, kda_safe_gate=False,
        attention_bias=True, norm_topk_prob=False, short_conv_kernel_size=3, num_mtp_layers=0,
        layer_types=["full_attention", "linear_attention", "linear_attention"],
        mlp_layer_types=["sparse", "dense", "sparse"],
        rope_parameters=dict(YARN, rope_theta=1e4, mscale=1.0, mscale_all_dim=1.0))),
    "minimax": (transformers.MiniMaxConfig, dict(
        MINIMAX, seed=13, num_local_experts=4,
        layer_types=["linear_attention", "full_attention", "linear_attention"])),
    # The published factors: one alpha, and no beta.
    "minimax_even": (transformers.MiniMaxConfig, dict(
        MINIMAX, seed=13, num_local_experts=4, layer_types=["linear_attention", "full_attention", "linear_attention"],
        **{f"{part}_alpha_factor": 3.0 for part in ("full_attn", "linear_attn", "mlp")},
        **{f"{part}_beta_factor": 1.0 for part in ("full_attn", "linear_attn", "mlp")})),
    "minimax_window": (transformers.MiniMaxConfig, dict(
        SENSITIVE, seed=10, num_local_experts=8, num_experts_per_tok=3, sliding_window=5, head_dim=6,
        num_key_value_heads=4)),
    # As in the publisher's code, the first columns of each head rotate.
    "minimax_rotary_dim": (transformers.MiniMaxConfig, dict(
        SENSITIVE, seed=7, num_local_experts=4, rotary_dim=4,
        layer_types=["full_attention", "linear_attention", "full_attention"])),
    "longcat_flash": (transformers.LongcatFlashConfig, dict(
        LONGCAT, seed=14, rope_parameters=dict(rope_type="default", rope_theta=1e4))),
    "longcat_flash_biased": (transformers.LongcatFlashConfig, dict(
        LONGCAT, seed=8, num_hidden_layers=2, zero_expert_num=0, attention_bias=True, tie_word_embeddings=True,
        rope_parameters=dict(YARN, rope_theta=1e4, mscale=1.0, mscale_all_dim=1.0))),
}

# AutoModelForCausalLM does not know these.
CLASSES = {transformers.Mistral4Config: transformers.Mistral4ForCausalLM,
           transformers.Glm5NextConfig: transformers.Glm5NextForConditionalGeneration,
           transformers.MiniMaxM3VLTextConfig: transformers.models.minimax_m3_vl.MiniMaxM3VLForCausalLM}

# Models whose config wraps that of the language model; their files also hold a vision part.
WRAPPED = {
    "qwen3_5_moe": (transformers.Qwen3_5MoeForConditionalGeneration, transformers.Qwen3_5MoeConfig,
                    MODELS["qwen3_5_moe"][1],
                    dict(depth=1, hidden_size=8, intermediate_size=8, num_heads=2, patch_size=2,
                         temporal_patch_size=1, spatial_merge_size=1, out_hidden_size=24,
                         num_position_embeddings=4)),
    "llama4": (transformers.Llama4ForConditionalGeneration, transformers.Llama4Config,
               MODELS["llama4"][1],
               dict(hidden_size=8, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
                    image_size=4, patch_size=2, vision_output_dim=8, projector_input_dim=8,
                    projector_output_dim=8)),
    "mistral4": (transformers.Mistral3ForConditionalGeneration, transformers.Mistral3Config,
                 dict(MODELS["mistral4"][1], model_type="mistral4"),
                 dict(model_type="pixtral", hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                      num_attention_heads=2, head_dim=4, image_size=4, patch_size=2)),
    # Layers with a window have more heads; the last layer clamps. Norms multiply by 1 + weight.
    "step3p7": (transformers.Step3p7ForConditionalGeneration, transformers.Step3p7Config,
                dict(HEADS, seed=7, pad_token_id=0, n_routed_experts=8, share_expert_dim=14,
                     moe_router_scaling_factor=1.7, num_hidden_layers=4, num_sliding_attention_heads=6,
                     sliding_window=5, mlp_layer_types=["dense", "sparse", "sparse", "sparse"],
                     swiglu_limits=[0.0, 0.0, 0.0, 0.4], swiglu_limits_shared=[0.0, 0.5, 0.0, 0.6],
                     layer_types=["full_attention", "sliding_attention", "sliding_attention",
                                  "full_attention"],
                     rope_parameters=dict(
                         full_attention=dict(YARN, rope_theta=1e4, partial_rotary_factor=0.5),
                         sliding_attention=dict(rope_type="default", rope_theta=1e3))),
                dict(hidden_size=8, mlp_ratio=1.0, num_hidden_layers=1, num_attention_heads=2,
                     image_size=4, patch_size=2)),
    "step3p7_fp8": (transformers.Step3p7ForConditionalGeneration, transformers.Step3p7Config,
                    dict(HEADS, seed=7, pad_token_id=0, hidden_size=32, moe_intermediate_size=16,
                         n_routed_experts=8, share_expert_dim=14,
                         num_sliding_attention_heads=6, sliding_window=5,
                         mlp_layer_types=["dense", "sparse"],
                         layer_types=["full_attention", "sliding_attention"]),
                    dict(hidden_size=8, mlp_ratio=1.0, num_hidden_layers=1, num_attention_heads=2,
                         image_size=4, patch_size=2)),
    "glm5_next": (transformers.Glm5NextForConditionalGeneration, transformers.Glm5NextConfig,
                  MODELS["glm5_next_pools"][1], GLM5_NEXT_VISION),
    # One selection for all heads.
    "minimax_m3": (transformers.MiniMaxM3SparseForConditionalGeneration, transformers.MiniMaxM3VLConfig,
                   dict(MINIMAX_M3, index_n_heads=1),
                   dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
                        image_size=4, patch_size=2)),
    "gemma4": (transformers.Gemma4ForConditionalGeneration, transformers.Gemma4Config,
               dict(MODELS["gemma4"][1], pad_token_id=0),
               dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
                    num_key_value_heads=2, head_dim=4, patch_size=2, position_embedding_size=4,
                    pooling_kernel_size=1)),
    "qwen3_vl_moe": (transformers.Qwen3VLMoeForConditionalGeneration, transformers.Qwen3VLMoeConfig,
                     dict(QWEN, head_dim=8, num_hidden_layers=3, mlp_only_layers=[1],
                          rope_parameters=dict(rope_type="default", rope_theta=1e4,
                                               mrope_section=[2, 1, 1])),
                     dict(depth=1, hidden_size=8, intermediate_size=8, num_heads=2, patch_size=2,
                          temporal_patch_size=1, spatial_merge_size=1, out_hidden_size=24,
                          num_position_embeddings=4, deepstack_visual_indexes=[0])),
}


def draw(name: str, shape: torch.Size, random: torch.Generator, centre: float) -> torch.Tensor:
    if name.endswith("tid2eid"):  # of each token id, different experts
        return torch.rand(shape[0], DEEPSEEK_V4["n_routed_experts"], generator=random).argsort(-1)[:, :shape[1]]
    noise = torch.randn(shape, generator=random)
    if name.endswith(("layernorm.bias", "model.norm.bias")):
        return 0.3 * noise
    if "norm" in name:
        return (1 if "linear_attn" in name else centre) + 0.3 * noise
    if name.endswith(("per_expert_scale", "router.scale", "layer_scalar")):
        return 1 + 0.3 * noise
    if name.endswith(("correction_bias", "expert_bias")):
        return 0.2 * noise
    if name.endswith(("bias", "sinks")):
        return 0.5 * noise
    if "embed_tokens" in name:
        return noise
    if name.endswith("A_log"):
        return noise * (2.0 / noise.numel() ** 0.5)
    return noise * (2.0 / shape[-1] ** 0.5)


def store_experts_as_fp8(folder: pathlib.Path, floats: pathlib.Path) -> None:
    """Replaces the experts by E4M3 codes and scales of blocks of 4 x 16, stacked by expert. `floats` gets the values
    that transformers dequantizes them to: it loads down_proj of such a file without its scales."""
    shutil.copytree(folder, floats)
    file, config_file = folder / "model.safetensors", folder / "config.json"
    tensors = safetensors.torch.load_file(file)
    dequantized = dict(tensors)
    for name, tensor in list(tensors.items()):
        if ".moe." not in name or tensor.ndim != 3:
            continue
        experts, rows, columns = tensor.shape
        blocks = tensor.float().reshape(experts, rows // 4, 4, columns // 16, 16)
        scales = blocks.abs().amax(dim=(2, 4)) / 448
        codes = (blocks / scales[:, :, None, :, None]).to(torch.float8_e4m3fn)
        tensors[name] = codes.reshape(tensor.shape)
        tensors[name + "_scale_inv"] = scales
        dequantized[name] = Fp8Dequantize(None)._dequantize_one(tensors[name], scales, torch.float32)
    safetensors.torch.save_file(dequantized, floats / file.name, {"format": "pt"})
    safetensors.torch.save_file(tensors, file, {"format": "pt"})
    config = json.loads(config_file.read_text())
    config["quantization_config"] = dict(quant_method="fp8", activation_scheme="dynamic",
                                         weight_block_size=[4, 16], dequantize=True)
    config_file.write_text(json.dumps(config))


def rewrite(folder: pathlib.Path, is_stored, drops=()) -> None:
    """Keeps the tensors whose names `is_stored` accepts, and config.json without the keys `drops`."""
    file, config_file = folder / "model.safetensors", folder / "config.json"
    tensors = safetensors.torch.load_file(file)
    safetensors.torch.save_file({name: tensor for name, tensor in tensors.items() if is_stored(name)}, file,
                                {"format": "pt"})
    config = json.loads(config_file.read_text())
    config_file.write_text(json.dumps({key: value for key, value in config.items() if key not in drops}))


def drop_zero_experts(folder: pathlib.Path, source: pathlib.Path) -> None:
    """Published files have no tensors of zero experts; transformers cannot read a file without them."""
    shutil.copytree(folder, source)
    experts = json.loads((folder / "config.json").read_text())["n_routed_experts"]
    rewrite(folder, lambda name: not any(f"mlp.experts.{e}." in name for e in range(experts, experts + 16)))


def drop_decay_tables(folder: pathlib.Path, source: pathlib.Path) -> None:
    """transformers computes them anew, not rounded to bf16."""
    rewrite(folder, lambda name: not name.endswith(("slope_rate", "_decay")))
    shutil.copytree(folder, source)


def drop_derived_sizes(folder: pathlib.Path, source: pathlib.Path) -> None:
    """Published files do not have these keys, which transformers computes from others."""
    rewrite(folder, lambda name: True, ("linear_head_dim", "linear_num_heads", "linear_conv_kernel_dim", "qk_head_dim"))
    shutil.copytree(folder, source)


def keep_language_model(folder: pathlib.Path, source: pathlib.Path) -> None:
    """Files of the language model alone have its keys at the outermost level."""
    shutil.copytree(folder, source)
    rewrite(folder, lambda name: ".visual." not in name)
    config_file = folder / "config.json"
    config = json.loads(config_file.read_text())
    text = {key: value for key, value in config["text_config"].items() if key != "model_type"}
    own = {key: value for key, value in config.items() if not key.endswith("_config") and "_token_id" not in key}
    config_file.write_text(json.dumps({**own, **text}))


def drop_hashes(folder: pathlib.Path, source: pathlib.Path) -> None:
    """They follow from config.json."""
    rewrite(folder, lambda name: not name.endswith(("layer_multipliers", "ngram_heads_offsets", "ngram_heads_vocab_sizes")))
    shutil.copytree(folder, source)


# What changes the files of a model. transformers reads the other folder.
CHANGES = {"step3p7_fp8": store_experts_as_fp8, "longcat_flash": drop_zero_experts,
           "minimax": drop_decay_tables, "minimax_even": drop_decay_tables, "minimax_window": drop_decay_tables,
           "minimax_rotary_dim": drop_decay_tables,
           "qwen4_exp": drop_hashes, "qwen4_exp_bigrams": drop_hashes,
           "glm5_next_pools": keep_language_model, "glm5_next_shared": keep_language_model,
           "bailing_hybrid": drop_derived_sizes, "bailing_hybrid_plain": drop_derived_sizes}


@contextlib.contextmanager
def far_from_ties(least: float):
    """Asserts that indexers of positions or blocks, and the groups of routers, choose by at least so much: all take the top-k of
    tensors with at least three dimensions, or, by token, with one."""
    topk = torch.Tensor.topk

    def checked(self, k, *args, **kwargs):
        if (self.ndim >= 3 or self.ndim == 1) and self.shape[-1] > k:
            scores = self.sort(dim=-1, descending=True).values
            gaps = (scores[..., k - 1] - scores[..., k])[scores[..., k] > -1e30]
            assert gaps.numel() == 0 or gaps.min() > least, gaps.min()
        return topk(self, k, *args, **kwargs)

    torch.Tensor.topk = checked
    try:
        yield
    finally:
        torch.Tensor.topk = topk


def rotate_first_columns(model, columns: int) -> None:
    """transformers' MiniMax rotates whole heads, whatever rotary_dim says."""
    module = sys.modules[type(model).__module__]
    rotate = module.apply_rotary_pos_emb
    base = model.config.rope_parameters["rope_theta"]
    model.model.rotary_emb.inv_freq = base ** (-torch.arange(0, columns, 2).float() / columns)

    def rotate_part(q, k, cos, sin):
        parts = rotate(q[..., :columns], k[..., :columns], cos, sin)
        return tuple(torch.cat([part, whole[..., columns:]], -1) for part, whole in zip(parts, (q, k)))

    module.apply_rotary_pos_emb = rotate_part


def configure(config_class, settings: dict, vision: dict | None):
    settings = {**COMMON, **settings}
    if vision is None:
        return config_class(**settings)
    wide = {"projector_hidden_size": 8} if config_class is transformers.MiniMaxM3VLConfig else {}
    return config_class(text_config=settings, vision_config=vision, **wide,
                        tie_word_embeddings=settings["tie_word_embeddings"])


def write(folder: pathlib.Path, config_class, settings: dict, model_class=AutoModelForCausalLM,
          vision: dict | None = None) -> None:
    settings = dict(settings)
    random = torch.Generator().manual_seed(settings.pop("seed", 7))
    config = configure(config_class, settings, vision)
    config._attn_implementation = "eager"
    make = model_class.from_config if model_class is AutoModelForCausalLM else model_class._from_config
    model = make(config, dtype=torch.float32)
    state = model.state_dict()
    # These norms multiply by 1 + weight.
    centre = 0 if config.model_type in ("qwen3_next", "qwen3_5_moe_text", "qwen3_5_moe", "step3p7", "minimax_m3_vl",
                                    "minimax_m3_vl_text", "qwen4_exp_text") else 1
    for name, tensor in state.items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if not tensor.is_floating_point() and not name.endswith("tid2eid"):
            continue  # the hashes of n-grams
        tensor.copy_(draw(name, tensor.shape, random, centre))
    model.tie_weights()
    folder.mkdir(parents=True)
    model.bfloat16().save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    source = folder
    with contextlib.ExitStack() as stack:
        if folder.name in CHANGES:
            source = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory())) / folder.name
            CHANGES[folder.name](folder, source)
        read = model_class.from_pretrained(source, dtype=torch.float32, attn_implementation="eager",
                                           experts_implementation="eager").eval()
    if config.model_type == "phimoe" and config.rope_parameters["rope_type"] == "longrope":
        # transformers 5.23 forgets to tell this function the length, so it never gives the long
        # factors, only long_mscale. transformers 4.56 and the code that Phi-3.5-MoE came with do.
        rope = read.model.rotary_emb
        rope.rope_init_fn = functools.partial(rope.rope_init_fn, seq_len=TOKENS)
    if config.model_type == "minimax" and hasattr(config, "rotary_dim"):
        rotate_first_columns(read, config.rotary_dim)
    ids = torch.randint(0, VOCABULARY, (1, TOKENS), generator=random)
    with torch.no_grad(), far_from_ties(0.01):
        logits = read(ids).logits[0].float().contiguous()
    spread = logits.std().item()
    assert torch.isfinite(logits).all() and spread > 0.1, (folder, spread)
    safetensors.torch.save_file({"ids": ids[0].to(torch.int32), "logits": logits},
                                folder / "reference.safetensors")
    config_file = folder / "config.json"
    text = json.loads(config_file.read_text())
    config_file.write_text(json.dumps(text, indent=1, sort_keys=True) + "\n")
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{folder.name}: {size} bytes, logits' deviation {spread:.2f}")


def main() -> None:
    root = pathlib.Path(__file__).resolve().parent.parent / "tests/golden"
    output = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else root
    for folder in ("architectures", "compressed", "multimodal", "sensitive"):
        shutil.rmtree(output / folder, ignore_errors=True)
    transformers.utils.logging.disable_progress_bar()
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    for name, (config_class, settings) in MODELS.items():
        sensitive = name in ("minimax_window", "minimax_rotary_dim")
        compressed = name.startswith(("deepseek_v4", "glm5_next", "qwen4_exp"))
        kind = "sensitive" if sensitive else "compressed" if compressed else "architectures"
        write(output / kind / name, config_class, settings, CLASSES.get(config_class, AutoModelForCausalLM),
              GLM5_NEXT_VISION if config_class is transformers.Glm5NextConfig else None)
    for name, (model_class, config_class, settings, vision) in WRAPPED.items():
        write(output / "multimodal" / name, config_class, settings, model_class, vision)


if __name__ == "__main__":
    main()
