#include "models/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "base/text.h"
#include "kernels/cpu/vector_ops.h"

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

namespace {

// Logits whose largest is kept: a vocabulary has some hundred blocks of them.
constexpr int64_t kBlock = 256;

}  // namespace

int32_t Sampler::find_best(std::span<const float> logits) {
  const auto count = static_cast<int64_t>(logits.size());
  const cpu::VectorOps& vector = cpu::vector_ops();
  largest_.clear();
  for (int64_t at = 0; at < count; at += kBlock)
    largest_.push_back(vector.largest(&logits[at], std::min(kBlock, count - at)));
  const auto block = std::max_element(largest_.begin(), largest_.end());
  const auto from = logits.begin() + (block - largest_.begin()) * kBlock;
  const auto to = logits.end() - from < kBlock ? logits.end() : from + kBlock;
  const auto best = std::find(from, to, *block);
  return best == to ? 0 : static_cast<int32_t>(best - logits.begin());  // where all are NaN
}

// The top_k largest are among those not below the top_k'th largest block.
void Sampler::keep_top_k(std::span<const float> logits) {
  ids_.clear();
  std::vector<float> order = largest_;
  float least = -std::numeric_limits<float>::infinity();
  if (options_.top_k < static_cast<int64_t>(order.size())) {
    const auto last = order.begin() + options_.top_k - 1;
    std::nth_element(order.begin(), last, order.end(), std::greater<>());
    least = *last;
  }
  for (size_t block = 0; block < largest_.size(); ++block) {
    if (largest_[block] < least) continue;
    const size_t end = std::min((block + 1) * kBlock, logits.size());
    for (size_t id = block * kBlock; id < end; ++id)
      if (!(logits[id] < least)) ids_.push_back(static_cast<int32_t>(id));
  }
  sort(logits, options_.top_k);
}

// Where nothing cuts the candidates off, only those are put in order that can be drawn: from the
// likeliest on until `reach` of all is reached, power of two by power of two.
double Sampler::keep_likely(std::span<const float> logits, float best, double reach) {
  constexpr int kPowers = 64;
  double sums[kPowers] = {}, sum = 0;
  all_weights_.resize(logits.size());
  auto power = [](double weight) {  // of 2^-power ≥ weight; what is smaller or a NaN is last
    return weight > 0x1p-62 ? -std::ilogb(weight) : kPowers - 1;
  };
  for (size_t id = 0; id < logits.size(); ++id) {
    const double weight = all_weights_[id] = weight_of(logits[id], best);
    sums[power(weight)] += weight;
  }
  for (double part : sums) sum += part;
  int last = 0;
  // A little more than asked for: the sum in order rounds otherwise.
  for (double reached = sums[0]; last + 1 < kPowers && reached <= reach * sum * (1 + 1e-9);)
    reached += sums[++last];
  const double least = options_.min_p > 0 && reach >= 1 ? options_.min_p : 0;
  ids_.clear();
  for (size_t id = 0; id < logits.size(); ++id) {
    if (power(all_weights_[id]) <= last && !(all_weights_[id] < least))
      ids_.push_back(static_cast<int32_t>(id));
  }
  sort(logits, static_cast<int64_t>(ids_.size()));
  return sum;
}

double Sampler::weight_of(float logit, float best) const {
  return std::exp((static_cast<double>(logit) - best) / options_.temperature);
}

// Candidates by falling logit, lower id first among equals; the first `count`.
void Sampler::sort(std::span<const float> logits, int64_t count) {
  auto before = [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  if (count < static_cast<int64_t>(ids_.size())) {
    std::nth_element(ids_.begin(), ids_.begin() + count, ids_.end(), before);
    ids_.resize(count);
  }
  std::sort(ids_.begin(), ids_.end(), before);
}

int32_t Sampler::draw(std::span<const float> logits) {
  const int32_t best = find_best(logits);
  if (options_.temperature == 0) return best;
  const double uniform = static_cast<double>(engine_() >> 11) * 0x1p-53;
  const bool top_k = options_.top_k > 0 && options_.top_k < static_cast<int64_t>(logits.size());
  const bool all = !top_k && options_.top_p == 1 && options_.min_p == 0;
  double sum = 0;
  if (top_k)
    keep_top_k(logits);
  else
    sum = keep_likely(logits, logits[best], all ? uniform : options_.top_p);

  weights_.resize(ids_.size());
  for (size_t i = 0; i < ids_.size(); ++i) weights_[i] = weight_of(logits[ids_[i]], logits[best]);
  if (top_k) sum = std::accumulate(weights_.begin(), weights_.end(), 0.0);
  // top_p keeps the shortest run of candidates that reaches it; min_p what is not far below the
  // best.
  size_t kept = ids_.size();
  if (options_.top_p < 1) {
    double reached = 0;
    for (kept = 0; kept < ids_.size() && reached < options_.top_p * sum; ++kept)
      reached += weights_[kept];
  }
  while (kept > 1 && weights_[kept - 1] < options_.min_p * weights_[0]) --kept;

  if (!all) sum = std::accumulate(weights_.begin(), weights_.begin() + kept, 0.0);
  double at = uniform * sum;
  for (size_t i = 0; i + 1 < kept; ++i) {
    at -= weights_[i];
    if (at < 0) return ids_[i];
  }
  return ids_[kept - 1];
}

}  // namespace moracle
