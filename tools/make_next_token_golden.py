#!/usr/bin/env python3
"""Writes tests/golden/next_tokens/*: tiny models with a layer for multi-token prediction, and what it computes.

    pip install torch transformers
    python3 tools/make_next_token_golden.py [output]
    pip install tqdm pyyaml requests
    python3 tools/make_next_token_golden.py --gguf <a copy of llama.cpp> [output]

transformers drops these layers, so the layer is the last one of a model with one layer more, and this file computes
its input, as the DeepSeek-V3 report (arXiv:2412.19437, section 2.2) describes it:

    x_i = M [norm(embedding(t_{i+1})) ; norm(h_i)]        h_i: the main model's hidden state after its last norm

MiMo's layer has the hidden state before that norm (Xiaomi's server for it, SGLang, hands it over).

The layer runs over all x_i, its own norm and the output layer follow. reference.safetensors: "ids" i32 [tokens],
"logits" f32 [tokens, vocabulary] of the main model and "next_logits" f32 [tokens - 1, vocabulary] of the layer, whose
row i predicts token i + 2. With --gguf: tests/golden/gguf/next_tokens/*.gguf, the same models as llama.cpp's converter
writes them.
"""

import json
import pathlib
import shutil
import sys
import tempfile

import safetensors.torch
import torch
from make_architecture_golden import COMMON, MODELS, TOKENS, VOCABULARY, configure, draw
from make_gguf_golden import MODELS as MODELS_OF_GGUF
from make_gguf_golden import stub_vocabulary
from transformers import AutoModelForCausalLM

# The settings that a further layer changes.
NAMES = {
    "glm4_moe": {},
    "deepseek_v3": {},
    "qwen3_next": {"mlp_only_layers": []},
    "qwen3_5_moe": {},
    "mimo_v2_flash": {"mlp_layer_types": ["dense", "sparse", "sparse"]},
    "deepseek_v32_sparse": {},
    "glm_moe_dsa_sparse": {},
    "glm4_moe_lite": {},
}
# What the layer is, of the types that config.json lists.
TYPES = {"layer_types": {"mimo_v2_flash": "sliding_attention"}, "mlp_layer_types": {"mimo_v2_flash": "dense"},
         "indexer_types": {}}
