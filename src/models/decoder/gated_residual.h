// Gated residual streams (Qwen3.8-Flash-Next): the residual stream is n streams side by side.
//
//   y = norm(streams), each with weights of its own
//   branch input = Σ_i σ(W_up silu(W_down y / n))_i · y_i / n
//   stream_k ← stream_k + 2σ(W_inject y / n)_k · branch output
#pragma once

#include "kernels/ops.h"
#include "models/description.h"
#include "models/loader.h"

namespace moracle {

/// Memory of a step: [tokens, …].
struct GatedResidualScratch {
  Matrix normed, up;  ///< of all streams
  Matrix low_rank;
  Matrix weights;  ///< [tokens, n]: of the branch that runs
};

/// RMSNorm of each stream of `size` columns, with weights of its own. x and out may be the same.
Status norm_streams(const Matrix& streams, const float* weights, int64_t size, float epsilon,
                    const Matrix& out, Ops& ops, Stream stream);

class GatedResidual {
 public:
  Status load(GatedResidualDescription&& from, Loader& loader);
  bool loaded() const { return down_.has_value(); }
  /// Writes the input of a branch to `out`, and what inject() needs to scratch.weights. `inverse`
  /// [tokens]: 1 / n.
  Status mix(const Matrix& streams, const Matrix& out, const GatedResidualScratch& scratch,
             const float* inverse, float epsilon, Ops& ops, Stream stream);

 private:
  Buffer norm_;
  std::optional<AdaptedLinear> down_, up_;
  std::optional<AdaptedLinear> inject_;  // empty at the end of a model
};

}  // namespace moracle
