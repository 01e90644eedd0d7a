#!/usr/bin/env python3
"""Writes tests/golden/adapters/*: LoRA adapters of random numbers as PEFT saves them, for tiny models of
tests/golden/architectures, and the logits that PEFT and transformers compute with them in float32.

    pip install torch transformers peft
    python3 tools/make_adapter_golden.py [output]

base.txt names the model. reference.safetensors: "logits" f32 [tokens, vocabulary] of the model's ids.
"""

import json
import pathlib
import shutil
import sys
import warnings

import peft
import safetensors.torch
import torch
import transformers

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "tests/golden"
GATE_UP, DOWN = "mlp.experts.gate_up_proj", "mlp.experts.down_proj"

# gate_proj and up_proj become one parameter, with twice the rank and alpha.
ADAPTERS = {
    "projection_names": ("qwen3_moe_window", dict(
        r=3, lora_alpha=6, target_modules=["gate_proj", "up_proj", "down_proj"])),
    "rank_and_alpha_patterns": ("qwen3_moe_window", dict(
        r=2, lora_alpha=5, target_parameters=[GATE_UP, DOWN], rank_pattern={DOWN: 4},
        alpha_pattern={GATE_UP: 9}, use_rslora=True)),
    "one_parameter": ("olmoe", dict(r=2, lora_alpha=3, target_parameters=[DOWN])),
    "renamed_block": ("mixtral", dict(r=2, lora_alpha=3, target_parameters=[GATE_UP, DOWN])),
    # k has another rank than q and v, which are stacked with it.
    "attention": ("qwen3_moe", dict(
        r=3, lora_alpha=6, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
        rank_pattern={"k_proj": 2}, alpha_pattern={r"layers\.0\..*o_proj": 9})),
    "one_of_stacked": ("mixtral", dict(r=2, lora_alpha=4, target_modules=["v_proj"], use_rslora=True)),
    # Adapters of experts, of the dense first layer and of shared experts.
    "every_mlp": ("qwen2_moe", dict(
        r=2, lora_alpha=5, target_modules=["gate_proj", "up_proj", "down_proj"])),
    "shared_expert_alone": ("qwen2_moe_windows", dict(
        r=2, lora_alpha=5, target_modules=["shared_expert.up_proj", "shared_expert_gate"])),
    "router_and_head": ("qwen2_moe_windows", dict(
        r=3, lora_alpha=4, target_modules=["lm_head"], target_parameters=["mlp.gate.weight"],
        alpha_pattern={"mlp.gate.weight": 7})),
    "router_of_renamed_block": ("mixtral", dict(
        r=2, lora_alpha=3, target_parameters=["mlp.gate.weight"])),
    "latent_attention": ("deepseek_v3", dict(
        r=2, lora_alpha=4, target_modules=["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj",
                                           "o_proj"])),
    "linear_attention": ("qwen3_5_moe", dict(
        r=2, lora_alpha=2, target_modules=["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a",
                                           "out_proj", "q_proj"])),
    "dense_and_shared": ("llama4", dict(
        r=2, lora_alpha=1, target_modules=["q_proj", "k_proj", "o_proj", "gate_proj", "up_proj",
                                           "down_proj", "lm_head"])),
    "head_with_bias": ("phimoe", dict(r=2, lora_alpha=4, target_modules=["lm_head", "q_proj"])),
    "interleaved_rows": ("gpt_oss", dict(r=3, lora_alpha=4, target_parameters=[GATE_UP, DOWN])),
}


def write(folder: pathlib.Path, base: str, settings: dict) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        GOLDEN / "architectures" / base, dtype=torch.float32, attn_implementation="eager",
        experts_implementation="eager")
    adapted = peft.get_peft_model(model, peft.LoraConfig(lora_dropout=0.0, **settings)).eval()
    random = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_" in name:
                weight.copy_(torch.randn(weight.shape, generator=random) * 0.4)
    adapted.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    file = GOLDEN / "architectures" / base / "reference.safetensors"
    reference = safetensors.torch.load_file(file)
    with torch.no_grad():
        logits = adapted(reference["ids"].long()[None]).logits[0].float().contiguous()
    change = ((logits - reference["logits"]).norm() / reference["logits"].norm()).item()
    assert torch.isfinite(logits).all() and change > 0.05, (folder, change)
    safetensors.torch.save_file({"logits": logits}, folder / "reference.safetensors")
    (folder / "base.txt").write_text(base + "\n")
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = base
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    print(f"{folder.name}: changes logits by {change:.2f}")


def main() -> None:
    output = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else GOLDEN / "adapters"
    shutil.rmtree(output, ignore_errors=True)
    warnings.simplefilter("ignore")
    transformers.utils.logging.disable_progress_bar()
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, peft {peft.__version__}")
    for name, (base, settings) in ADAPTERS.items():
        write(output / name, base, settings)


main()
