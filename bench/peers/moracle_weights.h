// Weights that every engine is given as floats, in a scheme of this library.
#pragma once

#include <memory>
#include <span>

#include "moracle/checkpoint.h"

namespace moracle::peers {

/// Weights are made of blocks of so many rows: as many as share a scale in the widest scheme.
inline constexpr int64_t kBlockRows = 128;

/// `floats` [rows, k], of which kBlockRows must divide the rows, in the key's numbers: as
/// quantize_weight() has them, and beyond it groups of int4 (largest magnitude / 7, ties to even)
/// and of fp4 (OCP microscaling: the power of two that brings the largest magnitude to [4, 8)).
/// Errors: any other key.
Result<CanonicalMatrix> quantize_pool(std::span<const float> floats, int64_t k,
                                      const QuantKey& key);

/// Experts whose rows are blocks of the pool: expert e's b-th is blocks[e * shape.n / kBlockRows +
/// b].
DescribedMatrix experts_of_blocks(std::shared_ptr<const CanonicalMatrix> pool,
                                  const MatrixShape& shape, const Scheme& scheme,
                                  int64_t num_experts, std::span<const int32_t> blocks);

}  // namespace moracle::peers
