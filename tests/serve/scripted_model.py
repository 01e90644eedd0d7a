"""Writes a checkpoint that answers with scripted texts: attention and experts add zero, and lm_head maps each token to its
successor."""
import array
import json
import os

HIDDEN, HEADS, EXPERTS, INTERMEDIATE = 512, 4, 2, 64
END = "<|end|>"


def byte_level():
    """The byte-level BPE alphabet."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {**{byte: chr(byte) for byte in plain}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}


def tensors(successors, size):
    """Name, shape and values of each tensor."""
    zeros = lambda *shape: (shape, None)  # noqa: E731
    ones = lambda size: ((size,), {i: 1.0 for i in range(size)})  # noqa: E731
    layer = "model.layers.0."
    yield "model.embed_tokens.weight", (size, HIDDEN), {i * HIDDEN + i: 1.0 for i in range(size)}
    yield "lm_head.weight", (size, HIDDEN), {after * HIDDEN + token: 4.0 for token, after in successors.items()}
    yield "model.norm.weight", *ones(HIDDEN)
    for norm in ("input_layernorm", "post_attention_layernorm"):
        yield f"{layer}{norm}.weight", *ones(HIDDEN)
    head = HIDDEN // HEADS
    for part in ("q", "k"):
        yield f"{layer}self_attn.{part}_norm.weight", *ones(head)
    for part in ("q", "k", "v", "o"):
        yield f"{layer}self_attn.{part}_proj.weight", *zeros(HIDDEN, HIDDEN)
    yield f"{layer}mlp.gate.weight", *zeros(EXPERTS, HIDDEN)
    for expert in range(EXPERTS):
        for part in ("gate", "up"):
            yield f"{layer}mlp.experts.{expert}.{part}_proj.weight", *zeros(INTERMEDIATE, HIDDEN)
        yield f"{layer}mlp.experts.{expert}.down_proj.weight", *zeros(HIDDEN, INTERMEDIATE)


def write(folder, template, scripts, special=(), end_text=END):
    """`scripts`: the last token of a prompt, and the tokens of its answer. `special`: tokens that are special.
    `end_text`: the token that ends an answer. Each token may occur only once."""
    vocab = {character: byte for byte, character in byte_level().items()}
    added, successors = [], {}

    def token(text, is_special):
        added.append({"id": 256 + len(added), "content": text, "special": is_special, "single_word": False,
                      "lstrip": False, "rstrip": False, "normalized": False})
        return added[-1]["id"]

    end = token(end_text, True)
    for start, pieces in scripts.items():
        last = token(start, True)
        for piece in pieces:
            last = successors.setdefault(last, token(piece, piece in special))
        successors[last] = end
    size = 256 + len(added)
    assert size <= HIDDEN and len({entry["content"] for entry in added}) == len(added)

    os.makedirs(folder)
    header, data = {}, bytearray()
    for name, shape, values in tensors(successors, size):
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        buffer = array.array("f", bytes(4 * count))
        for index, value in (values or {}).items():
            buffer[index] = value
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [len(data), len(data) + 4 * count]}
        data += buffer.tobytes()
    text = json.dumps(header).encode()
    with open(f"{folder}/model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data)
    files = {
        "config.json": {
            "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": HIDDEN,
            "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": HEADS,
            "head_dim": HIDDEN // HEADS, "num_experts": EXPERTS, "num_experts_per_tok": 1, "norm_topk_prob": True,
            "moe_intermediate_size": INTERMEDIATE, "intermediate_size": INTERMEDIATE, "decoder_sparse_step": 1,
            "mlp_only_layers": [], "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
            "max_position_embeddings": 4096, "tie_word_embeddings": False, "vocab_size": size, "eos_token_id": end,
            "torch_dtype": "float32"},
        "tokenizer.json": {
            "version": "1.0", "added_tokens": added, "normalizer": None, "post_processor": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "vocab": vocab, "merges": []}},
        "tokenizer_config.json": {"chat_template": template}}
    for name, content in files.items():
        with open(f"{folder}/{name}", "w") as file:
            json.dump(content, file)
