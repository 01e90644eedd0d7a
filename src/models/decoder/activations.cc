#include "models/decoder/activations.h"

#include <algorithm>

#include "kernels/ops.h"
#include "oracle/carve.h"

namespace moracle {

Activations carve_activations(const Description& description, int64_t max_num_tokens, DType dtype,
                              std::byte* base) {
  const DecoderSpec& spec = description.spec;
  size_t attention = 0;
  int64_t selected = 0;
  for (const LayerDescription& layer : description.layers) {
    const AttentionSizes sizes = attention_sizes(layer.attention, max_num_tokens, dtype);
    attention = std::max(attention, sizes.scratch_bytes);
    selected = std::max(selected, sizes.selected);
    if (!layer.ngrams) continue;
    attention =
        std::max(attention, carve_ngrams(layer.ngrams->spec, max_num_tokens, dtype, nullptr).bytes);
  }
  const size_t feed_forward = carve_feed_forward(description, max_num_tokens, dtype, nullptr).bytes;
  Carver carver(base);
  Activations a;
  a.hidden = carver.take_matrix(dtype, max_num_tokens, spec.num_streams * spec.hidden_size);
  a.normed = carver.take_matrix(dtype, max_num_tokens, spec.hidden_size);
  a.branch = carver.take_matrix(dtype, max_num_tokens, spec.hidden_size);
  a.other_hidden =
      carver.take_matrix(dtype, std::min(max_num_tokens, kMostNormedTokens), spec.hidden_size);
  a.hyper = carver.take<float>(
      spec.num_streams > 1 ? max_num_tokens * hyper_floats(spec.num_streams) : 0);
  const int64_t gated = spec.residual_rank > 0 ? spec.num_streams : 0;
  a.gated.normed = carver.take_matrix(dtype, max_num_tokens, gated * spec.hidden_size);
  a.gated.up = carver.take_matrix(dtype, max_num_tokens, gated * spec.hidden_size);
  a.gated.low_rank = carver.take_matrix(dtype, max_num_tokens, spec.residual_rank);
  a.gated.weights = carver.take_matrix(dtype, max_num_tokens, gated);
  a.attention = carver.take<std::byte>(static_cast<int64_t>(attention));
  a.selected = carver.take<int32_t>(max_num_tokens * selected);
  std::byte* scratch = carver.take<std::byte>(static_cast<int64_t>(feed_forward));
  a.feed_forward = carve_feed_forward(description, max_num_tokens, dtype, scratch);
  const OutputShares& shares = description.output_shares;
  a.logits =
      carver.take_matrix(DType::kF32, Model::kMaxLogitRows * shares.size, shares.most_rows());
  const int64_t k = std::min(Model::kMaxTopK, spec.vocab_size);
  a.largest = carver.take<int32_t>(2 * Model::kMaxLogitRows * k * shares.size);
  a.top_k_scratch = carver.take<std::byte>(static_cast<int64_t>(top_k_scratch_bytes(
      Model::kMaxLogitRows, shares.most_rows(), std::min(k, shares.most_rows()), dtype)));
  a.bytes = carver.bytes();
  return a;
}

}  // namespace moracle
