// The one operation that every backend serves: a grouped GEMM on the weights of its layout.
#pragma once

#include <memory>

#include "kernels/kernel_weights.h"
#include "kernels/ops.h"
#include "moracle/base.h"

namespace moracle {

/// Which token a row belongs to, and how much it counts.
struct Combination {
  const int32_t* row_token = nullptr;  ///< [num_rows], device memory
  const int32_t* row_slot = nullptr;   ///< likewise, into weights
  const float* weights = nullptr;      ///< [tokens * top_k]; nothing: each is 1
  bool add = false;                    ///< to what other rows have left there
};

/// y[r, n] = Σ_k x[row_index[r], k] · w[e(r), n, k] + bias[e(r), n], e(r) by expert_offsets.
/// Codes are multiplied as integers where the scheme quantizes activations, else as floats; sums
/// are at least f32; scales enter as docs/numerics.md says. Rows past the last offset are not
/// written.
class GroupedLinear {
 public:
  virtual ~GroupedLinear() = default;
  /// Enqueues. `y` is [num_rows, N] of the activation dtype. Allocates nothing on the device.
  virtual Status run(const GroupedRows& rows, const Matrix& y, Stream stream) = 0;
  /// The same, and the activation of it: out [num_rows, I or more], further columns 0. Only where
  /// the plan said `activates`.
  virtual Status run_activated(const GroupedRows& rows, const ActivationSpec& activation,
                               const Matrix& out, Stream stream);
  /// The same to `scratch`, [num_rows, I], and that quantized by `key` as Ops::quantize does it to
  /// `out`. Only where the plan said `quantizes`.
  virtual Status run_quantized(const GroupedRows& rows, const ActivationSpec& activation,
                               const Matrix& scratch, const QuantKey& key, const Rows& out,
                               Stream stream);
  /// out[t] = Σ weights · y over the rows of token t, in the order of their experts; tokens without
  /// a row become 0, or stay. Only where the plan said `combines`.
  virtual Status run_combined(const GroupedRows& rows, const Combination& combination,
                              const Matrix& out, Stream stream);
  virtual const KernelWeights& weights() const = 0;
};

}  // namespace moracle
