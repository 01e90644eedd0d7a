#include "timing/random_routing.h"

#include <algorithm>
#include <numeric>
#include <random>

namespace moracle::timing {

std::vector<Routed> random_routings(const LayerSpec& spec, int64_t num_tokens, uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::uniform_real_distribution<float> uniform(0.5f, 1);
  std::vector<int32_t> order(spec.num_experts);
  std::iota(order.begin(), order.end(), 0);
  const bool in_turn = num_tokens == 1;
  const int64_t count = in_turn             ? std::max<int64_t>(spec.num_experts / spec.top_k, 1)
                        : num_tokens <= 64  ? 12
                        : num_tokens <= 256 ? 6
                                            : 3;
  std::vector<Routed> routings(count);
  if (in_turn) std::shuffle(order.begin(), order.end(), engine);
  for (int64_t i = 0; i < count; ++i) {
    Routed& routed = routings[i];
    std::vector<bool> hit(spec.num_experts);
    for (int64_t t = 0; t < num_tokens; ++t) {
      // The first top_k of a random order are distinct. Single tokens take consecutive experts of
      // one order.
      for (int64_t j = 0; !in_turn && j < spec.top_k; ++j) {
        std::uniform_int_distribution<int64_t> rest(j, spec.num_experts - 1);
        std::swap(order[j], order[rest(engine)]);
      }
      const float total = static_cast<float>(spec.top_k);
      for (int64_t j = 0; j < spec.top_k; ++j) {
        const int32_t id = order[in_turn ? i * spec.top_k + j : j];
        hit[id] = true;
        routed.ids.push_back(id);
        routed.weights.push_back(uniform(engine) / total);
      }
    }
    routed.distinct = std::count(hit.begin(), hit.end(), true);
  }
  return routings;
}

}  // namespace moracle::timing
