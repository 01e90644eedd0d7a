// One matrix on the kernels of gemm_sm90.
#pragma once

#include <vector>

#include "kernels/cuda/device/cuda_queue.h"
#include "kernels/cuda/gemm_sm90/wgmma_args.h"
#include "kernels/cuda/gemm_sm90/wgmma_plan.h"
#include "kernels/cuda/ops/quantize_vectors.h"
#include "kernels/grouped_linear.h"

namespace moracle::cuda {

/// Order of quantized activations that the kernel for these weights reads.
CodeOrder wgmma_order(const KernelWeights& weights);

struct WgmmaOptions {
  bool y_fragments = false;  ///< rows of y are in fragment order, too
  /// The previous kernel may still write the plan of the rows. Otherwise this kernel may read the
  /// plan before the previous kernel is complete.
  bool after_plan = false;
  /// Scales in groups of x or y lie as [group][row] (scale_rows.h). For x the kernel must prefer
  /// that, or ordered rows.
  bool x_scales_by_group = false, y_scales_by_group = false;
};

class WgmmaLaunch {
 public:
  /// Loads the kernels, which graph capture could not do. Requires wgmma_serves. The weights must
  /// stay where they are. `gated`: `run` gets an activation.
  static Result<WgmmaLaunch> make(const KernelWeights& weights, bool gated, const Queue& queue);

  /// y of each row, or its activated gates and outputs if `activation` is not null. Rows of x are
  /// in fragment order. If y has scales, it holds codes, which needs a kernel that quantizes.
  Status run(const KernelWeights& weights, const GroupedRows& rows, const Rows& y,
             const ActivationSpec* activation, Stream stream,
             const WgmmaOptions& options = {}) const;

  /// True if the kernel without an activation for `num_rows` rows of experts in their order, with
  /// scales in groups, is faster with scales by group.
  bool prefers_scales_by_group(const KernelWeights& weights, int64_t num_rows) const;

  /// True if GEMM 1 is faster on `num_rows` rows that are quantized in the order of experts, with
  /// scales by group, than on gathered tokens.
  bool prefers_ordered_rows(const KernelWeights& weights, int64_t num_rows, int64_t top_k) const;

  /// The kernel for `num_rows` rows of experts.
  const WgmmaKernel& experts_kernel(const KernelWeights& weights, int64_t num_rows) const;

 private:
  WgmmaTiles experts_choice(const KernelWeights& weights, int64_t num_rows) const;
  const WgmmaKernel& kernel_of(WgmmaTiles tiles) const;
  const WgmmaKernel* plain_kernel(WgmmaTiles tiles, bool scales_by_group) const;

  WgmmaKernels kernels_;
  Scheme scheme_;  // product_scheme
  WeightTiles tma_{}, dense_tma_{};
  const Queue* queue_ = nullptr;
};

}  // namespace moracle::cuda
