#include "serve/engine/token_score.h"

#include <algorithm>
#include <cmath>

namespace moracle::serve {

TokenScore Scorer::score(std::span<const float> logits, int32_t id, int64_t num_top) {
  std::vector<int32_t> ids(std::clamp<int64_t>(num_top, 1, static_cast<int64_t>(logits.size())));
  largest_.find(logits, ids);
  const double best = logits[ids[0]];
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - best);
  const double normalizer = best + std::log(sum);
  const auto of = [&](int32_t token) { return static_cast<float>(logits[token] - normalizer); };
  TokenScore score{id, of(id), {}};
  ids.resize(std::min<size_t>(ids.size(), static_cast<size_t>(std::max<int64_t>(num_top, 0))));
  for (const int32_t top : ids) score.top.push_back({top, of(top)});
  return score;
}

}  // namespace moracle::serve
