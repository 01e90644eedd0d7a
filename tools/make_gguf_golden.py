#!/usr/bin/env python3
"""Writes tests/golden/gguf/models/*: tiny models of random numbers as llama.cpp's converter writes them, and what transformers
computes with them in float32 on a CPU.

    pip install torch transformers tqdm pyyaml requests
    python3 tools/make_gguf_golden.py <a copy of llama.cpp> [output]

The models are those of make_architecture_golden.py, with the settings that GGUF can express: a file holds less than
config.json, and llama.cpp fixes the rest by architecture. Matrices are bf16 as in the safetensors files, so conversion
loses nothing. The tokenizer is a stub: tiny models have none. <name>.safetensors: "ids" and "logits" of one prompt.
"""

import json
import pathlib
import shutil
import sys
import tempfile

import safetensors.torch
import torch
import transformers

import make_architecture_golden as tiny

VOCABULARY = tiny.VOCABULARY


def without(settings: dict, *keys: str) -> dict:
    return {key: value for key, value in settings.items() if key not in keys}


def base(name: str, *lacking: str, **changes) -> tuple:
    config_class, settings = tiny.MODELS[name]
    return config_class, {**without(settings, *lacking), **changes}


DEFAULT_ROPE = dict(rope_type="default", rope_theta=1e4)
YARN_MSCALE = dict(tiny.YARN, rope_theta=1e4, mscale=0.7, mscale_all_dim=0.7)

