// Selects and starts the kernels for few tokens of one matrix.
#pragma once

#include "kernels/cuda/device/cuda_queue.h"
#include "kernels/cuda/gemv/gemv_args.h"
#include "kernels/grouped_linear.h"

namespace moracle::cuda {

/// What a block of a linear layer has beside its rings, and how far these may reach.
struct FewDenseShare {
  int64_t sum_bytes;
  int most_stages;  ///< of a ring. Other memory stays free for the kernel after this one.
};
/// Sets how many panels' sums a block keeps at once.
FewDenseShare share_dense(FewArgs& args, DType codes, int multiprocessors);

class FewLaunch {
 public:
  /// Loads the kernels, which graph capture could not do. Requires few_serves.
  static Result<FewLaunch> make(const KernelWeights& weights, const Queue& queue);

  /// y of each slot, or its activated gates and outputs if `activation` is not null. `choice`:
  /// few_choice. `ids_are_there`: see FewArgs; true if there are no ids.
  Status run_rows(const KernelWeights& weights, const Rows& x, bool x_of_tokens, const Matrix& y,
                  const ActivationSpec* activation, const FewSlots& slots, int choice,
                  bool ids_are_there, Stream stream) const;
  /// y of each token: the weighted sum of its slots. Requires few_adds.
  Status run_tokens(const KernelWeights& weights, const Rows& x, const Matrix& y,
                    const FewSlots& slots, Stream stream) const;
  /// True if run_dense is faster than run_rows for this matrix, the only one.
  bool serves_dense(const KernelWeights& weights, int64_t tokens) const;
  /// y of each row of a linear layer. A row's bits do not depend on the others, and are those of
  /// run_normed. Requires serves_dense.
  Status run_dense(const KernelWeights& weights, const Rows& x, const Matrix& y,
                   const FewSlots& slots, Stream stream) const;
  /// True if run_normed serves the input of this matrix, the only one.
  bool serves_norm(const KernelWeights& weights, const NormedInput& x) const;
  /// y of each row of the norm of x. Requires serves_norm.
  Status run_normed(const KernelWeights& weights, const NormedInput& x, const Matrix& y,
                    const FewSlots& slots, Stream stream) const;

 private:
  Status run(const FewKernel (&kernels)[2], bool adds, FewArgs args, const KernelWeights& weights,
             int64_t units, Stream stream, int64_t more_bytes = 0,
             int most_stages = kMostFewStages) const;
  // Returns the blocks that share a panel of few_tokens: two if that makes shares more equal.
  // gpt-oss has 180 panels for 132 multiprocessors: 172 instead of 190 us with 8 tokens in mxfp4
  // (H100).
  int cluster_of(int panels) const;

  FewKernels kernels_{};
  Scheme scheme_;            // product_scheme
  int64_t most_shared_ = 0;  // bytes of a block
  const Queue* queue_ = nullptr;
};

}  // namespace moracle::cuda
