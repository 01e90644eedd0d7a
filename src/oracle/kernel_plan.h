// What the oracle asks the planner of a backend about a matrix, and what it answers: every kernel
// that may run, as values from which the maker makes exactly these kernels.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "moracle/oracle.h"
#include "oracle/forms/kernel_form.h"

namespace moracle {

struct KernelWeights;
class Device;
class FusedExperts;
class GroupedLinear;

/// A kernel with its range.
struct PlannedKernel {
  KernelForm form;
  KernelRange range = {};
  bool fused = false;  ///< takes the layer from its tokens to their output, both matrices at once
};

struct KernelPlan {
  DType input_dtype = DType::kF32;     ///< see MatrixPlan
  std::vector<PlannedKernel> kernels;  ///< those beyond the maximum number of tokens never run
  /// Scratch of the device in bytes. Kernels that run one after another share it.
  int64_t scratch_bytes = 0;
  bool deterministic = false;  ///< the bits of a row do not depend on the other rows
  int product_bits = 24;       ///< see MatrixPlan
  /// Columns whose largest float has product_bits bits, the others fewer; 0: each float has them.
  int64_t product_group = 0;
  std::string reason = {};  ///< see MatrixPlan
  /// May apply the activation function in the epilogue, before it stores the result.
  bool activates = false;
  /// May then quantize the activated result, if the scheme has quantized activations.
  bool quantizes = false;
  /// May add its weighted rows to the output rows of their tokens.
  bool combines = false;
  bool in_chunks = false;  ///< may run on a subset of the rows at a time

  /// True if fused kernels run so many tokens.
  bool fuses(int64_t num_tokens) const;
  /// True if fused kernels run some number of tokens.
  bool fuses() const;
};

/// The inputs of a kernel's plan function.
struct KernelRequest {
  MatrixShape shape;
  Scheme scheme;
  bool deterministic = false;
  bool bf16_activations = false;  ///< see Request
  int64_t max_rows = 0;           ///< maximum activation rows in one run
  /// The activation function after the matrix; null: none.
  const ActivationSpec* activation = nullptr;
  int64_t max_num_tokens = 1;  ///< maximum in one apply
  /// Minimum in one apply. Batched activations always have the planned number of tokens.
  int64_t min_num_tokens = 1;
  /// Maximum activation rows per token: top_k; with the batched format, the number of local
  /// experts.
  int64_t rows_per_token = 1;
  int64_t expert_rows = 1;  ///< maximum of these rows for one expert
  int64_t num_experts = 1;  ///< local experts
  /// Nothing stands between the stages of the layer, so kernels for all of them may run.
  bool fuses = false;
  /// The layer's other matrix, whose weights may be in another scheme; null: there is none.
  const MatrixShape* other = nullptr;
  bool linear = false;  ///< a dense linear layer: one expert, every token once, no row plan
};

/// Entry points of a backend, defined in its kernel file.
struct Kernels {
  /// Present in every build; null only if the build targets another CPU architecture.
  KernelPlan (*plan)(const KernelRequest& request, const Machine& machine);
  /// Makes exactly the kernels that `plan` returned. Null: this build does not contain them.
  Result<std::unique_ptr<GroupedLinear>> (*make)(KernelWeights&& weights, const KernelPlan& plan,
                                                 Device& device);
  /// Makes the fused kernels of the plan, in its order. The matrices must outlive them. Null: the
  /// backend has none, and no plan lists one.
  Result<std::vector<std::unique_ptr<FusedExperts>>> (*fuse)(const GroupedLinear& w13,
                                                             const GroupedLinear& w2,
                                                             const Plan& plan,
                                                             Device& device) = nullptr;
};

}  // namespace moracle
