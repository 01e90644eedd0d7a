#!/usr/bin/env python3
"""Writes tests/golden/gguf/adapters/*: LoRA adapters of random numbers as llama.cpp's convert_lora_to_gguf.py writes them,
for models of tests/golden/gguf/models, and the logits of transformers with the adapter added to the weights in float32.

    pip install torch transformers tqdm pyyaml requests
    python3 tools/make_gguf_adapter_golden.py <a copy of llama.cpp> [output]

<model>.gguf is the adapter, <model>.safetensors its "logits" for the model's ids.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

import safetensors.torch
import torch
import transformers

import make_architecture_golden as tiny
import make_gguf_golden as models

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/gguf"
RANK, ALPHA = 2, 3.0
# By model: adapted modules, as an expression, and the type of the file.
ADAPTERS = {
    "qwen3moe": (r"(q|k|v|o|gate|up|down)_proj|lm_head", "f32"),
    # Rows of q and k are reordered.
    "llama": (r"[qko]_proj|block_sparse_moe.experts.\d+.w[123]", "f16"),
    # Value heads are reordered, and rows of in_proj_a and in_proj_b.
    "qwen35moe": (r"in_proj_(qkv|z|a|b)|shared_expert.(gate|up|down)_proj|shared_expert_gate", "f32"),
    # One stored matrix holds in_proj_a and in_proj_b in turns.
    "qwen3next": (r"in_proj_ba|[qo]_proj", "f32"),
}


def make_adapter(folder: pathlib.Path, modules: str, adapter: pathlib.Path) -> None:
    """Writes an adapter of `folder` as PEFT does, and adds it to the weights."""
    file = folder / "model.safetensors"
    tensors = {name: weight.float() for name, weight in safetensors.torch.load_file(file).items()}
    random = torch.Generator().manual_seed(3)
    pairs = {}
    for name in sorted(tensors):
        module = name.removesuffix(".weight")
        if tensors[name].dim() != 2 or not re.search(rf"(^|\.)({modules})$", module):
            continue
        n, k = tensors[name].shape
        a, b = (torch.randn(shape, generator=random) * 0.4 for shape in ((RANK, k), (n, RANK)))
        a, b = a.half().float(), b.half().float()
        pairs[f"base_model.model.{module}.lora_A.weight"] = a
        pairs[f"base_model.model.{module}.lora_B.weight"] = b
        tensors[name] += ALPHA / RANK * (b @ a)
    assert pairs, folder
    safetensors.torch.save_file(tensors, file, {"format": "pt"})
    adapter.mkdir()
    safetensors.torch.save_file(pairs, adapter / "adapter_model.safetensors", {"format": "pt"})
    (adapter / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA}))


def logits_of(folder: pathlib.Path, ids: torch.Tensor) -> torch.Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager")
    with torch.no_grad():
        return model(ids.long()[None]).logits[0].float().contiguous()


def write(name: str, modules: str, file_type: str, llama_cpp: pathlib.Path, output: pathlib.Path) -> None:
    reference = safetensors.torch.load_file(GOLDEN / "models" / f"{name}.safetensors")
    with tempfile.TemporaryDirectory() as scratch:
        folder, adapter = pathlib.Path(scratch) / name, pathlib.Path(scratch) / "adapter"
        model, keys = models.MODELS[name]
        tiny.write(folder, *model)
        config = json.loads((folder / "config.json").read_text())
        # The converter of Qwen3-Next and Qwen3.5 needs a number of layers for multi-token prediction.
        (folder / "config.json").write_text(json.dumps({**config, **keys, "mtp_num_hidden_layers": 1}))
        assert torch.equal(logits_of(folder, reference["ids"]), reference["logits"]), "another model"
        make_adapter(folder, modules, adapter)
        subprocess.run([sys.executable, llama_cpp / "convert_lora_to_gguf.py", "--base", folder, "--outfile",
                        output / f"{name}.gguf", "--outtype", file_type, adapter], check=True)
        logits = logits_of(folder, reference["ids"])
    change = ((logits - reference["logits"]).norm() / reference["logits"].norm()).item()
    assert torch.isfinite(logits).all() and change > 0.05, (name, change)
    safetensors.torch.save_file({"logits": logits}, output / f"{name}.safetensors")


def main() -> None:
    llama_cpp = pathlib.Path(sys.argv[1])
    output = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else GOLDEN / "adapters"
    output.mkdir(parents=True, exist_ok=True)
    for name, (modules, file_type) in ADAPTERS.items():
        write(name, modules, file_type, llama_cpp, output)


if __name__ == "__main__":
    main()
