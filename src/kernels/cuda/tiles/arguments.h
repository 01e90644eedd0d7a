// Arguments that all GEMMs and GEMVs on layout mma16 take.
#pragma once

#include <cstdint>

#include "moracle/base.h"

namespace moracle {
struct ActivationSpec;
struct GroupedRows;
struct KernelWeights;
}  // namespace moracle

namespace moracle::cuda {

/// k-blocks of 32 columns that share a scale. Weights whose groups are an odd number of half
/// k-blocks (layout/mma16.h) count in these.
struct ScaleGroups {
  int blocks;
  int count;         ///< scales of a row
  unsigned inverse;  ///< 2^32 / blocks, rounded up; 0 for one k-block
};

struct GemmArgs {
  // Weights of expert e, in layout mma16, begin at base + e · expert_bytes.
  const uint8_t* base;
  int64_t expert_bytes, scales_at, zeros_at, minimums_at, bias_at, row_factors_at;
  int num_experts, panels, blocks;  // panels of 16 outputs, k-blocks of 32 columns
  // If gated, the first half of the panels holds the gates of the second half. The kernel stores
  // silu(min(gate, limit), sharpness) · (clamp(up, ±limit) + offset).
  bool gated;
  float sharpness, limit, offset;
  ScaleGroups weight_groups, x_groups;
  int sub_blocks;  // of a k-block, as weight_groups count them: 1, or 2 halves
  int scale_size;  // bytes: 4 of f32, 1 of exponents and of e4m3
  bool scale_is_exponent, has_row_factors, has_zeros, has_minimums, has_bias;
  int close_blocks;  // k-blocks after which a sum is scaled; counted as in weight_groups
  // Activations: bytes from one row to the next, and bytes of a row that are read.
  const uint8_t* x;
  int64_t x_stride;
  int x_bytes;
  bool x_aligned;  // every row is 16-byte aligned
  const float* x_scales;
  const int32_t *row_index, *offsets;
  int num_rows;
  Matrix y;
  int columns;      // columns of y
  bool y_in_pairs;  // y is bf16, and its rows are 4-byte aligned
};

/// `activation` is applied to the outputs; null: none. The kernel must be able to.
GemmArgs gemm_args(const KernelWeights& weights, const GroupedRows& rows, const Matrix& y,
                   const ActivationSpec* activation = nullptr);

/// Returns the most tiles of `tile_rows` rows and `tile_outputs` outputs that the rows may make.
int64_t most_tiles(const GemmArgs& args, int tile_rows, int tile_outputs);

}  // namespace moracle::cuda
