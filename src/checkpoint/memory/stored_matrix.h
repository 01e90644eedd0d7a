// One matrix of every expert in memory: checked once, read expert by expert.
#pragma once

#include "checkpoint/memory/stored_codes.h"

namespace moracle {

class MemoryMatrix {
 public:
  /// The matrices [n, k] of a scheme. `read`: see StoredExperts. Errors: a tensor that is missing,
  /// unused, or has another dtype or shape than needed; those of `read`.
  static Result<MemoryMatrix> open(const StoredMatrix& stored, Packing packing,
                                   const Scheme& scheme, int64_t n, int64_t k,
                                   const ReadMemory& read);

  const MatrixShape& shape() const { return shape_; }
  int64_t num_experts() const { return weight_.view.shape[0]; }
  int64_t expert_bytes() const;
  /// The matrix of the tensors' expert e. Errors: a number that is not finite; those of `read`.
  Result<CanonicalMatrix> read(int64_t e, ThreadPool& pool) const;
  /// Activation scales of the tensors' experts; empty without them. Errors: not above 0.
  Result<std::vector<float>> input_scales() const;

 private:
  Status check_weight() const;
  Status check_scales() const;
  Status check_others();
  bool transposed() const { return packing_ != Packing::kRows; }
  std::vector<float> in_rows(std::vector<float> scales) const;

  NamedTensor weight_, scales_, zeros_, index_, bias_, input_;
  Packing packing_ = Packing::kRows;
  Scheme scheme_;
  MatrixShape shape_;
};

/// Rows of the matrices of a stored weight. Errors: no tensor of three dimensions (four for fp4
/// blocks).
Result<int64_t> rows_of(const StoredMatrix& stored, Packing packing);

}  // namespace moracle
