#include "models/decoder/residual_stream.h"

#include <utility>

#include "base/try.h"
#include "kernels/kernel_device.h"
#include "models/attention/attention.h"

namespace moracle {

ResidualStream::ResidualStream(Model::State& m, const Batch& batch, Stream stream)
    : m_(m),
      ops_(kernel_device(m.workspace->device()).ops()),
      batch_(batch),
      stream_(stream),
      fuses_(!m.observer.on_output && !m.spec.layer_norm && !m.spec.post_norm_residual &&
             m.spec.num_streams == 1),
      hidden_(m.activations.hidden.slice(0, batch.num_tokens)),
      normed_(m.activations.normed.slice(0, batch.num_tokens)),
      branch_(m.activations.branch.slice(0, batch.num_tokens)) {
  const Matrix& other = m.activations.other_hidden;
  if (batch.num_tokens <= other.rows) other_ = other.slice(0, batch.num_tokens);
}

Status ResidualStream::norm(const Matrix& x, const Buffer& weight, const Matrix& out) {
  const auto* const weights = weight.as<float>();
  const float epsilon = m_.spec.norm_epsilon;
  if (!m_.spec.layer_norm) return ops_.rms_norm(x, weights, x.cols, epsilon, out, stream_);
  return ops_.layer_norm(x, weights, weights + x.cols, epsilon, out, stream_);
}

Status ResidualStream::normalize(const Buffer& weight, StepOutput output, int64_t layer) {
  const bool adds = branch_layer_ >= 0;
  if (adds && !m_.spec.layer_norm) {
    MORACLE_CHECK(ops_.add_rms_norm(hidden_, branch_, weight.as<float>(), m_.spec.norm_epsilon,
                                    normed_, stream_));
  } else {
    if (adds) MORACLE_CHECK(ops_.add(hidden_, branch_, stream_));
    MORACLE_CHECK(norm(hidden_, weight, normed_));
  }
  m_.observer.done(StepPart::kNorms);
  if (adds) MORACLE_CHECK(m_.observer.show(StepOutput::kResidualSum, branch_layer_, hidden_));
  return m_.observer.show(output, layer, normed_);
}

Status ResidualStream::embed(const int32_t* ids) {
  const int64_t streams = m_.spec.num_streams;
  MORACLE_CHECK(ops_.embed(m_.embedding, ids, streams > 1 ? branch_ : hidden_, stream_));
  if (streams > 1) {
    MORACLE_CHECK(
        ops_.copy_heads(branch_, 0, hidden_, branch_.cols, streams, branch_.cols, stream_));
  }
  if (m_.embedding_scales.bytes() > 0) {
    const auto* const scales = m_.embedding_scales.as<float>();
    MORACLE_CHECK(ops_.scale_rows(hidden_, scales, hidden_, stream_));
  }
  m_.observer.done(StepPart::kEmbedding);
  return m_.observer.show(StepOutput::kEmbedding, -1, hidden_);
}

Status ResidualStream::join() {
  const Model::State::Join& join = *m_.join;
  const int64_t tokens = hidden_.rows, size = hidden_.cols;
  const Matrix joined = join.joined.slice(0, tokens);
  MORACLE_CHECK(norm(hidden_, join.embedding_norm, columns(joined, 0, size)));
  MORACLE_CHECK(norm(join.given.slice(0, tokens), join.hidden_norm, columns(joined, size, size)));
  return m_.join->matrix->apply(joined, hidden_, stream_);
}

Result<LayerInput> ResidualStream::sum(StepOutput output, int64_t layer) {
  if (branch_layer_ >= 0) {
    MORACLE_CHECK(ops_.add(hidden_, branch_, stream_));
    MORACLE_CHECK(m_.observer.show(StepOutput::kResidualSum, branch_layer_, hidden_));
  }
  m_.observer.done(StepPart::kNorms);
  MORACLE_CHECK(m_.observer.show(output, layer, hidden_));
  return LayerInput{hidden_};
}

Status ResidualStream::normalize_streams(const HyperConnection& hyper, bool ends,
                                         const Buffer& weight, StepOutput output, int64_t layer) {
  const DecoderSpec& spec = m_.spec;
  float* const kept = m_.activations.hyper;
  if (branch_layer_ >= 0) {
    MORACLE_CHECK(ops_.expand_streams(hidden_, branch_, spec.num_streams, kept, stream_));
    MORACLE_CHECK(m_.observer.show(StepOutput::kResidualSum, branch_layer_, hidden_));
  }
  const HyperShape shape{spec.num_streams, spec.sinkhorn_iterations, spec.hyper_epsilon,
                         spec.norm_epsilon};
  MORACLE_CHECK(ops_.collapse_streams(hidden_, hyper.weights(), shape, branch_,
                                      ends ? nullptr : kept, stream_));
  MORACLE_CHECK(norm(branch_, weight, normed_));
  m_.observer.done(StepPart::kNorms);
  return m_.observer.show(output, layer, normed_);
}

Status ResidualStream::mix_streams(GatedResidual& residual, Layer* layer, StepOutput output,
                                   int64_t index) {
  const Activations& a = m_.activations;
  if (branch_layer_ >= 0) {
    const Matrix weights = a.gated.weights.slice(0, hidden_.rows);
    MORACLE_CHECK(ops_.inject_streams(hidden_, branch_, weights, stream_));
    MORACLE_CHECK(m_.observer.show(StepOutput::kResidualSum, branch_layer_, hidden_));
  }
  if (layer != nullptr && layer->ngrams.loaded()) {
    MORACLE_CHECK(
        layer->ngrams.apply(hidden_, batch_, layer->ngram_state, a.attention, ops_, stream_));
  }
  MORACLE_CHECK(residual.mix(hidden_, normed_, a.gated, m_.inverse_streams.as<float>(),
                             m_.spec.norm_epsilon, ops_, stream_));
  m_.observer.done(StepPart::kNorms);
  return m_.observer.show(output, index, normed_);
}

LayerInput ResidualStream::continue_from_norm() {
  if (m_.spec.post_norm_residual) std::swap(hidden_, normed_);
  return LayerInput{m_.spec.post_norm_residual ? hidden_ : normed_};
}

Result<LayerInput> ResidualStream::attention_input(Layer& layer, int64_t index) {
  if (m_.spec.residual_rank > 0) {
    MORACLE_CHECK(mix_streams(layer.attention_residual, &layer, StepOutput::kInputNorm, index));
    return LayerInput{normed_};
  }
  if (m_.spec.num_streams > 1) {
    MORACLE_CHECK(normalize_streams(layer.attention_hyper, false, layer.input_norm,
                                    StepOutput::kInputNorm, index));
    return LayerInput{normed_};
  }
  if (layer.input_norm.bytes() == 0) return sum(StepOutput::kInputNorm, index);
  if (fuses_ && !layer.parallel && branch_layer_ >= 0 && other_.data != nullptr) {
    NormedInput input = add_norm(layer.input_norm);
    // All thread blocks of the kernel read the stream, so the sum goes to the other buffer.
    input.sum = other_;
    if (layer.attention->starts_with_norm(input)) {
      std::swap(hidden_, other_);
      return LayerInput{normed_, input};
    }
  }
  MORACLE_CHECK(normalize(layer.input_norm, StepOutput::kInputNorm, index));
  return continue_from_norm();
}

Result<LayerInput> ResidualStream::feed_forward_input(Layer& layer, int64_t index) {
  if (m_.spec.residual_rank > 0) {
    MORACLE_CHECK(mix_streams(layer.mlp_residual, nullptr, StepOutput::kPostNorm, index));
    return LayerInput{normed_};
  }
  if (m_.spec.num_streams > 1) {
    MORACLE_CHECK(
        normalize_streams(layer.mlp_hyper, false, layer.post_norm, StepOutput::kPostNorm, index));
    return LayerInput{normed_};
  }
  if (layer.parallel) {
    MORACLE_CHECK(sum(StepOutput::kPostNorm, index));
    return LayerInput{normed_};
  }
  if (layer.post_norm.bytes() == 0) return sum(StepOutput::kPostNorm, index);
  if (fuses_ && branch_layer_ >= 0) return LayerInput{normed_, add_norm(layer.post_norm)};
  MORACLE_CHECK(normalize(layer.post_norm, StepOutput::kPostNorm, index));
  return continue_from_norm();
}

Status ResidualStream::finish_branch(const OutputSteps& steps, StepOutput output, int64_t layer) {
  branch_layer_ = layer;
  if (steps.norm.bytes() > 0) MORACLE_CHECK(norm(branch_, steps.norm, branch_));
  if (steps.scales.bytes() > 0)
    MORACLE_CHECK(ops_.scale_rows(branch_, steps.scales.as<float>(), branch_, stream_));
  if (steps.sum_scales.bytes() > 0) {
    for (const Matrix& summand : {hidden_, branch_})
      MORACLE_CHECK(ops_.scale_rows(summand, steps.sum_scales.as<float>(), summand, stream_));
  }
  return m_.observer.show(output, layer, branch_);
}

Status ResidualStream::final_norm() {
  if (m_.spec.residual_rank > 0)
    return mix_streams(m_.final_residual, nullptr, StepOutput::kFinalNorm, -1);
  if (m_.spec.num_streams > 1)
    return normalize_streams(m_.final_hyper, true, m_.final_norm, StepOutput::kFinalNorm, -1);
  MORACLE_CHECK(normalize(m_.final_norm, StepOutput::kFinalNorm, -1));
  const Matrix to = m_.activations.hidden.slice(0, hidden_.rows);
  // The sum lies in the other buffer after an odd number of fused norms.
  if (!m_.keeps_hidden || hidden_.data == to.data) return {};
  return ops_.copy_heads(hidden_, hidden_.cols, to, to.cols, 1, hidden_.cols, stream_);
}

}  // namespace moracle
