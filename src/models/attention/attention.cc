// Dispatches on the kind of attention. The kinds are in grouped_query.cc and latent_attention.cc.
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

Result<DType> parse_kv_cache(std::string_view text, DType activations) {
  if (text == "auto") return activations;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (text == name(dtype)) return dtype;
  }
  return Error{ErrorKind::kInvalidArgument, "", "--kv-cache", "auto, f32, bf16 or f16",
               str("it is '", text, "'")};
}

}  // namespace moracle
