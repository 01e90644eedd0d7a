// Callbacks for the parts of a step and their outputs.
#pragma once

#include <functional>
#include <string_view>

#include "moracle/base.h"

namespace moracle {

/// The parts of a step for timing.
enum class StepPart {
  kEmbedding,
  kNorms,
  kAttentionLinears,
  kAttention,
  kRouter,
  kExperts,
  kSharedExpert,
  kOutput,
};

/// The values that a step computes for each token.
enum class StepOutput {
  kEmbedding,
  kInputNorm,
  kAttention,
  kResidualSum,
  kPostNorm,
  kExperts,
  kMlp,
  kFinalNorm,
};

constexpr std::string_view name(StepPart part) {
  constexpr std::string_view kNames[] = {"embedding", "norms",   "attention linears", "attention",
                                         "router",    "experts", "shared expert",     "output"};
  return kNames[static_cast<int>(part)];
}
constexpr std::string_view name(StepOutput output) {
  constexpr std::string_view kNames[] = {"embedding",
                                         "norm before attention",
                                         "attention",
                                         "residual sum",
                                         "norm after attention",
                                         "experts",
                                         "mlp",
                                         "final norm"};
  return kNames[static_cast<int>(output)];
}

struct StepObserver {
  /// Called when a part has been enqueued. On a CPU, the part is then done. Empty: no callback.
  std::function<void(StepPart)> on_part;
  /// Called with each output; `layer` is -1 outside of layers. An error ends the step. Empty: no
  /// callback, and fused kernels may not store the output.
  std::function<Status(StepOutput, int64_t layer, const Matrix& values)> on_output;

  bool watches() const { return on_part || on_output; }
  void done(StepPart part) const {
    if (on_part) on_part(part);
  }
  Status show(StepOutput output, int64_t layer, const Matrix& values) const {
    return on_output ? on_output(output, layer, values) : Status();
  }
};

}  // namespace moracle