# By file: the model, and keys of config.json that published files have and transformers does not write.
MODELS = {
    "qwen2moe": (base("qwen2_moe", "mlp_only_layers"), {}),
    "qwen3moe": (base("qwen3_moe", "mlp_only_layers", hidden_act="silu"), {}),
    "qwen3moe-yarn": (base("qwen3_moe", "mlp_only_layers", "rope_theta", hidden_act="silu", tie_word_embeddings=False,
                           rope_parameters=dict(tiny.YARN, rope_theta=1e4)), {}),
    "qwen3next": (base("qwen3_next", "mlp_only_layers", "attention_bias", seed=19), {}),
    "qwen35moe": (base("qwen3_5_moe", linear_num_value_heads=4,
                       rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5,
                                            mrope_section=[1, 1, 0], mrope_interleaved=True)), {}),
    "llama": (base("mixtral", "sliding_window"), {}),
    "llama-rope-factors": (base("mixtral", "sliding_window", "rope_theta", rope_parameters=dict(
        rope_type="llama3", rope_theta=1e4, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=24)), {}),
    "llama4": (base("llama4", "no_rope_layers", attention_chunk_size=8192, floor_scale=8192, attn_scale=0.1), {}),
    "llama4-maverick": (base("llama4_plain", "no_rope_layer_interval", "attention_bias", use_qk_norm=False, hidden_size=16,
                             num_local_experts=128, intermediate_size=4, attention_chunk_size=8192, floor_scale=8192,
                             interleave_moe_layer_step=2, attn_scale=0.1, attn_temperature_tuning=True), {}),
    "deepseek2-v3": (base("deepseek_v3", rope_parameters=YARN_MSCALE),
                     dict(scoring_func="sigmoid", topk_method="noaux_tc")),
    "deepseek2-v2": (base("deepseek_v2"), dict(scoring_func="softmax")),
    "deepseek2-v2-lite": (base("deepseek_v2_lite"), dict(scoring_func="softmax", n_group=1, topk_group=1)),
    "deepseek2-merged": (base("deepseek_v3", "q_lora_rank", "n_group", "topk_group", q_lora_rank=None, n_group=1,
                              topk_group=1, rope_parameters=DEFAULT_ROPE),
                         dict(scoring_func="sigmoid", topk_method="noaux_tc")),
    "deepseek2-glm": (base("glm4_moe_lite"), dict(first_k_dense_replace=1)),
    "deepseek32": (base("deepseek_v32"), dict(scoring_func="sigmoid", topk_method="noaux_tc")),
    "glm-dsa": (base("glm_moe_dsa"), dict(scoring_func="sigmoid", topk_method="noaux_tc")),
    "glm4moe": (base("glm4_moe"), {}),
    "glm4moe-plain": (base("glm4_moe_air"), {}),
    "glm4moe-solar": (base("solar_open", rope_parameters=dict(tiny.YARN, rope_theta=1e4, partial_rotary_factor=1.0)), {}),
    "gpt-oss": (base("gpt_oss", swiglu_limit=7.0, swiglu_alpha=1.702), {}),
    "olmoe": (base("olmoe"), {}),
    "minimax-m2": (base("minimax_m2"), dict(rotary_dim=4, scoring_func="sigmoid")),
    "granitemoe": (base("granite_moe"), {}),
    "granitemoe-shared": (base("granite_moe_shared"), {}),
    "ernie4_5-moe": (base("ernie4_5_moe"), {}),
    "hunyuan-moe": (base("hunyuan_v1_moe", moe_topk=[3, 3], rope_parameters=DEFAULT_ROPE),
                    dict(moe_intermediate_size=[12, 12], num_shared_expert=[1, 1])),
    "dots1": (base("dots1", "sliding_window", sliding_window=None), dict(scoring_func="sigmoid")),
    "lfm2moe": (base("lfm2_moe", tie_word_embeddings=True, routed_scaling_factor=1.0), {}),
    "phimoe": (base("phimoe", "sliding_window", "rope_parameters", router_jitter_noise=0.01, rope_parameters=dict(
        rope_type="longrope", rope_theta=1e4, short_factor=[1.0, 1.3, 2.0], long_factor=[1.5, 3.0, 6.0],
        short_mscale=1.320921778678894, long_mscale=1.320921778678894, original_max_position_embeddings=24)), {}),
    "gemma4": (base("gemma4"), {}),
    "gemma4-plain": (base("gemma4_plain", "attention_bias", num_global_key_value_heads=2), {}),
    "exaone-moe": (base("exaone_moe"), dict(scoring_func="sigmoid")),
    "hy_v3": (base("hy_v3"), {}),
    "mellum": (base("mellum"), {}),
    "laguna": (base("laguna", layer_types=["full_attention", "sliding_attention", "sliding_attention"],
                    num_attention_heads_per_layer=[4, 6, 2]), {}),
    "cohere2moe": (base("cohere2_moe", layer_types=["full_attention", "sliding_attention", "full_attention"]), {}),
    "mimo2": (base("mimo_v2_flash"),
              dict(sliding_window=4, sliding_window_size=4, hybrid_layer_pattern=[0, 1, 1], moe_layer_freq=[0, 1, 1],
                   swa_num_attention_heads=4, swa_num_key_value_heads=2, swa_head_dim=8, swa_v_head_dim=6,
                   topk_method="noaux_tc", scoring_func="sigmoid", layernorm_epsilon=1e-5, swa_rope_theta=1e3,
                   num_nextn_predict_layers=0, rope_parameters=dict(rope_theta=1e4, partial_rotary_factor=0.5))),
    "afmoe": (base("afmoe", num_hidden_layers=4, global_attn_every_n_layers=4),
              dict(score_func="sigmoid", route_norm=True)),
    "granitehybrid": (base("granite_moe_hybrid"), dict(layer_types=["mamba", "attention", "mamba"])),
    "granitehybrid-dense": (base("granite_moe_hybrid_mlp"), dict(layer_types=["mamba", "attention"])),
    "granite_swa": (base("granite_moe_swa", layer_rope_theta=[1e4, 0, 1e4]), dict(no_rope_layers=[1, 0, 1])),
    "granite_swa-shared": (base("granite_moe_swa_shared"), {}),
    "nemotron_h_moe": (base("nemotron_h", mamba_head_dim=8, seed=30, layers_block_type=[
        "linear_attention", "moe", "linear_attention", "full_attention", "moe"]), dict(mamba_d_head=8)),
    "nemotron_h_moe-latent": (base("nemotron_h_experts"), dict(mamba_d_head=8)),
    "kimi-linear": (base("kimi_linear_heads"), dict(first_k_dense_replace=1, moe_router_activation_func="sigmoid")),
    "bailingmoe3": (base("bailing_hybrid", num_hidden_layers=4), dict(
        no_kda_lora=True, gated_attention_proj_granularity_type="head_wise", n_group=4, norm_topk_prob=True,
        moe_shared_expert_intermediate_size=8, score_function="sigmoid")),
    "minimax-01": (base("minimax_even", num_hidden_layers=8, rotary_dim=4,
                        layer_types=["linear_attention"] * 7 + ["full_attention"],
                        **{f"{part}_alpha_factor": 6.0 for part in ("full_attn", "linear_attn", "mlp")}),
                   {f"layernorm_{part}_{factor}": value for part in ("full_attention", "linear_attention", "mlp")
                    for factor, value in (("alpha", 6.0), ("beta", 1.0))}),
}
# Multimodal models by file, changed settings, and keys of the text's configuration.
WRAPPED = {
    "qwen3vlmoe": ("qwen3_vl_moe", {}, {}),
    "mistral4": ("mistral4", dict(seed=84), {}),
    "step35": ("step3p7", {}, dict(
        num_attention_groups=2, attention_other_setting=dict(num_attention_heads=6, num_attention_groups=2),
        moe_num_experts=8, moe_top_k=3, moe_layers_enum="1,2,3", partial_rotary_factors=[0.5, 1.0, 1.0, 0.5],
        norm_expert_weight=True)),
}

