#!/usr/bin/env python3
"""Writes tests/golden/config/defaults.json and rope.json: what transformers' configuration classes mean by keys that
config.json lacks, and which rotary frequencies its models compute from every place of the rotary settings.

    pip install torch transformers
    python3 tools/make_config_golden.py [output]

defaults.json holds for each architecture the defaults of its configuration class ("defaults"), and for each tiny model
of tests/golden/architectures, and of GLM-5.3-Flash and Qwen3.8-Flash-Next, what leaving out one key makes of the others ("left_out"; only where the key's own default
does not say it: lists by layer, rotary settings). rope.json holds the cases of ROPE, and for one model of
each family the `inv_freq` and `attention_scaling` of each case, with MLA also the attention's `scaling`. A case is
missing where transformers fails to compute it.
"""

import copy
import dataclasses
import json
import pathlib
import sys

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedConfig

ROOT = pathlib.Path(__file__).resolve().parent.parent / "tests/golden"
# The configuration class of the language model, and that of the file that wraps it.
CLASSES = {
    "AfmoeForCausalLM": transformers.AfmoeConfig,
    "AXK1ForCausalLM": transformers.AXK1Config,
    "BailingHybridForCausalLM": transformers.BailingHybridConfig,
    "Cohere2MoeForCausalLM": transformers.Cohere2MoeConfig,
    "DeepseekV2ForCausalLM": transformers.DeepseekV2Config,
    "DeepseekV3ForCausalLM": transformers.DeepseekV3Config,
    "DeepseekV32ForCausalLM": transformers.DeepseekV32Config,
    "DeepseekV4ForCausalLM": transformers.DeepseekV4Config,
    "Dots1ForCausalLM": transformers.Dots1Config,
    "Ernie4_5_MoeForCausalLM": transformers.Ernie4_5_MoeConfig,
    "ExaoneMoeForCausalLM": transformers.ExaoneMoeConfig,
    "FlexOlmoForCausalLM": transformers.FlexOlmoConfig,
    "Gemma4ForCausalLM": transformers.Gemma4TextConfig,
    "Glm4MoeForCausalLM": transformers.Glm4MoeConfig,
    "Glm4MoeLiteForCausalLM": transformers.Glm4MoeLiteConfig,
    "Glm5NextForConditionalGeneration": transformers.Glm5NextTextConfig,
    "GlmMoeDsaForCausalLM": transformers.GlmMoeDsaConfig,
    "GptOssForCausalLM": transformers.GptOssConfig,
    "GraniteMoeForCausalLM": transformers.GraniteMoeConfig,
    "GraniteMoeHybridForCausalLM": transformers.GraniteMoeHybridConfig,
    "GraniteMoeSharedForCausalLM": transformers.GraniteMoeSharedConfig,
    "GraniteMoeSWAForCausalLM": transformers.GraniteMoeSWAConfig,
    "HunYuanMoEV1ForCausalLM": transformers.HunYuanMoEV1Config,
    "HYV3ForCausalLM": transformers.HYV3Config,
    "KimiLinearForCausalLM": transformers.KimiLinearConfig,
    "LagunaForCausalLM": transformers.LagunaConfig,
    "Lfm2MoeForCausalLM": transformers.Lfm2MoeConfig,
    "Llama4ForCausalLM": transformers.Llama4TextConfig,
    "LongcatFlashForCausalLM": transformers.LongcatFlashConfig,
    "MellumForCausalLM": transformers.MellumConfig,
    "MiMoV2FlashForCausalLM": transformers.MiMoV2FlashConfig,
    "MiniMaxForCausalLM": transformers.MiniMaxConfig,
    "MiniMaxM2ForCausalLM": transformers.MiniMaxM2Config,
    "MiniMaxM3ForCausalLM": transformers.MiniMaxM3VLTextConfig,
    "MiniMaxText01ForCausalLM": transformers.MiniMaxConfig,
    "Mistral4ForCausalLM": transformers.Mistral4Config,
    "MixtralForCausalLM": transformers.MixtralConfig,
    "NemotronHForCausalLM": transformers.NemotronHConfig,
    "OlmoeForCausalLM": transformers.OlmoeConfig,
    "PhimoeForCausalLM": transformers.PhimoeConfig,
    "Qwen2MoeForCausalLM": transformers.Qwen2MoeConfig,
    "Qwen3_5MoeForCausalLM": transformers.Qwen3_5MoeTextConfig,
    "Qwen3MoeForCausalLM": transformers.Qwen3MoeConfig,
    "Qwen3NextForCausalLM": transformers.Qwen3NextConfig,
    "Qwen3VLMoeForConditionalGeneration": transformers.Qwen3VLMoeTextConfig,
    "Qwen4ExpForCausalLM": transformers.Qwen4ExpTextConfig,
    "SarvamMLAForCausalLM": transformers.SarvamMLAConfig,
    "SarvamMoEForCausalLM": transformers.SarvamMoEConfig,
    "SolarOpenForCausalLM": transformers.SolarOpenConfig,
    "Step3p7ForConditionalGeneration": transformers.Step3p7TextConfig,
}
# transformers saves these under the classes that compute them, or under other names of the architecture.
BY_TYPE = {"sarvam_mla": "SarvamMLAForCausalLM", "sarvam_moe": "SarvamMoEForCausalLM",
           "minimax_m3_vl_text": "MiniMaxM3ForCausalLM"}
