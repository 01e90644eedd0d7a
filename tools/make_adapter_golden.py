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
