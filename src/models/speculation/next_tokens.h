// Drafts of a layer for multi-token prediction (DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024).
#pragma once

#include <span>
#include <vector>

#include "moracle/model.h"

namespace moracle {

/// Rows of the model's last step, of one sequence.
struct NextTokenRows {
  KvCache* cache;                   ///< of the layer (make_next_token_cache), or null: skip
  int64_t first_row;                ///< in the step
  std::span<const int32_t> tokens;  ///< that follow each of the rows
  int64_t drafts;                   ///< that are wanted after the last of these tokens
};

/// A cache of the layer. It holds one position for each row; positions count from its first row.
Result<KvCache> make_next_token_cache(const Model& model, int64_t capacity);

/// Runs the layer over the rows, then once for each further draft, which follows the drafts before
/// it. The caches keep the positions of the rows. Call it before the model's next forward. Errors:
/// of Model::forward.
Result<std::vector<std::vector<int32_t>>> draft_next_tokens(Model& model,
                                                            std::span<const NextTokenRows> rows);

}  // namespace moracle
