#include "kernels/cuda/gemm_sm90/wgmma_gemm.h"

#include <algorithm>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/gemm_sm80/mma_choice.h"
#include "kernels/cuda/gemm_sm90/row_exponents_plan.h"
#include "kernels/cuda/gemm_sm90/wgmma_plan.h"
#include "kernels/kernel_watch.h"
#include "layout/mma16.h"

namespace moracle::cuda {
namespace {

// The 128 outputs that a warpgroup's panels belong to must share a scale, in both halves of a gated
// matrix.
Fp8Scales fp8_scales(const MatrixShape& shape, bool in_groups) {
  if (!in_groups) return Fp8Scales::kRows;
  const bool blocks = shape.key.group.rows % 128 == 0 && shape.n % 256 == 0;
  return blocks ? Fp8Scales::kBlocks : Fp8Scales::kGroups;
}

WgmmaKernels wgmma_kernels_for(const MatrixShape& shape, const Scheme& scheme) {
  const bool in_groups = mma_in_groups(shape, scheme);
  if (const auto& key = scheme.activation; key && !wgmma_rounds(scheme))
    return key->dtype == DType::kI8 ? wgmma_int8_int8()
                                    : wgmma_fp8_fp8(fp8_scales(shape, in_groups));
  switch (shape.key.dtype) {
    case DType::kF16:
      return wgmma_f16();
    case DType::kI8:
      return wgmma_int8(in_groups);
    case DType::kI4:
      return wgmma_int4();
    case DType::kF8E4M3:
      return mma16::scale_is_exponent(shape) ? wgmma_mxfp8() : wgmma_fp8(in_groups);
    case DType::kF4E2M1:
      return wgmma_mxfp4();
    default:
      return wgmma_bf16();
  }
}

}  // namespace

Result<WgmmaGemm> WgmmaGemm::make(const KernelWeights& weights, const Queue& queue) {
  WgmmaGemm gemm;
  gemm.scheme_ = product_scheme(weights.shape, weights.scheme);
  gemm.kernels_ = wgmma_kernels_for(weights.shape, gemm.scheme_);
  gemm.queue_ = &queue;
  MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue.index));
  const auto& [grouped, dense, shared] = gemm.kernels_;
  const std::span<const WgmmaKernel> one(shared, shared == nullptr ? 0 : 1);
  for (const auto& kernels : {grouped, dense, one}) {
    for (const WgmmaKernel& kernel : kernels)
      MORACLE_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel.kernel),
                                        cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        kernel.shared_bytes));
  }
  const auto boxes = [&](const WgmmaKernel& any) {
    return weight_boxes(mma_args(weights, {}, {}), any.stage_blocks, any.block_bytes,
                        any.scale_bytes);
  };
  MORACLE_TRY(gemm.boxes_, boxes(grouped[0]));  // `shared` has the same stages
  MORACLE_TRY(gemm.dense_boxes_, boxes(dense[0]));
  return gemm;
}

namespace {

// Few tiles leave multiprocessors idle: then the blocks of a cluster share the columns of a tile.
// Each has some stages.
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

const WgmmaKernel& WgmmaGemm::experts_kernel(const KernelWeights& weights, int64_t num_rows) const {
  const auto& kernels = kernels_.grouped;
  return kernels[static_cast<size_t>(
      wgmma_choice(static_cast<int>(kernels.size()), num_rows, weights.num_experts))];
}

Status WgmmaGemm::run(const KernelWeights& weights, const GroupedRows& rows, const Rows& to,
                      const ActivationSpec* activation, bool y_fragments, Stream stream,
                      bool after_plan) const {
  if (rows.num_rows == 0) return {};
  const Matrix& y = to.values;
  const auto& [grouped, dense, shared] = kernels_;
  const auto count = static_cast<int>(grouped.size());
  const bool linear = rows.expert_offsets == nullptr;
  const auto choice =
      static_cast<size_t>(linear ? wgmma_dense_choice(rows.num_rows)
                                 : wgmma_choice(count, rows.num_rows, weights.num_experts));
  if (kernels_are_watched())
    report({name(wgmma_form(scheme_, grouped[choice].rows)), weights.shape});
  WgmmaArgs args{mma_args(weights, rows, y, activation), y_fragments, to.scales, 1, 0, boxes_};
  if (wgmma_rounds(scheme_)) args.x_stride *= 2, args.x_bytes *= 2;  // bf16
  const WgmmaKernel* kernel = &grouped[choice];
  const MmaKernel tile{nullptr, kernel->rows, kernel->outputs, kernel->threads,
                       kernel->shared_bytes};
  const int64_t tiles = mma_tiles(tile, args),
                room = int64_t{kernel->per_sm} * queue_->multiprocessors;
  int64_t blocks = std::min(tiles, room);
  const auto stages = [&](const WgmmaKernel& of) {
    return (args.blocks + of.stage_blocks - 1) / of.stage_blocks;
  };
  const auto share = [&](const WgmmaKernel& with, int cluster) {
    kernel = &with;
    args.cluster = cluster;
    args.part_blocks = (stages(with) + cluster - 1) / cluster * with.stage_blocks;
    blocks = tiles * cluster;
  };
  // Persistent blocks load the next tile while they store one, but they write bf16.
  if (linear && (tiles <= room || y.dtype != DType::kBF16)) {
    const WgmmaKernel& with = dense[choice - 1];
    share(with, cluster_for(tiles, stages(with), queue_->multiprocessors));
    args.boxes = dense_boxes_;
  } else if (!linear && choice == 0 && shared != nullptr && activation == nullptr) {
    // Few large experts: one tile for each of their outputs leaves half of the warps idle.
    const int64_t experts = std::min<int64_t>(args.num_experts, args.num_rows);
    const int64_t usual = experts * ((args.columns + tile.outputs - 1) / tile.outputs);
    const int cluster = cluster_for(usual, stages(*shared), room);
    if (cluster > 1) share(*shared, cluster);
  }
  const auto start = [&](auto launch) {
    return launch(*queue_, stream, "wgmma", kernel->kernel, blocks, args.cluster, kernel->threads,
                  static_cast<size_t>(kernel->shared_bytes), args);
  };
  return after_plan && kernel->loads_ahead
             ? start([](const auto&... all) { return launch_clusters<false>(all...); })
             : start([](const auto&... all) { return launch_clusters(all...); });
}

}  // namespace moracle::cuda
