#include "kernels/cuda/gemm_skinny/skinny_plan.h"

#include <algorithm>

#include "kernels/cuda/operands/scaling_plan.h"
#include "layout/mma16.h"

namespace moracle::cuda {
namespace {

// Measured up to one round of an H200's SMs (bench/lab/decode_steps.md). Larger matrices run on
// wgmma, whose CTAs load their next tile while they multiply one.
constexpr int kPlannedSms = 132, kMostSkinnyWaves = 1;
constexpr int kUnitBytes = 512;  // sums of a panel and an octet of tokens

constexpr int round_up(int value, int to) {
  return (value + to - 1) / to * to;
}

// Most groups of `group_cols` columns that a share touches; 0: one scale for a row.
int groups_of_share(int64_t group_cols, int share_blocks, int blocks) {
  if (group_cols == GroupShape::kAll || group_cols >= int64_t{blocks} * mma16::kCols) return 1;
  const int group = static_cast<int>(group_cols / mma16::kCols);
  int most = 0;
  for (int begin = 0; begin < blocks; begin += share_blocks) {
    const int last = std::min(begin + share_blocks, blocks) - 1;
    most = std::max(most, last / group - begin / group + 1);
  }
  return most;
}

// Lays out shared memory.
void lay_out(const MatrixShape& shape, const Scheme& scheme, int octets, SkinnySplit& to) {
  const auto& key = scheme.activation;
  const int blocks = static_cast<int>(mma16::num_blocks(shape.k));
  const int panels = to.tile_panels, rows = 8 * octets;
  const int x_bytes = key ? 1 : 2;
  const bool in_groups = scales_in_groups(shape, scheme);
  const bool zeros = panels_have_zero_points(shape);
  if (in_groups) to.share_groups = groups_of_share(shape.key.group.cols, to.share_blocks, blocks);
  if (in_groups && key && key->dtype == shape.key.dtype)
    to.share_x_groups = groups_of_share(key->group.cols, to.share_blocks, blocks);
  // Rows end in other banks than the rows beside them.
  to.x_row_bytes = to.share_blocks * mma16::kCols * x_bytes + 32 * x_bytes;
  int at = round_up(kSkinnyBarrierBytes, 128);
  const auto take = [&](int bytes) {
    const int begin = at;
    at = round_up(at + bytes, 128);
    return begin;
  };
  to.codes_at =
      take(panels * to.share_blocks * mma16::block_bytes(static_cast<int>(bits(shape.key.dtype))));
  to.scales_at = take(panels * to.share_groups * 64);
  to.zeros_at = take(zeros ? panels * to.share_groups * 16 : 0);
  to.x_at = take(rows * to.x_row_bytes);
  to.x_scales_at = take(to.share_x_groups * rows * 4);
  const int units = (to.tile_panels * octets + to.cluster - 1) / to.cluster;
  to.sums_at = take(units * to.cluster * kUnitBytes);
  to.bytes = at;
}

// CTAs that an SM runs one after another. GPCs have 16 or 18 SMs, some of which larger clusters
// leave idle: an H200 runs 30 clusters of four and 15 of eight at once.
int64_t waves(const MatrixShape& shape, const SkinnySplit& split, int num_sms) {
  const int64_t tiles = (mma16::num_panels(shape.n) + split.tile_panels - 1) / split.tile_panels;
  const int usable = split.cluster > 2 ? num_sms * 10 / 11 : num_sms;
  const int64_t at_once = std::max(usable / split.cluster, 1);
  return (tiles + at_once - 1) / at_once;
}

// True if groups of these columns are whole chunks, a chunk is whole groups, or a row is one.
bool fits_chunks(int64_t group_cols, int64_t k) {
  constexpr int64_t kChunk = kSkinnyChunk * mma16::kCols;
  if (group_cols == GroupShape::kAll || group_cols >= k) return true;
  return group_cols % kChunk == 0 || (kChunk % group_cols == 0 && group_cols >= mma16::kCols);
}

}  // namespace

SkinnySplit skinny_split(const MatrixShape& shape, const Scheme& scheme, int octets, int num_sms,
                         int only_cluster, int only_panels) {
  SkinnySplit best{};
  int64_t best_cost = 0;
  const int blocks = static_cast<int>(mma16::num_blocks(shape.k));
  for (const int cluster : {2, 4, kMostSkinnyCluster}) {
    if (only_cluster > 0 && cluster != only_cluster) continue;
    SkinnySplit next{};
    next.cluster = cluster;
    next.share_blocks = round_up((blocks + cluster - 1) / cluster, kSkinnyChunk);
    next.chunks = next.share_blocks / kSkinnyChunk;
    if (next.chunks > kMostSkinnyChunks) continue;
    if (cluster > 2 && (cluster - 1) * next.share_blocks >= blocks) continue;  // idle CTAs
    for (next.tile_panels = 4; next.tile_panels <= kMostSkinnyWarps; next.tile_panels += 2) {
      if (only_panels > 0 && next.tile_panels != only_panels) continue;
      lay_out(shape, scheme, octets, next);
      if (next.bytes > kMostSkinnyBytes) continue;
      // Loading a k-block of activations takes as long as multiplying it with four panels.
      const int64_t cost =
          waves(shape, next, num_sms) * next.share_blocks * (next.tile_panels + 4) + 8 * cluster;
      if (best.bytes > 0 && cost >= best_cost) continue;
      best = next, best_cost = cost;
    }
  }
  return best;
}

bool skinny_serves(const MatrixShape& shape, const Scheme& scheme) {
  const auto& key = scheme.activation;
  const DType weights = shape.key.dtype;
  // x comes in whole k-blocks, y goes in pairs.
  if (shape.group_index || shape.k % mma16::kCols != 0 || shape.n % 2 != 0) return false;
  if (shape.key.minimums || mma16::groups_in_halves(shape) || mma16::scale_is_exponent(shape) ||
      !fits_chunks(shape.key.group.cols, shape.k))
    return false;
  if (!key) {
    if (weights != DType::kI4 && weights != DType::kI8 && weights != DType::kF8E4M3) return false;
  } else {
    const bool by_token = key->group.cols == GroupShape::kAll;
    const bool in_groups = scales_in_groups(shape, scheme);
    if (!key->dynamic || !fits_chunks(key->group.cols, shape.k)) return false;
    if (key->dtype == DType::kI8) {
      if (weights != DType::kI8 || in_groups || panels_have_zero_points(shape)) return false;
    } else if (weights == DType::kI4) {
      if (!by_token) return false;
    } else if (weights != DType::kF8E4M3) {
      return false;
    }
  }
  for (const int octets : {4, 8}) {
    const SkinnySplit split = skinny_split(shape, scheme, octets, kPlannedSms);
    if (split.bytes == 0 || waves(shape, split, kPlannedSms) > kMostSkinnyWaves) return false;
  }
  return true;
}

CudaForm skinny_form(const Scheme& scheme, int64_t tokens) {
  return {CudaForm::Kernel::kSkinny, mma_products(scheme), 8 * skinny_octets(tokens)};
}

}  // namespace moracle::cuda