# Block types by layer of two Qwen3-MoE models: of gate and up, down, q and k, v, o. Their files hold random blocks.
# transformers computes with the values of these blocks.
MIXED = {
    "qwen3moe-blocks": (64, 64, [("Q4_0", "Q8_0", "Q4_0", "Q5_0", "Q5_0"), ("Q5_0", "IQ4_NL", "IQ4_NL", "Q8_0", "Q8_0")]),
    "qwen3moe-fp4": (64, 64, [("MXFP4", "MXFP4", "Q8_0", "Q8_0", "Q8_0"), ("NVFP4", "NVFP4", "Q8_0", "Q8_0", "Q8_0")]),
    "qwen3moe-fp4-factors": (64, 64, [("NVFP4", "NVFP4", "NVFP4", "NVFP4", "Q8_0")]),
    "qwen3moe-super-blocks": (256, 256, [
        ("Q3_K", "Q6_K", "IQ3_S", "Q6_K", "Q8_0"), ("IQ4_XS", "IQ3_XXS", "IQ3_S", "IQ4_XS", "IQ4_NL"),
        ("IQ2_XS", "IQ2_S", "IQ2_XXS", "IQ2_S", "Q5_0"), ("IQ2_XXS", "IQ1_M", "IQ1_S", "IQ1_M", "Q8_0")]),
    "qwen3moe-minimums": (256, 256, [
        ("Q4_K", "Q6_K", "Q4_K", "Q6_K", "Q4_1"), ("Q5_K", "Q2_K", "Q3_K", "Q5_K", "Q5_1")]),
}


tiny.CHANGES["minimax-01"] = tiny.drop_decay_tables


def stub_vocabulary(model) -> None:
    writer = model.gguf_writer
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([chr(ord("!") + i) for i in range(VOCABULARY)])
    writer.add_token_types([3 if i < 2 else 1 for i in range(VOCABULARY)])
    writer.add_token_merges(["# $"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)


# Models for multi-token prediction: layers beyond num_hidden_layers.
def add_mtp_layer(folder: pathlib.Path, layers: int) -> None:
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    random = torch.Generator().manual_seed(1)
    last = f"model.layers.{layers - 1}."
    hidden = tensors["model.norm.weight"].shape[0]
    for name in [name for name in tensors if name.startswith(last)]:
        tensors[name.replace(last, f"model.layers.{layers}.")] = tensors[name].clone()
    shapes = {"eh_proj": (hidden, 2 * hidden), "enorm": (hidden,), "hnorm": (hidden,), "shared_head.norm": (hidden,)}
    for name, shape in shapes.items():
        tensors[f"model.layers.{layers}.{name}.weight"] = torch.randn(shape, generator=random).bfloat16()
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def transpose_experts(folder: pathlib.Path) -> None:
    """As Qwen3-VL-MoE is published; transformers 5 saves it the other way."""
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    for name in tensors:
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            tensors[name] = tensors[name].transpose(1, 2).contiguous()
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def name_dense_layers(folder: pathlib.Path) -> None:
    """As Kimi-Linear is published; transformers saves dense MLPs under the name of the experts."""
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    for part in ("gate_proj", "up_proj", "down_proj"):
        for name in [name for name in tensors if f"block_sparse_moe.{part}" in name]:
            tensors[name.replace("block_sparse_moe", "mlp")] = tensors.pop(name)
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})


class MergedLatent:
    """Files from before April 2025 hold attn_kv_b, and no keys of MLA."""

    def set_gguf_parameters(self):
        super().set_gguf_parameters()
        values = self.gguf_writer.kv_data[-1]
        for key in ("key_length_mla", "value_length_mla"):
            del values[f"deepseek2.attention.{key}"]
        self.gguf_writer.add_head_count_kv(self.hparams["num_attention_heads"])
        self.gguf_writer.add_key_length(self.hparams["qk_nope_head_dim"] + self.hparams["qk_rope_head_dim"])
        self.gguf_writer.add_value_length(self.hparams["v_head_dim"])

    def modify_tensors(self, data, name, bid):
        if name.endswith("kv_b_proj.weight"):
            return [(self.map_tensor_name(name), data)]
        return super().modify_tensors(data, name, bid)


