// The tokens of one step. What changes from step to step lies in device memory: kernels that were
// recorded once read the next step's there, and the numbers that launches depend on are few.
#pragma once

#include <span>
#include <vector>

#include "moracle/device.h"

namespace moracle {

/// What kernels take. The numbers are the host's, the pointers the device's.
struct Batch {
  int64_t num_tokens = 0, num_sequences = 0;
  int64_t most_tokens = 0, fewest_tokens = 0;  ///< of any sequence
  int64_t longest = 0;                 ///< no sequence is longer, its tokens of this step included
  int64_t page = 0;                    ///< positions of a page
  const int32_t* ids = nullptr;        ///< [num_tokens]
  const int32_t* positions = nullptr;  ///< [num_tokens]: each in its sequence
  const int32_t* sequences = nullptr;  ///< [num_tokens]: whose it is
  const int32_t* first_token = nullptr;  ///< [num_sequences + 1]: where each begins
  const int32_t* first_page = nullptr;   ///< [num_sequences]: where its pages begin
  std::byte* const* pages = nullptr;     ///< of all sequences, each in the order of positions
};

/// Where a layer's keys and values lie in every page: [page, kv_heads, head_dim] and [page,
/// kv_heads, value_dim].
struct LayerCache {
  DType dtype = DType::kF32;     ///< f32, bf16 or f16
  int64_t keys = 0, values = 0;  ///< bytes from the page's beginning
};

/// One sequence's part of a step.
struct SequenceTokens {
  std::span<const int32_t> ids;
  int64_t position = 0;               ///< of the first: so many are cached already
  std::span<std::byte* const> pages;  ///< enough for all
};

/// Brings the tables of a step to the device, in one piece.
class BatchTable {
 public:
  /// In stream order. A step whose kernels are to be recorded has its `longest` rounded up, so
  /// that the next ones' launches are the same: to 128 · 2^i. Errors: memory.
  Status fill(std::span<const SequenceTokens> sequences, int64_t page, Device& device,
              Stream stream);
  /// Of the last fill.
  const Batch& batch() const { return batch_; }
  /// Tables lie elsewhere than before: what was recorded reads the old place.
  bool moved() const { return moved_; }

 private:
  Batch batch_;
  std::vector<std::byte> host_;
  Buffer device_;
  bool moved_ = false;
};

}  // namespace moracle
