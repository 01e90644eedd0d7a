// The input of attention or of a feed-forward.
#pragma once

#include <optional>

#include "kernels/linear_call.h"
#include "models/decoder/step_observer.h"

namespace moracle {

/// Rows, or the norm that computes them: the first linear layer then runs it, in one kernel if it
/// has one.
struct LayerInput {
  Matrix x;                              ///< [tokens, hidden_size]
  std::optional<NormedInput> norm = {};  ///< computes x; none: x is computed

  /// The call of a linear layer with this input.
  LinearCall call(const Matrix& out) const {
    return norm ? LinearCall{*norm, out} : LinearCall{LinearCall::Raw{x}, out};
  }
  /// Computes x by itself, for a module without such a linear layer.
  Status compute(Ops& ops, Stream stream, const StepObserver& observer) {
    if (!norm) return {};
    const AddRmsNorm& add = norm->norm;
    MORACLE_CHECK(ops.add_rms_norm(add.x, add.y, add.weight, add.epsilon, add.out, stream));
    norm.reset();
    observer.done(StepPart::kNorms);
    return {};
  }
};

}  // namespace moracle
