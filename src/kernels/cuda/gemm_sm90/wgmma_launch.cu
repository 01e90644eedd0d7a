#include "kernels/cuda/gemm_sm90/wgmma_launch.h"

#include <algorithm>
#include <vector>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/gemm_sm90/scale_rows.h"
#include "kernels/cuda/gemm_sm90/wgmma_plan.h"
#include "kernels/cuda/operands/scaling_plan.h"
#include "kernels/cuda/tiles/arguments.h"
#include "kernels/kernel_watch.h"
#include "layout/mma16.h"

namespace moracle::cuda {
namespace {

// Scales in blocks: 128 outputs of a tile must share a scale, or 32 in a matrix with gates, whose
// second half may begin within a block.
WgmmaKernels fp8_kernels(const MatrixShape& shape, const QuantKey& activation, bool in_groups,
                         bool gated) {
  if (!in_groups) return wgmma_fp8_fp8();
  const int64_t rows = shape.key.group.rows, gates = gated ? shape.n / 2 : 0;
  if (rows % 128 == 0 && gates % 128 == 0) return wgmma_fp8_fp8_blocks();
  if (gated && rows % 32 == 0 && gates % 32 == 0) return wgmma_fp8_fp8_blocks_by_32();
  return activation.group.cols == GroupShape::kAll ? wgmma_fp8_fp8_tokens()
                                                   : wgmma_fp8_fp8_groups();
}

// Each k-block is a group, and a stage of four k-blocks has four scales.
bool has_block_groups(const MatrixShape& shape) {
  return mma16::num_groups(shape) > 1 && mma16::group_cols(shape) == mma16::kCols &&
         mma16::num_blocks(shape.k) >= 4 && !panels_have_zero_points(shape);
}

WgmmaKernels wgmma_kernels_for(const MatrixShape& shape, const Scheme& scheme, bool gated) {
  const bool in_groups = scales_in_groups(shape, scheme);
  const WgmmaInput input = wgmma_input(shape, scheme);
  if (input == WgmmaInput::kWideCodes) {
    if (shape.key.dtype == DType::kF4E2M1) return wgmma_nvfp4_fp8_wide();
    return wgmma_multiplies_values(shape) ? wgmma_int4_fp8_wide_values()
                                          : wgmma_int4_fp8_wide_groups();
  }
  if (const auto& key = scheme.activation; key && input == WgmmaInput::kCodes) {
    if (shape.key.dtype == DType::kI4)
      return panels_have_zero_points(shape) ? wgmma_int4_fp8_zeros() : wgmma_int4_fp8();
    if (shape.key.dtype == DType::kF4E2M1) return wgmma_fp4_fp8();
    return key->dtype == DType::kI8 ? wgmma_int8_int8()
                                    : fp8_kernels(shape, *key, in_groups, gated);
  }
  if (wgmma_multiplies_values(shape)) {
    return shape.key.dtype == DType::kI4 ? wgmma_int4_values() : wgmma_int8_values();
  }
  const bool block_groups = has_block_groups(shape);
  switch (shape.key.dtype) {
    case DType::kF16:
      return wgmma_f16();
    case DType::kI8:
      if (block_groups) return wgmma_int8_blocks();
      return in_groups ? wgmma_int8_groups() : wgmma_int8();
    case DType::kI4:
      return block_groups ? wgmma_int4_blocks() : wgmma_int4();
    case DType::kF8E4M3:
      if (mma16::scale_is_exponent(shape)) return wgmma_mxfp8();
      return in_groups ? wgmma_fp8_groups() : wgmma_fp8();
    case DType::kF4E2M1:
      return mma16::has_row_factors(shape) ? wgmma_nvfp4() : wgmma_mxfp4();
    default:
      return wgmma_bf16();
  }
}

}  // namespace

CodeOrder wgmma_order(const KernelWeights& weights) {
  switch (weights.shape.key.dtype) {
    case DType::kI4:
      return CodeOrder::kInt4Fragments;
    case DType::kF4E2M1:
      return CodeOrder::kFp4Fragments;
    default:
      return CodeOrder::kFragments;
  }
}

Result<WgmmaLaunch> WgmmaLaunch::make(const KernelWeights& weights, bool gated,
                                      const Queue& queue) {
  WgmmaLaunch gemm;
  gemm.scheme_ = product_scheme(weights.shape, weights.scheme);
  gemm.kernels_ = wgmma_kernels_for(weights.shape, gemm.scheme_, gated);
  gemm.queue_ = &queue;
  MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue.index));
  const auto& [grouped, dense, split_k, plain_128, plain_two_144, plain_most, by_row, ordered] =
      gemm.kernels_;
  std::vector<const WgmmaKernel*> all{split_k,    plain_128, plain_two_144,
                                      plain_most, by_row,    ordered};
  for (const auto& kernels : {grouped, dense})
    for (const WgmmaKernel& kernel : kernels) all.push_back(&kernel);
  for (const WgmmaKernel* const kernel : all) {
    if (kernel == nullptr) continue;
    MORACLE_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel->kernel),
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      kernel->shared_bytes));
  }
  const auto tma = [&](const WgmmaKernel& any) {
    return weight_tiles(gemm_args(weights, {}, {}), any.stage_blocks, any.block_bytes,
                        any.scale_bytes);
  };
  MORACLE_TRY(gemm.tma_, tma(grouped[0]));  // `split_k` has the same stages
  MORACLE_TRY(gemm.dense_tma_, tma(dense[0]));
  return gemm;
}

