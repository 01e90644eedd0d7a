// The one operation that every backend serves: a grouped GEMM on the weights of its layout.
#pragma once

#include <memory>

#include "kernels/ops.h"
#include "kernels/weights/kernel_weights.h"
#include "moracle/base.h"

namespace moracle {

/// The token and the weight of each row.
struct Combination {
  const int32_t* row_token = nullptr;  ///< [num_rows], device memory
  const int32_t* row_slot = nullptr;   ///< likewise: index into weights
  const float* weights = nullptr;      ///< [tokens * top_k]; null: each is 1
  bool add = false;                    ///< add to the values that other rows have left there
};

/// A router's part of a step: the norm before it, its logits, and Ops::route.
struct RouterCall {
  Matrix x;                          ///< [tokens, K]
  const AddRmsNorm* norm = nullptr;  ///< computes x first, which is its `out`; null: x is there
  Matrix logits;                     ///< [tokens, num_experts], scratch
  Routing routing;
  const float* correction_bias = nullptr;
  int64_t top_k = 0;
  int32_t* topk_ids = nullptr;
  float* topk_weights = nullptr;
};

/// y[r, n] = Σ_k x[row_index[r], k] · w[e(r), n, k] + bias[e(r), n], e(r) by expert_offsets.
/// Codes are multiplied as integers if the scheme quantizes activations, else as floats. Sums are
/// at least f32. docs/numerics.md says how scales apply. Rows past the last offset are not written.
class GroupedLinear {
 public:
  virtual ~GroupedLinear() = default;
  /// Enqueues. `y` is [num_rows, N] of the activation dtype. Allocates nothing on the device.
  virtual Status run(const GroupedRows& rows, const Matrix& y, Stream stream) = 0;
  /// run for a linear layer, from activations as the caller has them: the kernel brings them to the
  /// form that it reads, in `scratch`, which has room for what `run` would get. Requires
  /// `dense_from` in the plan.
  virtual Status run_dense(const Matrix& x, const Rows& scratch, const Matrix& y, Stream stream);
  /// run, followed by the activation: out [num_rows, I or more], further columns 0. Requires
  /// `activates` in the plan.
  virtual Status run_activated(const GroupedRows& rows, const ActivationSpec& activation,
                               const Matrix& out, Stream stream);
  /// run_activated to `scratch`, [num_rows, I], then quantized by `key` to `out`, as Ops::quantize
  /// does it. Requires `quantizes` in the plan.
  virtual Status run_quantized(const GroupedRows& rows, const ActivationSpec& activation,
                               const Matrix& scratch, const QuantKey& key, const Rows& out,
                               Stream stream);
  /// out[t] = Σ weights · y over the rows of token t, in expert order. Without `add`, tokens
  /// without a row become 0; with `add`, they stay. Requires `combines` in the plan.
  virtual Status run_combined(const GroupedRows& rows, const Combination& combination,
                              const Matrix& out, Stream stream);
  /// True if run_router serves the call. Depends on shapes, the routing and the number of tokens.
  virtual bool serves_router(const RouterCall&) const { return false; }
  /// The call in one kernel, with the bits of add_rms_norm, run and route one after another.
  /// Requires serves_router.
  virtual Status run_router(const RouterCall& call, Stream stream);
  /// True if run_normed serves the input. Depends on shapes and the number of tokens.
  virtual bool serves_norm(const NormedInput&) const { return false; }
  /// The norm, then run on its output, in one kernel, with the bits of the two. Requires
  /// serves_norm.
  virtual Status run_normed(const NormedInput& x, const Matrix& y, Stream stream);
  /// True if run_unquantized serves these rows of a linear layer. Depends on shapes, alignment and
  /// the number of tokens.
  virtual bool quantizes_input(const Matrix&) const { return false; }
  /// run for rows as Ops::quantize gives them, from rows as the caller has them, in one kernel,
  /// with the bits of the two. Requires quantizes_input.
  virtual Status run_unquantized(const Matrix& x, const Matrix& y, Stream stream);
  /// Call after new bytes were enqueued into weights(): refreshes what was derived from the old
  /// ones, in stream order.
  virtual Status weights_replaced(Stream) { return {}; }
  virtual const KernelWeights& weights() const = 0;
};

}  // namespace moracle