# AutoModelForCausalLM does not know these.
MODEL_CLASSES = {transformers.Mistral4Config: transformers.Mistral4ForCausalLM,
                 transformers.MiniMaxM3VLTextConfig: transformers.models.minimax_m3_vl.MiniMaxM3VLForCausalLM}
# Their files have the names of attribute_map.
RENAMED = (transformers.BailingHybridConfig, transformers.KimiLinearConfig)
WRAPPERS = {"Qwen3VLMoeForConditionalGeneration": transformers.Qwen3VLMoeConfig}
# Keys that only training, generation, the file's bookkeeping or Mamba-2 layers use.
NOT_OF_THE_MODEL = {
    "architectures", "attention_dropout", "bos_token_id", "dtype", "eod_token_id", "eos_token_id", "initializer_range",
    "input_jitter_noise", "model_type", "output_router_logits", "pad_token_id", "pretraining_tp",
    "router_aux_loss_coef", "sep_token_id", "transformers_version", "use_cache"}

YARN = dict(rope_type="yarn", factor=8.0, beta_fast=4.0)
LLAMA3 = dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0)
# Each case replaces all rotary settings of a model.
ROPE = {
    "nothing": {},
    "theta": dict(rope_theta=5e3),
    "theta beside parameters": dict(rope_theta=5e3, rope_parameters=dict(rope_type="linear", factor=2.0)),
    "theta in parameters": dict(rope_theta=5e3, rope_parameters=dict(rope_type="default", rope_theta=7e3)),
    "empty parameters": dict(rope_theta=5e3, rope_parameters={}),
    "scaling alone": dict(rope_scaling=dict(type="linear", factor=2.0)),
    "scaling beside theta": dict(rope_theta=5e3, rope_scaling=dict(type="linear", factor=2.0)),
    "scaling beside parameters": dict(
        rope_parameters=dict(rope_type="default", rope_theta=7e3), rope_theta=5e3,
        rope_scaling=dict(YARN, original_max_position_embeddings=32)),
    "scaling with theta beside parameters": dict(
        rope_parameters=dict(rope_type="linear", factor=3.0, rope_theta=7e3), rope_theta=5e3,
        rope_scaling=dict(LLAMA3, rope_theta=3e3, original_max_position_embeddings=24)),
    "empty scaling beside parameters": dict(
        rope_parameters=dict(rope_type="linear", factor=3.0, rope_theta=7e3), rope_scaling={}),
    "null scaling beside parameters": dict(
        rope_parameters=dict(rope_type="linear", factor=3.0, rope_theta=7e3), rope_scaling=None),
    "null parameters": dict(rope_theta=5e3, rope_parameters=None),
    "type and rope_type": dict(rope_scaling=dict(rope_type="linear", type="dynamic", factor=2.0)),
    "dynamic": dict(rope_scaling=dict(rope_type="dynamic", factor=2.0), rope_theta=5e3),
    "llama3 with context": dict(rope_parameters=dict(LLAMA3, original_max_position_embeddings=24)),
    "llama3 with context beside": dict(
        original_max_position_embeddings=48,
        rope_parameters=dict(LLAMA3, original_max_position_embeddings=24)),
    "llama3 without context": dict(rope_parameters=LLAMA3),
    "yarn with context beside": dict(
        original_max_position_embeddings=48, rope_scaling=dict(YARN, original_max_position_embeddings=32)),
    "yarn without context": dict(rope_scaling=YARN),
    "yarn without truncation": dict(
        rope_scaling=dict(YARN, truncate=False, original_max_position_embeddings=32)),
    "yarn with attention factor": dict(
        rope_scaling=dict(YARN, attention_factor=1.5, original_max_position_embeddings=32)),
    "yarn with mscale": dict(
        rope_scaling=dict(YARN, mscale=1.3, mscale_all_dim=0.7, original_max_position_embeddings=32)),
    "yarn with mscale_all_dim": dict(
        rope_scaling=dict(YARN, mscale_all_dim=0.7, original_max_position_embeddings=32)),
    "linear with mscale_all_dim": dict(rope_scaling=dict(type="linear", factor=2.0, mscale_all_dim=0.7)),
    "yarn of null factor": dict(
        rope_scaling=dict(YARN, factor=None, original_max_position_embeddings=32)),
    "proportional": dict(
        rope_parameters=dict(rope_type="proportional", rope_theta=7e3, partial_rotary_factor=0.5)),
    "proportional by factor": dict(
        rope_parameters=dict(rope_type="proportional", rope_theta=7e3, partial_rotary_factor=1.0, factor=2.0)),
}
# Models that rotate only a part of each head.
PARTIAL = {
    "part": dict(partial_rotary_factor=0.75),
    "part in parameters": dict(partial_rotary_factor=0.75, rope_parameters=dict(partial_rotary_factor=1.0)),
    "part beside scaling": dict(
        partial_rotary_factor=0.75, rope_scaling=dict(YARN, original_max_position_embeddings=32),
        rope_parameters=dict(partial_rotary_factor=1.0)),
    "part in scaling": dict(
        partial_rotary_factor=0.75,
        rope_scaling=dict(type="linear", factor=2.0, partial_rotary_factor=1.0)),
}
OF_PARTS = ("glm4_moe", "minimax_m2", "minimax_m3", "qwen3_5_moe", "qwen3_next")
ROTARY_KEYS = ("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor", "rotary_dim",
               "original_max_position_embeddings")


