#!/usr/bin/env python3
"""Writes tests/golden/next_tokens/*: tiny models with a layer for multi-token prediction, and what it computes.

    pip install torch transformers
    python3 tools/make_next_token_golden.py [output]

transformers drops these layers, so the layer is the last one of a model with one layer more, and this file computes
its input, as the DeepSeek-V3 report (arXiv:2412.19437, section 2.2) describes it:

    x_i = M [norm(embedding(t_{i+1})) ; norm(h_i)]        h_i: the main model's hidden state after its last norm

The layer runs over all x_i, its own norm and the output layer follow. reference.safetensors: "ids" i32 [tokens],
"logits" f32 [tokens, vocabulary] of the main model and "next_logits" f32 [tokens - 1, vocabulary] of the layer, whose
row i predicts token i + 2.
"""

import json
import pathlib
import sys
import tempfile

import safetensors.torch
import torch
from make_architecture_golden import COMMON, MODELS, TOKENS, VOCABULARY, configure, draw
from transformers import AutoModelForCausalLM

# The settings that a further layer changes.
NAMES = {
    "glm4_moe": {},
    "deepseek_v3": {},
    "qwen3_next": {"mlp_only_layers": []},
    "qwen3_5_moe": {},
}
# Where Qwen's files have what the others call enorm, hnorm, eh_proj and shared_head.norm.
QWEN = {"enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "eh_proj": "fc", "shared_head.norm": "norm"}


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon) * weight


@torch.no_grad()
def write(name: str, folder: pathlib.Path) -> None:
    config_class, settings = MODELS[name]
    settings = dict(settings, **NAMES[name])
    random = torch.Generator().manual_seed(settings.pop("seed", 7))
    layers = settings.get("num_hidden_layers", COMMON["num_hidden_layers"])
    is_qwen = name.startswith("qwen")
    centre = 0 if is_qwen else 1
    if "layer_types" in settings:
        settings["layer_types"] = [*settings["layer_types"], "full_attention"]
    config = configure(config_class, dict(settings, num_hidden_layers=layers + 1), None)
    model = AutoModelForCausalLM.from_config(config)
    for key, tensor in model.state_dict().items():
        tensor.copy_(draw(key, tensor.shape, random, centre))
    hidden = config.hidden_size
    own = {key: draw(key + ".weight", shape, random, centre).bfloat16()
           for key, shape in (("enorm.layernorm", (hidden,)), ("hnorm.layernorm", (hidden,)),
                              ("shared_head.norm.layernorm", (hidden,)), ("eh_proj", (hidden, 2 * hidden)))}
    own = {key.removesuffix(".layernorm"): tensor for key, tensor in own.items()}

    with tempfile.TemporaryDirectory() as saved:
        model.bfloat16().save_pretrained(saved)
        tensors = safetensors.torch.load_file(f"{saved}/model.safetensors")
        stored = json.loads(pathlib.Path(saved, "config.json").read_text())
        read = AutoModelForCausalLM.from_pretrained(saved, dtype=torch.float32, attn_implementation="eager",
                                                    experts_implementation="eager").eval()

    ids = torch.randint(0, VOCABULARY, (1, TOKENS), generator=random)
    all_layers, types = read.model.layers, getattr(read.config, "layer_types", None)
    read.model.layers = all_layers[:layers]
    read.config.num_hidden_layers = layers
    states = read.model(ids, use_cache=False).last_hidden_state
    logits = read.lm_head(states)

    weights = {key: tensor.float() + (1 if is_qwen and key != "eh_proj" else 0) for key, tensor in own.items()}
    epsilon = config.rms_norm_eps
    joined = torch.cat([rms_norm(read.model.embed_tokens(ids[:, 1:]), weights["enorm"], epsilon),
                        rms_norm(states[:, :-1], weights["hnorm"], epsilon)], -1)
    read.model.layers = all_layers[layers:]
    read.config.num_hidden_layers = 1
    if types is not None:
        read.config.layer_types = ["full_attention"]
    read.model.norm = torch.nn.Identity()
    inner = read.model(inputs_embeds=joined @ weights["eh_proj"].T, use_cache=False).last_hidden_state
    next_logits = read.lm_head(rms_norm(inner, weights["shared_head.norm"], epsilon))

    last = f"model.layers.{layers}."
    if is_qwen:
        tensors = {key.replace(last, "mtp.layers.0."): tensor for key, tensor in tensors.items()}
        tensors |= {f"mtp.{QWEN[key]}.weight": tensor for key, tensor in own.items()}
        stored["mtp_num_hidden_layers"] = 1
    else:
        tensors |= {f"{last}{key}.weight": tensor for key, tensor in own.items()}
        tensors[last + "shared_head.head.weight"] = tensors["lm_head.weight"].clone()
        tensors[last + "embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
        stored["num_nextn_predict_layers"] = 1
    stored["num_hidden_layers"] = layers
    for key in ("layer_types", "mlp_layer_types"):
        if stored.get(key):
            stored[key] = stored[key][:layers]
    folder.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file({key: tensor.contiguous() for key, tensor in tensors.items()},
                                folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(stored, indent=2) + "\n")
    safetensors.torch.save_file({"ids": ids[0].int(), "logits": logits[0].contiguous(),
                                 "next_logits": next_logits[0].contiguous()}, folder / "reference.safetensors")


def main() -> None:
    root = pathlib.Path(__file__).resolve().parent.parent / "tests/golden"
    output = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else root
    for name in NAMES:
        write(name, output / "next_tokens" / name)


if __name__ == "__main__":
    main()
