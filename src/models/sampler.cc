#include "models/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/text.h"

namespace moracle {

Status check(const SamplingOptions& options) {
  auto wrong = [](const char* option, const char* need, double fact) {
    return Error{ErrorKind::kInvalidArgument, "", option, need, str("it is ", fact)};
  };
  if (!(options.temperature >= 0) || !std::isfinite(options.temperature)) {
    return wrong("--temperature", "a number of at least 0", options.temperature);
  }
  if (options.top_k < 0) return wrong("--top-k", "at least 0", static_cast<double>(options.top_k));
  if (!(options.top_p > 0 && options.top_p <= 1))
    return wrong("--top-p", "a number above 0, up to 1", options.top_p);
  if (!(options.min_p >= 0 && options.min_p <= 1))
    return wrong("--min-p", "a number from 0 to 1", options.min_p);
  return {};
}

int32_t Sampler::draw(std::span<const float> logits) {
  const auto best = std::max_element(logits.begin(), logits.end());
  if (options_.temperature == 0) return static_cast<int32_t>(best - logits.begin());

  // Candidates by falling logit, lower id first among equals.
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  auto before = [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  if (options_.top_k > 0 && options_.top_k < static_cast<int64_t>(ids.size())) {
    std::nth_element(ids.begin(), ids.begin() + options_.top_k, ids.end(), before);
    ids.resize(options_.top_k);
  }
  std::sort(ids.begin(), ids.end(), before);

  std::vector<double> weights(ids.size());
  double sum = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    sum += weights[i] =
        std::exp((static_cast<double>(logits[ids[i]]) - *best) / options_.temperature);
  }
  // top_p keeps the shortest run of candidates that reaches it; min_p what is not far below the
  // best.
  size_t kept = ids.size();
  if (options_.top_p < 1) {
    double reached = 0;
    for (kept = 0; kept < ids.size() && reached < options_.top_p * sum; ++kept)
      reached += weights[kept];
  }
  while (kept > 1 && weights[kept - 1] < options_.min_p * weights[0]) --kept;

  sum = std::accumulate(weights.begin(), weights.begin() + kept, 0.0);
  double at = static_cast<double>(engine_() >> 11) * 0x1p-53 * sum;
  for (size_t i = 0; i + 1 < kept; ++i) {
    at -= weights[i];
    if (at < 0) return ids[i];
  }
  return ids[kept - 1];
}

}  // namespace moracle