def declared(config_class) -> dict:
    """The defaults of the keys that the class declares."""
    base = {field.name for field in dataclasses.fields(PreTrainedConfig)}
    return {field.name: field.default for field in dataclasses.fields(config_class)
            if field.name not in base | NOT_OF_THE_MODEL or field.name == "tie_word_embeddings"}


def defaults_of(architecture: str) -> dict:
    config_class = CLASSES[architecture]
    defaults = declared(config_class)
    defaults.pop("rope_parameters", None)
    if architecture in WRAPPERS:
        defaults["tie_word_embeddings"] = declared(WRAPPERS[architecture])["tie_word_embeddings"]
    # Files have the names that the class gives to these keys.
    for key, name in getattr(config_class, "attribute_map", {}).items():
        if key in defaults and config_class in RENAMED:
            defaults[name] = defaults.pop(key)
    # Keys that the class reads without declaring them.
    whole = config_class()
    if config_class is transformers.NemotronHConfig:  # no RoPE
        return defaults | {"layers_block_type": whole.layers_block_type}
    rope = getattr(whole, "rope_parameters", None)
    if rope is None:  # never rotates
        rope = {"rope_type": "none"}
    elif config_class is transformers.Gemma4TextConfig:
        defaults["rope_parameters"] = rope
        full = whole.layer_types.index("full_attention")
        defaults["global_head_dim"] = whole.per_layer_config[full].head_dim
    elif any(isinstance(value, dict) for value in rope.values()):
        defaults["rope_parameters"] = rope
    else:
        if config_class is not transformers.BailingHybridConfig:  # it declares its own
            defaults["rope_theta"] = config_class.default_theta
        if rope["rope_type"] != "default":
            defaults["rope_parameters"] = {key: rope[key] for key in rope if key != "rope_theta"}
        if config_class is transformers.Mistral4Config:  # two settings follow from sizes
            defaults["rope_parameters"] = {key: rope[key] for key in rope if key not in (
                "max_position_embeddings", "partial_rotary_factor")}
            del defaults["rope_theta"]  # not read beside them
        elif "partial_rotary_factor" in rope:
            defaults["partial_rotary_factor"] = rope["partial_rotary_factor"]
    if getattr(whole, "mlp_layer_types", None) and "first_k_dense_replace" not in defaults:
        defaults["first_k_dense_replace"] = whole.mlp_layer_types.count("dense")
    if config_class in (transformers.Qwen3NextConfig, transformers.Qwen3_5MoeTextConfig):
        defaults["full_attention_interval"] = 1 + whole.layer_types.index("full_attention")
    if config_class is transformers.Qwen4ExpTextConfig:
        defaults["full_attention_interval"] = 1 + whole.layer_types.index("indexed_attention")
    return defaults


def effective(config_class, config: dict) -> dict:
    read = config_class.from_dict(copy.deepcopy(config)).to_dict()
    return {key: value for key, value in json.loads(json.dumps(read, default=str)).items()
            if key not in NOT_OF_THE_MODEL}


