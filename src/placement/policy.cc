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

namespace {

struct Scored {
  double score;
  int32_t index;
  bool operator<(const Scored& b) const {
    return std::tuple(score, index) < std::tuple(b.score, b.index);
  }
};

// The slots of one device, those that lose least first.
struct Victims {
  std::vector<Scored> slots;
  size_t next = 0;
  double sum = 0;  // of the scores of its experts, those that arrive too

  double lost() const { return std::max(slots[next].score, 0.0); }
};

}  // namespace

std::vector<ExpertMove> SlotPolicy::decide(const ExpertSlots& slots, int64_t most,
                                           std::span<const int64_t> first_slots) const {
  std::vector<ExpertMove> moves;
  const double saved = options_.costs.host_us - options_.costs.slot_us;
  if (most <= 0 || saved <= 0 || slots.num_slots() == 0) return moves;

  std::vector<Scored> missed;
  for (const int32_t expert : last_)
    if (slots.slot_of(expert) < 0) missed.push_back({-score(expert), expert});
  if (missed.empty()) return moves;
  std::sort(missed.begin(), missed.end());
  const size_t count = std::min(missed.size(), static_cast<size_t>(most));
  std::vector<Victims> devices(std::max<size_t>(first_slots.size(), 1));
  for (size_t d = 0; d < devices.size(); ++d) {
    Victims& device = devices[d];
    const int64_t first = d < first_slots.size() ? first_slots[d] : 0;
    const int64_t end = d + 1 < first_slots.size() ? first_slots[d + 1] : slots.num_slots();
    for (auto slot = static_cast<int32_t>(first); slot < end; ++slot) {
      const int32_t expert = slots.expert_in(slot);
      const double lost = expert < 0 ? -1 : score(expert);
      device.sum += std::max(lost, 0.0);
      if (slots.state(slot) != ExpertSlots::State::kArriving) device.slots.push_back({lost, slot});
    }
    const size_t sorted = std::min(count, device.slots.size());
    std::partial_sort(device.slots.begin(), device.slots.begin() + static_cast<ptrdiff_t>(sorted),
                      device.slots.end());
    device.slots.resize(sorted);
  }
  for (size_t i = 0; i < count; ++i) {
    const double gained = -missed[i].score;
    Victims* best = nullptr;
    for (Victims& device : devices) {
      if (device.next == device.slots.size()) continue;
      if ((gained - device.lost()) * saved <= options_.costs.move_us) continue;
      if (best == nullptr || device.sum - device.lost() < best->sum - best->lost()) best = &device;
    }
    if (best == nullptr) break;  // later ones gain less
    best->sum += gained - best->lost();
    moves.push_back({missed[i].index, best->slots[best->next++].index});
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
