// Finds the kind of attention. The kinds are in grouped_query.cc and latent_attention.cc.
#include "models/attention.h"

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

}  // namespace moracle
