"""A GGUF file of Qwen3-30B-A3B's shape with random weights and few layers, without a vocabulary."""

import dataclasses

import gguf
import numpy

HIDDEN, INTERMEDIATE, EXPERTS, TOP_K = 2048, 768, 128, 8
HEADS, KV_HEADS, HEAD_DIM = 32, 4, 128

KINDS = gguf.GGMLQuantizationType
F32 = KINDS.F32
# For each block type: where its f16 factors lie, each with a value for weights of about 0.02. All other bytes may be
# random.
FACTORS = {
    KINDS.Q4_0: [(0, 0.003)], KINDS.Q8_0: [(0, 0.0002)],
    KINDS.Q2_K: [(80, 0.0015), (82, 0.002)], KINDS.Q3_K: [(108, 0.0004)],
    KINDS.Q4_K: [(0, 0.00008), (2, 0.0006)], KINDS.Q5_K: [(0, 0.00004), (2, 0.0006)],
    KINDS.Q6_K: [(208, 0.00002)], KINDS.IQ4_XS: [(0, 0.00002)], KINDS.IQ3_S: [(0, 0.0002)],
    KINDS.IQ3_XXS: [(0, 0.0001)], KINDS.IQ2_XXS: [(0, 0.0002)], KINDS.IQ2_S: [(0, 0.0002)],
}


@dataclasses.dataclass(frozen=True)
class Mix:
    """The block types of a file, as llama.cpp's quantizer mixes them for a model with experts."""

    kind: KINDS
    output: KINDS = KINDS.Q6_K  # of the output layer
    more: KINDS | None = None  # of v and the experts' down projections in every other layer


MIXES = {
    "Q8_0": Mix(KINDS.Q8_0, KINDS.Q8_0), "Q6_K": Mix(KINDS.Q6_K), "Q5_K_M": Mix(KINDS.Q5_K, more=KINDS.Q6_K),
    "Q4_K_M": Mix(KINDS.Q4_K, more=KINDS.Q6_K), "Q4_0": Mix(KINDS.Q4_0), "IQ4_XS": Mix(KINDS.IQ4_XS),
    "Q3_K_M": Mix(KINDS.Q3_K, more=KINDS.Q4_K), "IQ3_S": Mix(KINDS.IQ3_S), "IQ3_XXS": Mix(KINDS.IQ3_XXS),
    "Q2_K": Mix(KINDS.Q2_K, more=KINDS.Q3_K), "IQ2_S": Mix(KINDS.IQ2_S), "IQ2_XXS": Mix(KINDS.IQ2_XXS),
    "BF16": Mix(KINDS.BF16, KINDS.BF16),
}


def _rows(kind, rows, columns, random):
    """[rows, bytes of a row] of random weights of about 0.02."""
    if kind == KINDS.BF16:
        # Random signs and mantissas of 0.0156 to 0.031. Each weight is drawn: equal pages may share
        # memory, and would then come from a cache.
        halves = random.integers(0, 1 << 16, (rows, columns), numpy.uint16)
        return ((halves & 0x807F) | 0x3C80).view(numpy.uint8)
    per_block, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = numpy.frombuffer(random.bytes(rows * columns // per_block * size), numpy.uint8).reshape(-1, size).copy()
    for at, factor in FACTORS[kind]:
        blocks[:, at:at + 2] = numpy.frombuffer(numpy.float16(factor).tobytes(), numpy.uint8)
    return blocks.reshape(rows, -1)


def write(path, layers, vocabulary, mix, seed=1):
    """The embedding has the block type of the layers."""
    random = numpy.random.default_rng(seed)
    file = gguf.GGUFWriter(path, "qwen3moe")
    file.add_block_count(layers)
    file.add_context_length(40960)
    file.add_embedding_length(HIDDEN)
    file.add_feed_forward_length(6144)
    file.add_expert_feed_forward_length(INTERMEDIATE)
    file.add_head_count(HEADS)
    file.add_head_count_kv(KV_HEADS)
    file.add_key_length(HEAD_DIM)
    file.add_value_length(HEAD_DIM)
    file.add_rope_freq_base(1e6)
    file.add_layer_norm_rms_eps(1e-6)
    file.add_expert_count(EXPERTS)
    file.add_expert_used_count(TOP_K)
    file.add_vocab_size(vocabulary)
    file.add_tokenizer_model("none")

    def add(name, kind, shape):
        columns, rows = shape[-1], int(numpy.prod(shape[:-1]))
        if kind == F32:
            scale = 1.0 if len(shape) == 1 else 0.02
            values = numpy.full(shape, scale, numpy.float32) if len(shape) == 1 else (
                random.standard_normal(shape, numpy.float32) * scale)
            return file.add_tensor(name, values)
        data = _rows(kind, rows, columns, random)
        return file.add_tensor(name, data.reshape(*shape[:-1], -1), raw_dtype=kind)

    add("token_embd.weight", mix.kind, (vocabulary, HIDDEN))
    add("output_norm.weight", F32, (HIDDEN,))
    add("output.weight", mix.output, (vocabulary, HIDDEN))
    for layer in range(layers):
        def named(part):
            return f"blk.{layer}.{part}.weight"
        kind, down = mix.kind, mix.more if mix.more and layer % 2 else mix.kind
        add(named("attn_norm"), F32, (HIDDEN,))
        add(named("attn_q"), kind, (HEADS * HEAD_DIM, HIDDEN))
        add(named("attn_k"), kind, (KV_HEADS * HEAD_DIM, HIDDEN))
        add(named("attn_v"), down, (KV_HEADS * HEAD_DIM, HIDDEN))
        add(named("attn_q_norm"), F32, (HEAD_DIM,))
        add(named("attn_k_norm"), F32, (HEAD_DIM,))
        add(named("attn_output"), kind, (HIDDEN, HEADS * HEAD_DIM))
        add(named("ffn_norm"), F32, (HIDDEN,))
        add(named("ffn_gate_inp"), F32, (EXPERTS, HIDDEN))
        add(named("ffn_gate_exps"), kind, (EXPERTS, INTERMEDIATE, HIDDEN))
        add(named("ffn_up_exps"), kind, (EXPERTS, INTERMEDIATE, HIDDEN))
        add(named("ffn_down_exps"), down, (EXPERTS, HIDDEN, INTERMEDIATE))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
