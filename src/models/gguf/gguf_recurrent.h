// Translations between GGUF and families whose layers have recurrent states: which layers these
// are, and the shapes of their tensors.
#pragma once

#include "models/gguf/gguf_drafts.h"
#include "models/gguf/gguf_families.h"

namespace moracle {

/// GGUF stores decays as -exp(A_log).
void decay_logarithm(std::span<float> values);
void negative_decay(std::span<float> values);

/// The whole numbers of a key by layer. One number counts for each layer. Errors: absent
/// (kBadFile); too few numbers.
Result<std::vector<int64_t>> gguf_layer_numbers(const GgufModel& model, std::string_view key);
/// layer_types from attention.head_count_kv, which is 0 for layers with a recurrent state, and
/// num_key_value_heads from the others. Errors: other layers with different numbers.
Status set_layers_by_kv_heads(GgufModel& model);
/// layer_types from attention.recurrent_layers. Without that key every `period`-th layer is
/// full_attention; 0: sets nothing. The key full_attention_interval precedes `period`.
Status set_recurrent_layers(GgufModel& model, int64_t period = 0);
/// Inverses of both.
void put_kv_heads(GgufDraft& draft, const std::vector<bool>& recurrent, int64_t num_kv_heads);
void put_recurrent_layers(GgufDraft& draft, const std::vector<bool>& recurrent);

/// ssm.inner_size / ssm.time_step_rank: columns of a head. Errors: a remainder.
Result<int64_t> gguf_state_columns(const GgufModel& model);

/// The tensors of Mamba-2 below `module` (".mamba") as the checkpoint has them: vectors of heads
/// and channels, and [channels, 1, taps].
void restore_mamba2_shapes(GgufModel& model, const std::string& module);
/// The inverse: columns of heads, and norms of groups.
void put_mamba2_shapes(GgufDraft& draft, const std::string& module, int64_t num_groups);
/// The convolutions of Kimi Delta Attention, [channels, 1, taps], and A_log in `log_shape`.
void restore_kimi_delta_shapes(GgufModel& model, const std::vector<int64_t>& log_shape);
/// The inverse: [1, channels, 1, taps], and a column of heads.
void put_kimi_delta_shapes(GgufDraft& draft);

/// Renames each tensor whose name ends so.
using GgufTensors = std::map<std::string, Tensors::Entry>;
void rename_ending(GgufTensors& tensors, std::string_view ending, std::string_view to);

}  // namespace moracle
