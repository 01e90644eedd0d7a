// Dispatches on the kind of attention. The kinds are in the other files here.
#include "models/attention/attention.h"

#include "base/text.h"

namespace moracle {

AttentionSizes attention_sizes(const AttentionDescription& attention, int64_t max_num_tokens,
                               DType dtype) {
  return std::visit(
      [&](const auto& kind) { return attention_sizes(kind.spec, max_num_tokens, dtype); },
      attention);
}

std::unique_ptr<Attention> make_attention(const AttentionDescription& attention) {
  return std::visit([](const auto& kind) { return make_attention(kind.spec); }, attention);
}

std::vector<float> by_tap(const std::vector<float>& weights, int64_t kernel) {
  const auto taps = static_cast<size_t>(kernel), cols = weights.size() / taps;
  std::vector<float> turned(weights.size());
  for (size_t c = 0; c < cols; ++c) {
    for (size_t j = 0; j < taps; ++j) turned[j * cols + c] = weights[c * taps + j];
  }
  return turned;
}

Result<DType> parse_kv_cache(std::string_view text, DType activations) {
  if (text == "auto") return activations;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (text == name(dtype)) return dtype;
  }
  return Error{ErrorKind::kInvalidArgument, "", "--kv-cache", "auto, f32, bf16 or f16",
               str("it is '", text, "'")};
}

}  // namespace moracle
