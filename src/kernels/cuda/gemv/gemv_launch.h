// Selects and starts the GEMV kernels of one matrix.
#pragma once

#include "kernels/cuda/device/cuda_queue.h"
#include "kernels/cuda/gemv/gemv_args.h"
#include "kernels/grouped_linear.h"

namespace moracle::cuda {

/// Limits of a CTA of a linear layer: memory for its sums, and stages of its rings.
struct LinearShare {
  int64_t sum_bytes;
  int most_stages;  ///< of a ring: the next kernel needs some shared memory
};
/// Sets how many panels' sums a CTA keeps at once.
LinearShare share_dense(GemvArgs& args, const MatrixShape& shape, const Scheme& scheme,
                        int num_sms);

class GemvLaunch {
 public:
  /// Loads the kernels, which graph capture could not do. Requires gemv_serves.
  static Result<GemvLaunch> make(const KernelWeights& weights, const Queue& queue);

  /// y of each slot, or its activated gates and outputs if `activation` is not null. `choice`:
  /// gemv_choice. `ids_are_there`: see GemvArgs; true if there are no ids.
  Status run_rows(const KernelWeights& weights, const Rows& x, bool x_of_tokens, const Matrix& y,
                  const ActivationSpec* activation, const GemvSlots& slots, int choice,
                  bool ids_are_there, Stream stream) const;
  /// y of each token: the weighted sum of its slots. Requires gemv_combines.
  Status run_tokens(const KernelWeights& weights, const Rows& x, const Matrix& y,
                    const GemvSlots& slots, Stream stream) const;
  /// True if run_dense is faster than run_rows for this matrix, the only one.
  bool serves_dense(const KernelWeights& weights, int64_t tokens) const;
  /// y of each row of a linear layer. A row's bits do not depend on the others, and are those of
  /// run_normed. Requires serves_dense.
  Status run_dense(const KernelWeights& weights, const Rows& x, const Matrix& y,
                   const GemvSlots& slots, Stream stream) const;
  /// True if run_normed serves the input of this matrix, the only one.
  bool serves_norm(const KernelWeights& weights, const NormedInput& x) const;
  /// y of each row of the norm of x. Requires serves_norm.
  Status run_normed(const KernelWeights& weights, const NormedInput& x, const Matrix& y,
                    const GemvSlots& slots, Stream stream) const;

 private:
  Status run(const GemvKernel (&kernels)[2], bool adds, GemvArgs args, const KernelWeights& weights,
             int64_t units, Stream stream, int64_t more_bytes = 0,
             int most_stages = kMostRingStages) const;
  // Returns the CTAs that split K of a panel of gemv_combine: two if that makes shares more equal.
  // gpt-oss has 180 panels for 132 SMs: 172 instead of 190 us with 8 tokens in mxfp4
  // (H100).
  int cluster_of(int panels) const;

  GemvKernels kernels_{};
  Scheme scheme_;            // product_scheme
  int64_t most_shared_ = 0;  // bytes of a CTA
  const Queue* queue_ = nullptr;
};

}  // namespace moracle::cuda
