#include "placement/policy.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <tuple>

namespace moracle {

SlotPolicy::SlotPolicy(int64_t num_experts, const PolicyOptions& options)
    : options_(options), decay_(std::exp2(-1 / std::max(options.half_life, 1e-3))) {
  uses_.resize(num_experts);
  for (size_t n = 0; n < powers_.size(); ++n) powers_[n] = std::pow(decay_, static_cast<double>(n));
}

double SlotPolicy::score(int64_t expert) const {
  const Uses& uses = uses_[expert];
  const auto steps = static_cast<size_t>(step_ - uses.step);
  return uses.score *
         (steps < powers_.size() ? powers_[steps] : std::pow(decay_, static_cast<double>(steps)));
}

void SlotPolicy::observe(std::span<const int32_t> ids) {
  ++step_;
  last_.clear();
  const auto num_experts = static_cast<int32_t>(uses_.size());
  for (const int32_t id : ids)
    if (id >= 0 && id < num_experts) last_.push_back(id);
  std::sort(last_.begin(), last_.end());
  last_.erase(std::unique(last_.begin(), last_.end()), last_.end());
  // A slot saves the time of one expert, however many tokens of a decode step choose it: the time
  // is that of reading its weights.
  for (const int32_t id : last_) uses_[id] = {score(id) + 1, step_};
}

std::vector<ExpertMove> SlotPolicy::decide(const ExpertSlots& slots, int64_t most) const {
  std::vector<ExpertMove> moves;
  const double saved = options_.costs.host_us - options_.costs.slot_us;
  if (most <= 0 || saved <= 0 || slots.num_slots() == 0) return moves;

  struct Scored {
    double score;
    int32_t index;
  };
  std::vector<Scored> missed, victims;
  for (const int32_t expert : last_)
    if (slots.slot_of(expert) < 0) missed.push_back({score(expert), expert});
  if (missed.empty()) return moves;
  for (int32_t slot = 0; slot < slots.num_slots(); ++slot) {
    if (slots.state(slot) == ExpertSlots::State::kArriving) continue;
    const int32_t expert = slots.expert_in(slot);
    victims.push_back({expert < 0 ? -1 : score(expert), slot});
  }
  std::sort(missed.begin(), missed.end(), [](const Scored& a, const Scored& b) {
    return std::tuple(-a.score, a.index) < std::tuple(-b.score, b.index);
  });
  const auto by_score = [](const Scored& a, const Scored& b) {
    return std::tuple(a.score, a.index) < std::tuple(b.score, b.index);
  };
  const size_t count = std::min({missed.size(), victims.size(), static_cast<size_t>(most)});
  std::partial_sort(victims.begin(), victims.begin() + static_cast<ptrdiff_t>(count), victims.end(),
                    by_score);
  for (size_t i = 0; i < count; ++i) {
    const double gained = missed[i].score - std::max(victims[i].score, 0.0);
    if (gained * saved <= options_.costs.move_us) break;  // later ones gain less
    moves.push_back({missed[i].index, victims[i].index});
  }
  return moves;
}

void SlotPolicy::start_from(std::span<const int64_t> uses, int64_t num_tokens) {
  if (num_tokens <= 0) return;
  const double steps = options_.half_life / std::numbers::ln2;
  for (size_t e = 0; e < std::min(uses.size(), uses_.size()); ++e)
    uses_[e] = {steps * static_cast<double>(uses[e]) / static_cast<double>(num_tokens), step_};
}

int64_t MoveBudget::moves_of(int64_t expert_bytes) const {
  return expert_bytes <= 0 ? 0 : std::max<int64_t>(bytes_ - in_flight_, 0) / expert_bytes;
}

}  // namespace moracle
