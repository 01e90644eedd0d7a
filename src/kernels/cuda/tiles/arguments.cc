#include "kernels/cuda/tiles/arguments.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "kernels/grouped_linear.h"
#include "layout/mma16.h"

namespace moracle::cuda {
namespace {

// Describes groups of `group_cols` columns in a row of `blocks` blocks of `cols` columns.
ScaleGroups groups_of(int64_t group_cols, int blocks, int64_t count, int cols = mma16::kCols) {
  const int all = std::max(blocks, 1);
  ScaleGroups groups{all, static_cast<int>(count), 0};
  if (group_cols != GroupShape::kAll)
    groups.blocks = static_cast<int>(std::clamp<int64_t>(group_cols / cols, 1, all));
  const auto size = static_cast<uint64_t>(groups.blocks);
  if (size > 1) groups.inverse = static_cast<unsigned>(((uint64_t{1} << 32) + size - 1) / size);
  return groups;
}

}  // namespace

GemmArgs gemm_args(const KernelWeights& weights, const GroupedRows& rows, const Matrix& y,
                   const ActivationSpec* activation) {
  const MatrixShape& shape = weights.shape;
  const auto& key = weights.scheme.activation;
  const Matrix& x = rows.x.values;
  const int64_t x_bytes = key ? 1 : 2;
  GemmArgs a{};
  a.base = weights.buffer.as<uint8_t>();
  a.expert_bytes = static_cast<int64_t>(weights.sections.bytes);
  a.scales_at = static_cast<int64_t>(weights.sections.scales);
  a.zeros_at = static_cast<int64_t>(weights.sections.zero_points);
  a.minimums_at = static_cast<int64_t>(weights.sections.minimums);
  a.bias_at = static_cast<int64_t>(weights.sections.bias);
  a.row_factors_at = static_cast<int64_t>(weights.sections.row_factors);
  a.num_experts = static_cast<int>(weights.num_experts);
  a.panels = static_cast<int>(mma16::num_panels(shape.n));
  a.blocks = static_cast<int>(mma16::num_blocks(shape.k));
  const int sub_blocks = a.sub_blocks = mma16::groups_in_halves(shape) ? 2 : 1;
  a.weight_groups = groups_of(shape.key.group.cols, a.blocks * sub_blocks, mma16::num_groups(shape),
                              mma16::kCols / sub_blocks);
  a.x_groups = groups_of(key && rows.x.num_scales > 1 ? key->group.cols : GroupShape::kAll,
                         a.blocks, rows.x.num_scales);
  a.scale_size = mma16::scale_bytes(shape);
  a.scale_is_exponent = mma16::scale_is_exponent(shape);
  a.has_row_factors = mma16::has_row_factors(shape);
  a.has_zeros = panels_have_zero_points(shape);
  a.has_minimums = shape.key.minimums;
  a.has_bias = shape.bias;
  // Close sums at the gcd of both group sizes: the smaller size where it divides the other. A group
  // of a whole row counts as 0, because the row ends anyway.
  const auto size = [](const ScaleGroups& groups, int blocks) {
    return groups.blocks >= blocks ? 0 : groups.blocks;
  };
  a.close_blocks = std::gcd(size(a.weight_groups, a.blocks * sub_blocks),
                            size(a.x_groups, a.blocks) * sub_blocks);
  if (a.close_blocks == 0) a.close_blocks = std::max(a.blocks * sub_blocks, 1);
  a.x = static_cast<const uint8_t*>(x.data);
  a.x_stride = x.stride * x_bytes;
  a.x_bytes = static_cast<int>((shape.k + 15) / 16 * 16 * x_bytes);
  a.x_aligned = reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && a.x_stride % 16 == 0;
  a.x_scales = rows.x.scales;
  a.row_index = rows.row_index;
  a.offsets = rows.expert_offsets;
  a.num_rows = static_cast<int>(rows.num_rows);
  a.y = y;
  a.columns = static_cast<int>(shape.n);
  if (activation != nullptr) {
    const bool offset = activation->function == Activation::kSwigluOai;
    a.gated = true;
    a.columns /= 2;
    a.sharpness = offset ? activation->alpha : 1;
    a.offset = offset ? activation->beta : 0;
    a.limit = activation->limit > 0 ? activation->limit : std::numeric_limits<float>::infinity();
  }
  a.y_in_pairs =
      y.dtype == DType::kBF16 && y.stride % 2 == 0 && reinterpret_cast<uintptr_t>(y.data) % 4 == 0;
  return a;
}

int64_t most_tiles(const GemmArgs& args, int tile_rows, int tile_outputs) {
  const int64_t of_rows =
      args.num_rows / tile_rows + std::min<int64_t>(args.num_experts, args.num_rows);
  const int outputs = args.gated ? tile_outputs / 2 : tile_outputs;
  return of_rows * ((args.columns + outputs - 1) / outputs);
}

}  // namespace moracle::cuda
