#include "placement/policy.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <tuple>

namespace moracle {

// Horizons of half the slots did best in the traces of bench/lab/placement.md: an expert that moves
// stays about as long.
SlotPolicy::SlotPolicy(int64_t num_experts, int64_t num_slots, const PolicyOptions& options)
    : options_(options),
      decay_(std::exp2(-1 / std::max(options.half_life, 1e-3))),
      horizon_(std::max<int64_t>(num_slots / 2, 8)) {
  uses_.resize(num_experts);
  for (size_t n = 0; n < powers_.size(); ++n) powers_[n] = std::pow(decay_, static_cast<double>(n));
}

size_t SlotPolicy::Worth::bucket(double score) {
  if (score <= 0) return 0;
  const int step = static_cast<int>(std::floor(kPerOctave * std::log2(score))) - kLeast;
  return static_cast<size_t>(std::clamp(step, 0, kBuckets - 1));
}

double SlotPolicy::Worth::of(double score) const {
  constexpr double kAssumed = 8;  // samples of a score that is worth itself
  const Seen& seen = seen_[bucket(score)];
  return (seen.uses + kAssumed * score) / (seen.count + kAssumed);
}

void SlotPolicy::Worth::count(double score, double uses) {
  constexpr double kKept = 0.999;  // of earlier samples, so that a thousand count
  Seen& seen = seen_[bucket(score)];
  seen.uses = kKept * seen.uses + uses;
  seen.count = kKept * seen.count + 1;
}

void SlotPolicy::sample(int32_t expert, bool leaves) {
  samples_.push_back({step_, uses_[expert].count, score(expert), expert, leaves});
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
  for (const int32_t id : last_) uses_[id] = {score(id) + 1, step_, uses_[id].count + 1};
  for (; !samples_.empty() && samples_.front().step + horizon_ <= step_; samples_.pop_front()) {
    const Sample& then = samples_.front();
    const auto uses = static_cast<double>(uses_[then.expert].count - then.uses);
    (then.leaves ? leaves_ : arrives_).count(then.score, uses);
  }
  for (const int32_t id : last_) sample(id, false);
}

bool SlotPolicy::host_is_slower(const ExpertSlots& slots, size_t num_devices) {
  const auto hits = std::count_if(last_.begin(), last_.end(),
                                  [&](int32_t id) { return slots.ready_slot(id) >= 0; });
  const auto misses = static_cast<double>(last_.size()) - static_cast<double>(hits);
  host_us_ = decay_ * host_us_ + misses * options_.costs.host_us;
  slots_us_ = decay_ * slots_us_ +
              static_cast<double>(hits) * options_.costs.slot_us / static_cast<double>(num_devices);
  return host_us_ > slots_us_;
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

  bool frees() const { return slots[next].score < 0; }  // an empty slot
  double lost() const { return std::max(slots[next].score, 0.0); }
};

}  // namespace

std::vector<ExpertMove> SlotPolicy::decide(const ExpertSlots& slots, int64_t most,
                                           std::span<const int64_t> first_slots) {
  std::vector<ExpertMove> moves;
  const double saved = options_.costs.host_us - options_.costs.slot_us;
  if (most <= 0 || saved <= 0 || slots.num_slots() == 0) return moves;
  if (!host_is_slower(slots, std::max<size_t>(first_slots.size(), 1))) return moves;

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
    if (sorted > 0 && !device.frees()) sample(slots.expert_in(device.slots[0].index), true);
  }
  for (size_t i = 0; i < count; ++i) {
    const double score = -missed[i].score, gained = arrives_.of(score);
    Victims* best = nullptr;
    for (Victims& device : devices) {
      if (device.next == device.slots.size()) continue;
      const double lost = device.frees() ? 0 : leaves_.of(device.lost());
      if ((gained - lost) * saved <= options_.costs.move_us) continue;
      if (best == nullptr || device.sum - device.lost() < best->sum - best->lost()) best = &device;
    }
    if (best == nullptr) continue;
    best->sum += score - best->lost();
    moves.push_back({missed[i].index, best->slots[best->next++].index});
  }
  return moves;
}

void SlotPolicy::start_from(std::span<const int64_t> uses, int64_t num_tokens) {
  if (num_tokens <= 0) return;
  const double steps = options_.half_life / std::numbers::ln2;
  for (size_t e = 0; e < std::min(uses.size(), uses_.size()); ++e)
    uses_[e] = {steps * static_cast<double>(uses[e]) / static_cast<double>(num_tokens), step_, 0};
}

// A bus that has delivered everything could have moved more.
void MoveBudget::end_step() {
  bytes_ = in_flight_ == 0 ? std::max(bytes_, 2 * ended_) : std::max(ended_ * 3 / 2, expert_bytes_);
  ended_ = 0;
}

int64_t MoveBudget::moves_of(int64_t expert_bytes) const {
  return expert_bytes <= 0 ? 0 : std::max<int64_t>(bytes_ - in_flight_, 0) / expert_bytes;
}

}  // namespace moracle