USUAL = {"layer_types": "full_attention", "mlp_layer_types": "sparse", "indexer_types": "full"}
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
    is_qwen, is_mimo = name.startswith("qwen"), name.startswith("mimo")
    centre = 0 if is_qwen else 1
    own_types = {key: by_name.get(name, USUAL[key]) for key, by_name in TYPES.items()}
    for key, own_type in own_types.items():
        if settings.get(key):
            settings[key] = [*settings[key], own_type]
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
    all_layers = read.model.layers
    sums = []
    read.model.norm.register_forward_pre_hook(lambda _, inputs: sums.append(inputs[0]))
    read.model.layers = all_layers[:layers]
    read.config.num_hidden_layers = layers
    states = read.model(ids, use_cache=False).last_hidden_state
    logits = read.lm_head(states)
    given = sums[0] if is_mimo else states

    weights = {key: tensor.float() + (1 if is_qwen and key != "eh_proj" else 0) for key, tensor in own.items()}
    epsilon = config.rms_norm_eps
    joined = torch.cat([rms_norm(read.model.embed_tokens(ids[:, 1:]), weights["enorm"], epsilon),
                        rms_norm(given[:, :-1], weights["hnorm"], epsilon)], -1)
    read.model.layers = all_layers[layers:]
    read.config.num_hidden_layers = 1
    for key, own_type in own_types.items():
        if getattr(read.config, key, None) is not None:
            setattr(read.config, key, [own_type])
    read.model.norm = torch.nn.Identity()
    inner = read.model(inputs_embeds=joined @ weights["eh_proj"].T, use_cache=False).last_hidden_state
    next_logits = read.lm_head(rms_norm(inner, weights["shared_head.norm"], epsilon))

    last = f"model.layers.{layers}."
    if is_qwen:
        tensors = {key.replace(last, "mtp.layers.0."): tensor for key, tensor in tensors.items()}
        tensors |= {f"mtp.{QWEN[key]}.weight": tensor for key, tensor in own.items()}
        stored["mtp_num_hidden_layers"] = 1
    elif is_mimo:
        names = {"post_attention_layernorm": "pre_mlp_layernorm", "shared_head.norm": "final_layernorm"}
        tensors |= {f"{last}{key}.weight": tensor for key, tensor in own.items()}
        own = [key for key in tensors if key.startswith(last)]
        for key in own:
            renamed = key.replace(last, "model.mtp.layers.0.")
            for usual, of_mimo in names.items():
                renamed = renamed.replace(usual, of_mimo)
            tensors[renamed] = tensors.pop(key)
    else:
        tensors |= {f"{last}{key}.weight": tensor for key, tensor in own.items()}
        tensors[last + "shared_head.head.weight"] = tensors["lm_head.weight"].clone()
        tensors[last + "embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
        stored["num_nextn_predict_layers"] = 1
    stored["num_hidden_layers"] = layers
    for key in TYPES:
        if stored.get(key):
            stored[key] = stored[key][:layers]
    folder.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file({key: tensor.contiguous() for key, tensor in tensors.items()},
                                folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(stored, indent=2) + "\n")
    safetensors.torch.save_file({"ids": ids[0].int(), "logits": logits[0].contiguous(),
                                 "next_logits": next_logits[0].contiguous()}, folder / "reference.safetensors")


# Keys of config.json that published files have and transformers does not write.
PUBLISHED = {"deepseek_v3": dict(scoring_func="sigmoid", topk_method="noaux_tc"),
             "glm4_moe_lite": dict(first_k_dense_replace=1),
             "mimo_v2_flash": MODELS_OF_GGUF["mimo2"][1] | dict(num_nextn_predict_layers=1)}
# By file: the model.
GGUF = {"glm4moe": "glm4_moe", "deepseek32": "deepseek_v32_sparse", "glm-dsa": "glm_moe_dsa_sparse", "qwen3next": "qwen3_next",
        "qwen35moe": "qwen3_5_moe", "mimo2": "mimo_v2_flash", "deepseek2": "glm4_moe_lite"}


def write_gguf(name: str, folder: pathlib.Path, output: pathlib.Path) -> None:
    """One file, as the converter writes it."""
    import gguf
    import conversion
    with tempfile.TemporaryDirectory() as scratch:
        copy = pathlib.Path(scratch) / name
        shutil.copytree(folder, copy)
        config = json.loads((copy / "config.json").read_text())
        config.update(PUBLISHED.get(folder.name, {}))
        (copy / "config.json").write_text(json.dumps(config))
        hparams = conversion.ModelBase.load_hparams(copy, False)
        parent = conversion.get_model_class(conversion.get_model_architecture(hparams, conversion.ModelType.TEXT))
        members = {"set_vocab": stub_vocabulary, "model_arch": parent.model_arch}
        if name == "mimo2":
            members["_n_nextn"] = 1
        model_class = type(parent.__name__, (parent,), members)
        output.mkdir(parents=True, exist_ok=True)
        with torch.inference_mode():
            model_class(copy, gguf.LlamaFileType.MOSTLY_BF16, output / f"{name}.gguf", eager=True, model_name=name,
                        hparams=hparams).write()


def main() -> None:
    root = pathlib.Path(__file__).resolve().parent.parent / "tests/golden"
    if sys.argv[1:2] == ["--gguf"]:
        sys.path[:0] = [sys.argv[2], f"{sys.argv[2]}/gguf-py"]
        output = pathlib.Path(sys.argv[3]) if len(sys.argv) > 3 else root
        for name, source in GGUF.items():
            write_gguf(name, output / "next_tokens" / source, output / "gguf/next_tokens")
        return
    output = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else root
    for name in NAMES:
        write(name, output / "next_tokens" / name)


if __name__ == "__main__":
    main()
