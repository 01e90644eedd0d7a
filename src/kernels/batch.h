// The tokens of one step. Data that changes from step to step lies in device memory, so kernels
// that were recorded once read the next step's data there. Launches depend on few numbers.
#pragma once

#include <span>
#include <vector>

#include "moracle/device.h"

namespace moracle {

/// Arguments of kernels. Numbers are host values; pointers are device pointers.
struct Batch {
  int64_t num_tokens = 0, num_sequences = 0;
  int64_t most_tokens = 0, fewest_tokens = 0;  ///< per sequence
  int64_t longest = 0;           ///< length of the longest sequence, this step's tokens included
  int64_t page = 0;              ///< positions per page
  const int32_t* ids = nullptr;  ///< [num_tokens]
  const int32_t* positions = nullptr;  ///< [num_tokens]: each in its sequence
  /// LongRoPE: each token turns by both sets of frequencies, by one of them at position 0.
  const int32_t *short_positions = nullptr, *long_positions = nullptr;  ///< [num_tokens]
  const float* rotary_factors = nullptr;                                ///< [num_tokens]
  const int32_t* sequences = nullptr;    ///< [num_tokens]: the token's sequence
  const int32_t* first_token = nullptr;  ///< [num_sequences + 1]: first token of each
  const int32_t* first_page = nullptr;   ///< [num_sequences]: index of its first page
  std::byte* const* pages = nullptr;     ///< of all sequences, each in position order
  /// [num_sequences, 2]: a sequence's recurrent state before the step, null for zeros, and the
  /// memory for its state after the step.
  std::byte* const* states = nullptr;
};

/// Location of a layer's keys and values in every page. Ops::cache_by_head tells the order of their
/// positions and heads.
struct LayerCache {
  DType dtype = DType::kF32;     ///< f32, bf16, f16, e4m3, or int8 with scales
  int64_t keys = 0, values = 0;  ///< byte offsets in the page
  int64_t num_heads = 1;         ///< that have keys and values
  int64_t state = 0;             ///< byte offset in a sequence's recurrent state
  /// Byte offsets of f32 [kv_heads, page]: the scales of int8 keys and values.
  int64_t key_scales = 0, value_scales = 0;
  /// A key or value is its e4m3 code times this; 1 for every other type.
  float key_scale = 1, value_scale = 1;
  /// Byte offset and type of the index keys [page, index head_dim] of sparse attention.
  int64_t index_keys = 0;
  DType index_dtype = DType::kF32;
  /// Byte offsets of compressed entries [entries_per_page, head_dim], of `dtype`, and of their
  /// index keys [entries_per_page, index head_dim], of `index_dtype`.
  int64_t entries = 0, entry_keys = 0;
};

/// Compressed attention: entry e stands for positions [e · rate, (e + 1) · rate) of its sequence,
/// and lies in the page of the first one.
struct EntryPlace {
  int64_t page, row;  ///< index of the page in its sequence, row of the page's entries
};
constexpr EntryPlace entry_place(int64_t entry, int64_t rate, int64_t page) {
  const int64_t first = entry * rate;
  return {first / page, first % page / rate};
}
constexpr int64_t entries_per_page(int64_t rate, int64_t page) {
  return (page + rate - 1) / rate;
}

/// Columns of a head as the cache stores them: rows of int8 codes fill whole vectors.
constexpr int64_t cached_columns(DType dtype, int64_t dim) {
  return dtype == DType::kI8 ? (dim + 15) / 16 * 16 : dim;
}
/// Bytes of one position's keys or values of one head, without their scale.
inline int64_t cached_bytes(DType dtype, int64_t dim) {
  return cached_columns(dtype, dim) * bits(dtype) / 8;
}

/// One sequence's part of a step.
struct SequenceTokens {
  std::span<const int32_t> ids;
  int64_t position = 0;               ///< of the first token: the number of cached tokens
  std::span<std::byte* const> pages;  ///< enough for all positions
  bool is_long = false;               ///< turns by its long frequencies
  float rotary_factor = 1;
  std::byte* state_before = nullptr;  ///< see Batch::states
  std::byte* state_after = nullptr;
};

/// Uploads the tables of a step to the device, in one piece.
class BatchTable {
 public:
  /// Fills in stream order. For a step whose kernels are to be recorded, `longest` is rounded up to
  /// 128 · 2^i, so that the next steps have the same launches. Errors: memory.
  Status fill(std::span<const SequenceTokens> sequences, int64_t page, Device& device,
              Stream stream);
  /// The batch of the last fill.
  const Batch& batch() const { return batch_; }
  /// True if the tables moved: recorded kernels still read the old address.
  bool moved() const { return moved_; }

 private:
  Batch batch_;
  std::vector<std::byte> host_;
  Buffer device_;
  bool moved_ = false;
};

}  // namespace moracle