namespace {

// With fewer tiles than SMs, split K over the CTAs of a cluster (factor 2, 4 or 8). Each CTA has
// some stages.
int cluster_for(int64_t tiles, int stages, int64_t blocks) {
  constexpr int kLeastStages = 3;
  int cluster = 1;
  while (2 * cluster <= kMostWgmmaCluster && 2 * cluster * tiles <= blocks) {
    const int each = (stages + 2 * cluster - 1) / (2 * cluster);
    if (each < kLeastStages || (2 * cluster - 1) * each >= stages) break;  // the last one has none
    cluster *= 2;
  }
  return cluster;
}

}  // namespace

WgmmaTiles WgmmaLaunch::experts_choice(const KernelWeights& weights, int64_t num_rows) const {
  return wgmma_choice(weights.shape, scheme_, num_rows, weights.num_experts).tiles;
}

const WgmmaKernel& WgmmaLaunch::kernel_of(WgmmaTiles tiles) const {
  return kernels_.grouped[static_cast<size_t>(tiles)];
}

const WgmmaKernel& WgmmaLaunch::experts_kernel(const KernelWeights& weights,
                                               int64_t num_rows) const {
  return kernel_of(experts_choice(weights, num_rows));
}

// Null where a matrix without gates runs the kernel of `grouped`.
const WgmmaKernel* WgmmaLaunch::plain_kernel(WgmmaTiles tiles, bool scales_by_group) const {
  const WgmmaKernel* const kernel = tiles == WgmmaTiles::k128      ? kernels_.plain_128
                                    : tiles == WgmmaTiles::kTwo144 ? kernels_.plain_two_144
                                    : tiles == WgmmaTiles::kMost   ? kernels_.plain_most
                                                                   : nullptr;
  return kernel != nullptr && kernel->scales_by_group && !scales_by_group ? kernels_.by_row
                                                                          : kernel;
}

bool WgmmaLaunch::prefers_scales_by_group(const KernelWeights& weights, int64_t num_rows) const {
  const WgmmaKernel* const plain = plain_kernel(experts_choice(weights, num_rows), true);
  return plain != nullptr && plain->scales_by_group;
}

bool WgmmaLaunch::prefers_ordered_rows(const KernelWeights& weights, int64_t num_rows,
                                       int64_t top_k) const {
  // Ordered rows take top_k times the bytes, and wait for their plan. What the products gain grows
  // with the outputs: 1 to 15 % of Mixtral's layer with 8,192 tokens, nothing where top_k is 4 or 8
  // (bench/lab/fp8_blocks.md).
  constexpr int64_t kLeastOutputs = 4096;
  return kernels_.ordered != nullptr && weights.shape.n >= kLeastOutputs * top_k &&
         experts_kernel(weights, num_rows).quantizes;
}