def convert(name: str, folder: pathlib.Path, output: pathlib.Path) -> None:
    import conversion
    import gguf
    hparams = conversion.ModelBase.load_hparams(folder, False)
    if name.startswith(("step35", "bailingmoe3", "granitehybrid")):  # transformers drops the published keys, which the converter needs
        hparams = json.loads((folder / "config.json").read_text())
    architecture = conversion.get_model_architecture(hparams, conversion.ModelType.TEXT)
    # transformers' name of the class differs from the published one.
    architecture = {"PhimoeForCausalLM": "PhiMoEForCausalLM", "BailingHybridForCausalLM": "BailingMoeV3ForCausalLM",
                    "MiniMaxForCausalLM": "MiniMaxText01ForCausalLM"}.get(architecture, architecture)
    parent = conversion.get_model_class(architecture)
    if name == "mistral4":
        parent = parent.Mistral4Model
    parents = (MergedLatent, parent) if name == "deepseek2-merged" else (parent,)
    members = {"set_vocab": stub_vocabulary, "model_arch": parent.model_arch, "_get_suppress_tokens": lambda model: None}
    if name.startswith(("qwen3", "mimo2", "step35", "hy_v3")):
        members["no_mtp"] = True
    model_class = type(parent.__name__, parents, members)
    with torch.inference_mode():
        model_class(folder, gguf.LlamaFileType.MOSTLY_BF16, output, eager=True, model_name=name, hparams=hparams,
                    fuse_gate_up_exps=name == "qwen3next").write()


def write(name: str, model: tuple, keys: dict, output: pathlib.Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch) / name
        if name in WRAPPED:
            source, changes, text_keys = WRAPPED[name]
            model_class, config_class, settings, vision = tiny.WRAPPED[source]
            settings = {**without(settings, "mlp_only_layers"), **changes}
            tiny.write(folder, config_class, settings, model_class, vision)
            if name == "qwen3vlmoe":
                transpose_experts(folder)
        else:
            tiny.write(folder, *model)
        config = json.loads((folder / "config.json").read_text())
        config.update(keys)
        if name in WRAPPED:
            config["text_config"].update(text_keys)
        (folder / "config.json").write_text(json.dumps(config))
        if name == "glm4moe":
            add_mtp_layer(folder, config["num_hidden_layers"])
        if name.startswith("gemma4"):  # the converter counts its tokens
            (folder / "tokenizer.json").write_text(json.dumps(
                {"model": {"vocab": dict.fromkeys(map(str, range(VOCABULARY)))}, "added_tokens": []}))
        if name == "kimi-linear":
            name_dense_layers(folder)
        convert(name, folder, output / f"{name}.gguf")
        shutil.copy(folder / "reference.safetensors", output / f"{name}.safetensors")


# Offsets of a block's f16 scale and of its f16 minimum.
HALVES = {"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
          "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ2_XXS": (0,), "IQ2_XS": (0,), "IQ3_XXS": (0,), "IQ1_S": (0,),
          "IQ4_NL": (0,), "IQ3_S": (0,), "IQ2_S": (0,), "IQ4_XS": (0,)}
# The mean of codes, which the minimum subtracts; of Q4_1 and Q5_1 it is added.
CENTRES = {"Q2_K": 1.5, "Q4_K": 7.5, "Q5_K": 15.5, "Q4_1": -7.5, "Q5_1": -15.5}


def random_blocks(name: str, shape: tuple, deviation: float, random) -> "numpy.ndarray":
    """Blocks whose values have this standard deviation."""
    import gguf
    import numpy
    kind = gguf.GGMLQuantizationType[name]
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    count = shape[-1] // elements
    blocks = random.integers(0, 256, (*shape[:-1], count, size), dtype=numpy.uint8)

    def set_scale(scale: float) -> None:
        if name == "MXFP4":  # exponents of 2
            blocks[..., 0] = numpy.clip(127 + numpy.round(numpy.log2(scale)), 1, 254)
        elif name == "NVFP4":  # e4m3 of each 16: about the same exponents
            blocks[..., :4] = 8 * numpy.clip(7 + int(numpy.round(numpy.log2(scale))), 1, 14)
        elif name == "IQ1_M":  # spread over the high nibbles of the last four words
            bits = int(numpy.float16(scale).view(numpy.uint16))
            for i in range(4):
                blocks[..., 49 + 2 * i] = (blocks[..., 49 + 2 * i] & 15) | ((bits >> (4 * i)) & 15) << 4
        else:
            for at, factor in zip(HALVES[name], (1.0, CENTRES.get(name))):
                blocks[..., at:at + 2] = numpy.array([scale * factor], "<f2").view(numpy.uint8)

    set_scale(1.0)
    flat = lambda: blocks.reshape(*shape[:-1], count * size)
    set_scale(deviation / gguf.quants.dequantize(flat(), kind).std())
    return flat()


