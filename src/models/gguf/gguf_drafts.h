// What several families share to write GGUF: the inverses of gguf_families.h.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "models/attention/rotary.h"
#include "models/gguf/gguf_families.h"

namespace moracle {

/// Sets a key behind the architecture: "attention.key_length_mla".
void put_gguf(GgufDraft& draft, std::string_view key, nlohmann::json value);
/// A tensor of the file that holds these numbers.
Tensors::Entry gguf_numbers(std::vector<float> values);
/// The matrix whose column c is column `source`(c) of `matrix`.
Tensors::Entry gguf_columns(const Tensors::Entry& matrix,
                            const std::function<int64_t(int64_t column)>& source);

Status put_softmax_gating(GgufDraft& draft);
/// The whole `write` of families that differ from their tables only in expert_gating_func.
Status put_sigmoid_gating(GgufDraft& draft);
/// rope.dimension_count: the rotated columns of each head.
Status put_partial_rotary(GgufDraft& draft);
/// rope_freqs.weight, if llama.cpp has no name for the kind of rotary embedding: what divides the
/// frequencies theta^(-2i / dim). Errors: those of read_rotary.
Status put_rotary_divisors(GgufDraft& draft, int64_t dim, const RotaryKinds& kinds = {});
/// head_dim, or the part of the hidden size. Errors: wrong types.
Result<int64_t> head_dim_of(const GgufDraft& draft);
/// attention.sliding_window_pattern from layer_types, where config.json has it.
Status put_window_pattern(GgufDraft& draft);
/// The inverse of set_windowed_rotary, and the window pattern.
Status put_windowed(GgufDraft& draft);
/// leading_dense_block_count from mlp_layer_types, where config.json has it.
Status put_leading_dense(GgufDraft& draft);
/// rope.dimension_sections: parts of a head for time, height and width.
void put_rotary_sections(GgufDraft& draft);
/// Replaces each tensor whose name ends so with its halves of rows.
void split_rows(GgufDraft& draft, std::string_view ending, std::string_view first,
                std::string_view second);

/// The keys of MLA that depend on each other; kv_b_proj becomes attn_k_b, whose heads are
/// transposed, and attn_v_b.
Status put_latent(GgufDraft& draft);

}  // namespace moracle