Status WgmmaLaunch::run(const KernelWeights& weights, const GroupedRows& rows, const Rows& to,
                        const ActivationSpec* activation, Stream stream,
                        const WgmmaOptions& options) const {
  if (rows.num_rows == 0 || weights.num_experts == 0) return {};
  const Matrix& y = to.values;
  const bool linear = rows.expert_offsets == nullptr;
  const WgmmaTiles choice =
      linear ? wgmma_dense_choice(rows.num_rows).tiles : experts_choice(weights, rows.num_rows);
  WgmmaArgs args{
      gemm_args(weights, rows, y, activation), options.y_fragments, to.scales, 1, 0, tma_};
  if (wgmma_input(weights.shape, scheme_) != WgmmaInput::kCodes)
    args.x_stride *= 2, args.x_bytes *= 2;  // bf16
  const auto by_group = static_cast<int>(scale_rows(rows.num_rows, weights.num_experts));
  if (options.x_scales_by_group) args.x_scale_rows = by_group;
  if (options.y_scales_by_group) args.y_scale_rows = by_group;
  const WgmmaKernel* kernel = nullptr;
  if (activation == nullptr && rows.row_index == nullptr && !options.y_fragments)
    kernel = plain_kernel(choice, options.x_scales_by_group);
  if (activation != nullptr && options.x_scales_by_group) kernel = kernels_.ordered;
  if (kernel == nullptr) kernel = &kernel_of(choice);
  const int64_t tiles = most_tiles(args, kernel->rows, kernel->outputs),
                resident = int64_t{kernel->per_sm} * queue_->num_sms;
  int64_t blocks = std::min(tiles, resident);
  const auto stages = [&](const WgmmaKernel& of) {
    return (args.blocks + of.stage_blocks - 1) / of.stage_blocks;
  };
  const auto split_k = [&](const WgmmaKernel& with, int cluster) {
    kernel = &with;
    args.cluster = cluster;
    args.split_blocks = (stages(with) + cluster - 1) / cluster * with.stage_blocks;
    blocks = tiles * cluster;
  };
  // Persistent CTAs load the next tile while they store one, but they write bf16.
  if (linear && (tiles <= resident || y.dtype != DType::kBF16)) {
    const WgmmaKernel& with = kernels_.dense[static_cast<size_t>(choice) - 1];
    split_k(with, cluster_for(tiles, stages(with), queue_->num_sms));
    args.tma = dense_tma_;
  } else if (!linear && choice == WgmmaTiles::k16 && kernels_.split_k != nullptr &&
             activation == nullptr) {
    // Few large experts: one tile for each of their outputs leaves half of the warps idle.
    const int64_t experts = std::min<int64_t>(args.num_experts, args.num_rows);
    const int64_t usual = experts * ((args.columns + kernel->outputs - 1) / kernel->outputs);
    const int cluster = cluster_for(usual, stages(*kernels_.split_k), resident);
    if (cluster > 1) split_k(*kernels_.split_k, cluster);
  }
  if (kernels_are_watched()) {
    CudaForm form = wgmma_form(weights.shape, scheme_, choice);
    form.rows = kernel->rows;  // of the kernel that runs, for comparison with the plan
    report({name(form), weights.shape});
  }
  if (kernel->box_rows > 0) {
    MORACLE_TRY(args.rows, make_tensor_map({args.x,
                                            1,
                                            2,
                                            {args.x_bytes, args.num_rows, 1, 1},
                                            {args.x_stride, 0, 0},
                                            {128, kernel->box_rows, 1, 1},
                                            true}));
  }
  const auto start = [&](auto launch) {
    return launch(*queue_, stream, "wgmma", kernel->kernel, blocks, args.cluster, kernel->threads,
                  static_cast<size_t>(kernel->shared_bytes), args);
  };
  return options.after_plan && kernel->loads_ahead
             ? start([](const auto&... all) { return launch_clusters<false>(all...); })
             : start([](const auto&... all) { return launch_clusters(all...); });
}

}  // namespace moracle::cuda