def write_mixed(name: str, output: pathlib.Path) -> None:
    import gguf
    import numpy
    hidden, intermediate, layers = MIXED[name]
    config_class, settings = base("qwen3_moe", "mlp_only_layers", hidden_act="silu", tie_word_embeddings=False,
                                  hidden_size=hidden, moe_intermediate_size=intermediate, num_experts=2,
                                  num_hidden_layers=len(layers), head_dim=32, num_attention_heads=2,
                                  num_key_value_heads=1)
    random = numpy.random.default_rng(11)
    with tempfile.TemporaryDirectory() as scratch:
        folder, plain = pathlib.Path(scratch) / name, pathlib.Path(scratch) / "plain.gguf"
        tiny.write(folder, config_class, settings)
        convert(name, folder, plain)
        tensors = safetensors.torch.load_file(folder / "model.safetensors")
        values = {key: tensor.float() for key, tensor in tensors.items()}
        reader = gguf.GGUFReader(plain)
        writer = gguf.GGUFWriter(output / f"{name}.gguf", "qwen3moe")
        for field in reader.fields.values():
            if not field.name.startswith("GGUF.") and field.name != "general.architecture":
                kind = field.types[0]
                writer.add_key_value(field.name, field.contents(), kind,
                                     field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
        parts = {"ffn_gate_exps": 0, "ffn_up_exps": 0, "ffn_down_exps": 1, "attn_q": 2, "attn_k": 2, "attn_v": 3,
                 "attn_output": 4}
        published = {"ffn_gate_exps": "mlp.experts.{}.gate_proj", "ffn_up_exps": "mlp.experts.{}.up_proj",
                     "ffn_down_exps": "mlp.experts.{}.down_proj", "attn_q": "self_attn.q_proj",
                     "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj"}
        for tensor in reader.tensors:
            words = tensor.name.split(".")
            kind, shape = None, tuple(int(size) for size in reversed(tensor.shape))
            if len(words) == 4 and words[2] in parts:
                kind = layers[int(words[1])][parts[words[2]]]
            elif hidden == 256 and tensor.name in ("token_embd.weight", "output.weight"):
                kind = "Q6_K"
            if kind is None:
                data = tensor.data if tensor.tensor_type == gguf.GGMLQuantizationType.F32 else tensor.data.view(numpy.uint8)
                writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
                continue
            deviation = 1.0 if tensor.name == "token_embd.weight" else 2.0 / shape[-1] ** 0.5
            blocks = random_blocks(kind, shape, deviation, random)
            writer.add_tensor(tensor.name, blocks, raw_dtype=gguf.GGMLQuantizationType[kind])
            numbers = torch.from_numpy(gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind]))
            if kind == "NVFP4" and name.endswith("factors"):  # llama.cpp multiplies outputs with them
                factors = random.uniform(0.5, 2.0, shape[:-2] or (1,)).astype(numpy.float32)
                writer.add_tensor(tensor.name.replace(".weight", ".scale"), factors)
                numbers = numbers * torch.from_numpy(factors).reshape(*shape[:-2], 1, 1)
            if len(words) == 2:
                values["model.embed_tokens.weight" if words[0] == "token_embd" else "lm_head.weight"] = numbers
            elif len(shape) == 3:
                for expert, matrix in enumerate(numbers):
                    values[f"model.layers.{words[1]}.{published[words[2]].format(expert)}.weight"] = matrix.contiguous()
            else:
                values[f"model.layers.{words[1]}.{published[words[2]]}.weight"] = numbers
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        safetensors.torch.save_file(values, folder / "model.safetensors", {"format": "pt"})
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager").eval()
        ids = safetensors.torch.load_file(folder / "reference.safetensors")["ids"]
        with torch.no_grad():
            logits = model(ids[None].long()).logits[0].float().contiguous()
        assert torch.isfinite(logits).all() and logits.std() > 0.1, logits.std()
        safetensors.torch.save_file({"ids": ids, "logits": logits}, output / f"{name}.safetensors")


def main() -> None:
    sys.path[:0] = [sys.argv[1], f"{sys.argv[1]}/gguf-py"]
    output = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else (
        pathlib.Path(__file__).resolve().parent.parent / "tests/golden/gguf/models")
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    transformers.utils.logging.disable_progress_bar()
    for name in [*MODELS, *WRAPPED]:
        write(name, *MODELS.get(name, (None, {})), output)
    for name in MIXED:
        write_mixed(name, output)


if __name__ == "__main__":
    main()
