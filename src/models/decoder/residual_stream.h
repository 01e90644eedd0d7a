// The residual stream of one step. Each layer has two branches, attention and the feed-forward: a
// norm of the stream, the branch, the steps of its output, and their sum with the stream.
#pragma once

#include "models/decoder/layer_input.h"
#include "models/decoder/model_state.h"

namespace moracle {

class ResidualStream {
 public:
  ResidualStream(Model::State& m, const Batch& batch, Stream stream);

  /// The stream becomes the embeddings of the tokens, scaled if the model says so.
  Status embed(const int32_t* ids);
  /// Joins the embeddings with the hidden states that were given: see JoinDescription.
  Status join();
  /// Adds the last branch's output and normalizes the sum: the input of attention. Both run in the
  /// kernel of its first linear layer where one serves.
  Result<LayerInput> attention_input(Layer& layer, int64_t index);
  /// The same for the feed-forward.
  Result<LayerInput> feed_forward_input(Layer& layer, int64_t index);
  /// Runs the steps after a branch on its output.
  Status finish_branch(const OutputSteps& steps, StepOutput output, int64_t layer);
  /// Adds the last branch's output and writes the model's final norm to Activations::normed. With
  /// State::keeps_hidden, Activations::hidden holds the sum.
  Status final_norm();

  /// Where a branch writes its output.
  const Matrix& branch() const { return branch_; }
  /// The sum so far, of all streams. A LayerInput with a norm still has to add the branch.
  const Matrix& hidden() const { return hidden_; }

 private:
  Status norm(const Matrix& x, const Buffer& weight, const Matrix& out);
  Status normalize(const Buffer& weight, StepOutput output, int64_t layer);
  /// The input of a branch behind its norm. With post_norm_residual it is the stream, too.
  LayerInput continue_from_norm();
  /// For layers without a norm: adds the last branch's output; the input is the stream itself.
  Result<LayerInput> sum(StepOutput output, int64_t layer);
  /// With several streams: mixes the last branch's output into them, and writes the norm of their
  /// weighted sum to normed_. `ends`: no branch follows.
  Status normalize_streams(const HyperConnection& hyper, bool ends, const Buffer& weight,
                           StepOutput output, int64_t layer);
  /// With gated residual streams, likewise. Embeddings of n-grams, if there are any, join the
  /// streams before.
  Status mix_streams(GatedResidual& residual, Layer* layer, StepOutput output, int64_t index);
  NormedInput add_norm(const Buffer& weight) const {
    return {{hidden_, branch_, weight.as<float>(), m_.spec.norm_epsilon, normed_}};
  }

  Model::State& m_;
  Ops& ops_;
  const Batch& batch_;
  const Stream stream_;
  // Kernels that start with a norm support RMSNorm only, and store no output for an observer.
  const bool fuses_;
  Matrix hidden_, other_, normed_, branch_;
  int64_t branch_layer_ = -1;  // of the output in branch_; -1: there is none yet
};

}  // namespace moracle
