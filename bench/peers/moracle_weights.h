// Quantizes the float weights that all engines share to a scheme of this library.
#pragma once

#include <memory>
#include <span>

#include "moracle/checkpoint.h"

namespace moracle::peers {

/// Rows per block of the weight pool: as many as share a scale in the widest scheme.
inline constexpr int64_t kBlockRows = 128;

/// Quantizes `floats` [rows, k]; kBlockRows must divide the rows. Keys: those of quantize_weight(),
/// groups of int4 (largest magnitude / 7, ties to even), and groups of fp4 (OCP microscaling: the
/// power of two that scales the largest magnitude to [4, 8)). Errors: any other key.
Result<CanonicalMatrix> quantize_pool(std::span<const float> floats, int64_t k,
                                      const QuantKey& key);

/// Experts composed of blocks of the pool: block b of expert e is blocks[e * shape.n / kBlockRows +
/// b].
DescribedMatrix experts_of_blocks(std::shared_ptr<const CanonicalMatrix> pool,
                                  const MatrixShape& shape, const Scheme& scheme,
                                  int64_t num_experts, std::span<const int32_t> blocks);

}  // namespace moracle::peers
