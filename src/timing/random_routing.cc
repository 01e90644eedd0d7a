#include "timing/random_routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace moracle::timing {

namespace {

// Puts the experts of one token first in `order`, drawn without replacement.
class Draw {
 public:
  Draw(const LayerSpec& spec, double zipf, std::mt19937_64& engine) : top_k_(spec.top_k) {
    order_.resize(spec.num_experts);
    std::iota(order_.begin(), order_.end(), 0);
    if (zipf <= 0) return;
    std::vector<int32_t> popular = order_;
    std::shuffle(popular.begin(), popular.end(), engine);
    weights_.resize(order_.size());
    for (size_t r = 0; r < popular.size(); ++r)
      weights_[popular[r]] = std::pow(static_cast<double>(r + 1), -zipf);
  }

  const std::vector<int32_t>& token(std::mt19937_64& engine) {
    weights_.empty() ? uniform(engine) : weighted(engine);
    return order_;
  }

 private:
  void uniform(std::mt19937_64& engine) {
    for (int64_t j = 0; j < top_k_; ++j) {
      std::uniform_int_distribution<int64_t> rest(j, static_cast<int64_t>(order_.size()) - 1);
      std::swap(order_[j], order_[rest(engine)]);
    }
  }
  // Weighted sampling without replacement: sort by exponential variates whose rates are the
  // weights.
  void weighted(std::mt19937_64& engine) {
    std::exponential_distribution<double> clock;
    rings_.resize(order_.size());
    for (size_t e = 0; e < rings_.size(); ++e) rings_[e] = clock(engine) / weights_[e];
    std::partial_sort(order_.begin(), order_.begin() + top_k_, order_.end(),
                      [&](int32_t a, int32_t b) { return rings_[a] < rings_[b]; });
  }

  int64_t top_k_;
  std::vector<int32_t> order_;
  std::vector<double> weights_, rings_;
};

}  // namespace

std::vector<Routed> random_routings(const LayerSpec& spec, int64_t num_tokens, uint64_t seed,
                                    double zipf) {
  std::mt19937_64 engine(seed);
  std::uniform_real_distribution<float> uniform(0.5f, 1);
  const bool round_robin = num_tokens == 1 && zipf <= 0;
  const int64_t count = num_tokens == 1     ? std::max<int64_t>(spec.num_experts / spec.top_k, 1)
                        : num_tokens <= 64  ? 12
                        : num_tokens <= 256 ? 6
                                            : 3;
  Draw draw(spec, zipf, engine);
  std::vector<int32_t> permutation(spec.num_experts);
  std::iota(permutation.begin(), permutation.end(), 0);
  if (round_robin) std::shuffle(permutation.begin(), permutation.end(), engine);
  std::vector<Routed> routings(count);
  for (int64_t i = 0; i < count; ++i) {
    Routed& routed = routings[i];
    std::vector<bool> hit(spec.num_experts);
    for (int64_t t = 0; t < num_tokens; ++t) {
      const int32_t* const chosen =
          round_robin ? permutation.data() + i * spec.top_k : draw.token(engine).data();
      for (int64_t j = 0; j < spec.top_k; ++j) {
        hit[chosen[j]] = true;
        routed.ids.push_back(chosen[j]);
        routed.weights.push_back(uniform(engine) / static_cast<float>(spec.top_k));
      }
    }
    routed.distinct = std::count(hit.begin(), hit.end(), true);
  }
  return routings;
}

}  // namespace moracle::timing