def left_out(config_class, config: dict, defaults: dict) -> dict:
    whole = effective(config_class, config)
    found = {}
    # Texts end n-grams.
    read_too = {"eos_token_id"} if config_class is transformers.Qwen4ExpTextConfig else set()
    for key in sorted(set(config) - (NOT_OF_THE_MODEL - read_too)):
        less = {other: value for other, value in config.items() if other != key}
        try:
            read = effective(config_class, less)
        except Exception as error:  # the class needs the key
            print(f"  without {key}: {type(error).__name__}")
            found[key] = None
            continue
        changes = {other: read.get(other) for other in sorted(set(whole) | set(read))
                   if read.get(other) != whole.get(other)}
        if config_class is transformers.BailingHybridConfig and key != "head_dim":
            changes.pop("head_dim", None)  # the class overwrites it after reading it
        if changes and not (set(changes) == {key} and defaults.get(key) is not None):
            found[key] = changes
    return found


def rope_of(config_class, config: dict, settings: dict) -> dict:
    other = {key: value for key, value in config.items() if key not in ROTARY_KEYS}
    read = config_class.from_dict(other | copy.deepcopy(settings))
    read._attn_implementation = "eager"
    own = MODEL_CLASSES.get(config_class)
    model = own._from_config(read, dtype=torch.float32) if own else AutoModelForCausalLM.from_config(
        read, dtype=torch.float32)
    with torch.no_grad():
        assert torch.isfinite(model(torch.arange(19)[None]).logits).all()
    rope = next(module for module in model.modules() if hasattr(module, "inv_freq"))
    attention = next(layer.self_attn for layer in model.model.layers if hasattr(layer, "self_attn"))
    found = {"frequencies": [float(f"{x:.9g}") for x in rope.inv_freq.tolist()]}
    if rope.attention_scaling != 1:
        found["factor"] = rope.attention_scaling
    if hasattr(attention, "kv_lora_rank"):
        found["scale"] = attention.scaling
    return found


def finite(value):
    """Infinity as transformers writes it: JSON has none."""
    if isinstance(value, float) and value == float("inf"):
        return {"__float__": "Infinity"}
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    return [finite(one) for one in value] if isinstance(value, (list, tuple)) else value


def unwrapped(value: dict):
    """The inverse of finite()."""
    return float(value["__float__"]) if set(value) == {"__float__"} else value


def lines(value: dict) -> str:
    """One line for each entry of the second level."""
    parts = []
    for name, entries in value.items():
        inner = ",\n".join(f"  {json.dumps(key)}: {json.dumps(finite(entry))}" for key, entry in entries.items())
        parts.append(f" {json.dumps(name)}: {{\n{inner}\n }}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    output = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "config"
    output.mkdir(parents=True, exist_ok=True)
    transformers.utils.logging.set_verbosity_error()
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    defaults = {architecture: {"class": CLASSES[architecture].__name__, "defaults": defaults_of(architecture),
                               "left_out": {}} for architecture in CLASSES}
    rope = {"cases": ROPE | PARTIAL, "models": {}}
    folders = sorted((ROOT / "architectures").iterdir()) + [ROOT / "multimodal/qwen3_vl_moe"]
    folders += sorted((ROOT / "compressed").glob("glm5_next_*")) + sorted((ROOT / "compressed").glob("qwen4_exp*"))
    for folder in folders:
        config = json.loads((folder / "config.json").read_text(), object_hook=unwrapped)
        architecture = BY_TYPE.get(config["model_type"], config["architectures"][0])
        entry, config_class = defaults[architecture], CLASSES[architecture]
        config = config.get("text_config", config)
        print(folder.name)
        entry["left_out"][folder.name] = left_out(config_class, config, entry["defaults"])
        # Some have settings by kind of layer or by layer, Phi-3.5-MoE no other settings than LongRoPE's.
        if config_class in (transformers.NemotronHConfig, transformers.Glm5NextTextConfig,
                            transformers.Qwen4ExpTextConfig) or len(entry["left_out"]) > 1 or folder.name in (
                "gemma4", "granite_moe_swa", "kimi_linear", "laguna", "mellum", "mimo_v2_flash", "phimoe", "qwen3_vl_moe"):
            continue
        cases = {}
        for name, settings in (ROPE | (PARTIAL if folder.name in OF_PARTS else {})).items():
            # Command-A+ ignores this key in silence, so that it is refused.
            if config_class is transformers.Cohere2MoeConfig and settings.get("rope_scaling"):
                continue
            # Ling ignores the file's context there, so that these are refused.
            if config_class is transformers.BailingHybridConfig and name.endswith("without context"):
                continue
            try:
                cases[name] = rope_of(config_class, config, settings)
            except Exception as error:  # this family cannot compute the case
                print(f"  {name}: {type(error).__name__} {str(error)[:90]}")
        if cases:
            rope["models"][folder.name] = cases
    (output / "defaults.json").write_text(lines(defaults))
    (output / "rope.json").write_text(lines(rope))


if __name__ == "__main__":
    main()
