// Sends tokens straight to their experts in the batched format, and the results back. The host
// decides nothing, so a graph can record it.
#pragma once

#include <algorithm>
#include <compare>

#include "moracle/moe.h"
#include "moracle/parallel.h"
#include "quant/rows.h"

namespace moracle {

/// The sizes of a layer's batches, equal on every rank. Expert e is on rank e / num_local(ranks).
struct BatchShape {
  int64_t num_experts = 0, top_k = 0, hidden_size = 0;
  int64_t max_tokens = 0;  ///< of one rank in a call
  DType result = DType::kBF16;
  DType row = DType::kBF16;  ///< a token on its way to the experts: floats or codes,
  int64_t cols = 0;
  int64_t num_scales = 0;  ///< and the f32 scales of codes

  int64_t num_local(int64_t ranks) const { return num_experts / ranks; }
  /// Rows of one local expert in a batch.
  int64_t expert_rows(int64_t ranks) const { return ranks * max_tokens; }
  int64_t slots(int64_t ranks) const { return num_local(ranks) * expert_rows(ranks); }
  /// The most tokens that all experts of a rank get.
  int64_t most_rows(int64_t ranks) const {
    return std::min(slots(ranks), ranks * max_tokens * top_k);
  }
  auto operator<=>(const BatchShape&) const = default;
};

/// Results of experts one after another, as GEMM 2 writes them.
struct ExpertResults {
  Matrix rows;
  const int32_t* row_slot = nullptr;  ///< the row of the batch of each result, device memory
  const int32_t* count = nullptr;     ///< the number of results, device memory
};

class ExpertBatches {
 public:
  virtual ~ExpertBatches() = default;
  ExpertBatches() = default;
  ExpertBatches(const ExpertBatches&) = delete;
  ExpertBatches& operator=(const ExpertBatches&) = delete;
  /// The most tokens of a rank that one call can send.
  virtual int64_t max_tokens() const = 0;
  /// Makes what calls of this shape use. Every rank calls it. Errors: a shape that cannot be
  /// served, with the reason; the library's; memory.
  virtual Status prepare(const BatchShape& shape) = 0;
  /// batch [slots], with the rows of local expert e from e * expert_rows on, and counts
  /// [num_local]. `tokens` are those of this rank, with ids [tokens, top_k]; -1 sends nothing.
  virtual Status dispatch(const BatchShape& shape, const Rows& tokens, TopkIds topk_ids,
                          const Rows& batch, int32_t* counts, Stream stream) = 0;
  /// output[t] = Σ_j topk_weights[t, j] · result of token t's j-th expert. Moves the results to
  /// their rows of `batch` [slots, hidden_size] first; no rows: they are there. Follows dispatch
  /// with the same ids.
  virtual Status combine(const BatchShape& shape, const ExpertResults& results, TopkIds topk_ids,
                         TopkWeights topk_weights, const Matrix& batch, const Matrix& output,
                         Stream stream) = 0;
};

}  // namespace moracle
