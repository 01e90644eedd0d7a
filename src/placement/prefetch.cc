#include "placement/prefetch.h"

#include <algorithm>

namespace moracle {

void NextLayerPolicy::observe(std::span<const int32_t> before, std::span<const int32_t> chosen) {
  for (const int32_t i : before) {
    ++used_[i];
    for (const int32_t j : chosen) ++followed_[i * num_experts_ + j];
  }
}

double NextLayerPolicy::expected(std::span<const int32_t> before, int64_t expert) const {
  constexpr int32_t kFewest = 8;  // uses from which a share says something
  double most = 0;
  for (const int32_t i : before) {
    if (used_[i] < kFewest) continue;
    most = std::max(most, static_cast<double>(followed_[i * num_experts_ + expert]) / used_[i]);
  }
  return most;
}

std::vector<ExpertMove> NextLayerPolicy::decide(std::span<const int32_t> before,
                                                const ExpertSlots& slots, const SlotPolicy& scores,
                                                int64_t most) const {
  std::vector<ExpertMove> moves;
  const double saved = costs_.host_us - costs_.slot_us;
  // No expert is used more than once in a call.
  if (most <= 0 || saved <= costs_.move_us) return moves;
  struct Valued {
    double value;
    int32_t index;
  };
  std::vector<Valued> wanted, victims;
  for (int32_t e = 0; e < num_experts_; ++e) {
    const double uses = expected(before, e);
    if (slots.slot_of(e) < 0 && uses * saved > costs_.move_us) wanted.push_back({uses, e});
  }
  if (wanted.empty()) return moves;
  for (int32_t slot = 0; slot < slots.num_slots(); ++slot) {
    if (slots.state(slot) == ExpertSlots::State::kArriving) continue;
    const int32_t expert = slots.expert_in(slot);
    victims.push_back({expert < 0 ? -1 : expected(before, expert) + scores.score(expert), slot});
  }
  const auto by_value = [](const Valued& a, const Valued& b) {
    return a.value != b.value ? a.value < b.value : a.index < b.index;
  };
  std::sort(wanted.begin(), wanted.end(), [&](const Valued& a, const Valued& b) {
    return a.value != b.value ? a.value > b.value : a.index < b.index;
  });
  std::sort(victims.begin(), victims.end(), by_value);
  const size_t count = std::min({wanted.size(), victims.size(), static_cast<size_t>(most)});
  for (size_t i = 0; i < count; ++i) {
    const double lost = std::max(victims[i].value, 0.0);
    const double gained = wanted[i].value + scores.score(wanted[i].index) - lost;
    // Uses that the expert keeps having are the other policy's reason, not a prefetch's.
    if (std::min(gained, wanted[i].value) * saved <= costs_.move_us) break;
    moves.push_back({wanted[i].index, victims[i].index});
  }
  return moves;
}

}  // namespace moracle
