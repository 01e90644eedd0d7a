// How experts of a placed layer come into slots: in stream order, or beside later calls. A slot
// that an expert leaves or enters is on no map, so no call reads it.
#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "placement/placed_moe_state.h"

namespace moracle {

PlacedMoe::State::Slots& PlacedMoe::State::slots_with(int64_t slot) {
  size_t d = slots.size() - 1;
  while (slots[d].first > slot) --d;
  return slots[d];
}

std::vector<ExpertMatrix> PlacedMoe::State::matrices_of(int64_t expert, int64_t slot) {
  const Slots& to = slots_with(slot);
  const MoeAccess::ExpertInSlot one{on_host(expert), slot - to.first};
  return MoeAccess::matrices_of(all, to.moe, {&one, 1});
}

void PlacedMoe::State::set_map(int64_t expert, int64_t slot, bool there) {
  Slots& with = slots_with(slot);
  with.map.on_host[expert] = there ? static_cast<int32_t>(slot - with.first) : -1;
  with.map.block->changed = true;
}

void PlacedMoe::State::cancel(int64_t slot) {
  DevicePair::State& s = shared();
  const auto found = std::find_if(s.pending.begin(), s.pending.end(),
                                  [&](const DevicePair::State::PendingMove& one) {
                                    return one.layer == this && one.move.slot == slot;
                                  });
  if (found == s.pending.end()) return;
  s.pending.erase(found);
  s.budget.end(slot_bytes());
}

void PlacedMoe::State::evict(int64_t slot) {
  const int32_t expert = table.expert_in(slot);
  const bool is_ready = table.state(slot) == ExpertSlots::State::kReady;
  cancel(slot);
  table.clear(slot);
  if (is_ready) set_map(expert, slot, false);
}

Status PlacedMoe::State::arrive(int64_t expert, int64_t slot, Stream stream) {
  // The static scales are those of the host's expert.
  const auto arrived = static_cast<int32_t>(expert);
  if (pool && pool->slot_of(expert) < 0) MORACLE_CHECK(hold({&arrived, 1}));
  Slots& to = slots_with(slot);
  MORACLE_CHECK(MoeAccess::slot_filled(to.moe, slot - to.first, all, on_host(expert),
                                       shared().stream_of(*to.on, stream)));
  set_map(expert, slot, true);
  table.finish(slot);
  ++counts.moves;
  counts.bytes_moved += slot_bytes();
  return {};
}

Status PlacedMoe::State::place(int64_t expert, int64_t slot, Stream stream) {
  DevicePair::State& s = shared();
  const DeviceLock lock = s.device().lock();
  const std::vector<DeviceLock> others = s.lock_others();
  if (table.ready_slot(expert) == slot) return {};
  if (table.slot_of(expert) >= 0) evict(table.slot_of(expert));
  evict(slot);
  MORACLE_CHECK(s.flush_maps(stream));
  table.begin(expert, slot);
  const auto fill = [&]() -> Status {
    const auto one_expert = static_cast<int32_t>(expert);
    MORACLE_CHECK(hold({&one_expert, 1}));
    SlotDevice& to = *slots_with(slot).on;
    const Stream on = s.stream_of(to, stream);
    MORACLE_TRY(const ExpertTransfers::Mark mark, to.transfers->mark(on));
    MORACLE_TRY(const int64_t transfer, to.transfers->begin(matrices_of(expert, slot), mark, on));
    MORACLE_CHECK(to.transfers->wait(transfer, on));
    MORACLE_CHECK(arrive(expert, slot, stream));
    return s.flush_maps(stream);
  };
  Status filled = fill();
  if (!filled) {
    table.clear(slot);
    set_map(expert, slot, false);
  }
  return filled;
}

void PlacedMoe::State::decide() {
  decided = policy.decide(table, kMostMoves, first_slots);
}

int64_t PlacedMoe::State::begin_moves(int64_t most) {
  DevicePair::State& s = shared();
  const int64_t bytes = slot_bytes();
  const int64_t fits =
      s.pending.empty() ? std::max<int64_t>(s.budget.moves_of(bytes), 1) : s.budget.moves_of(bytes);
  most = std::min(most, fits);
  if (s.undecided == this) s.undecided = nullptr;
  if (most <= 0) return 0;
  std::vector<ExpertMove> moves =
      decided ? *std::exchange(decided, std::nullopt) : policy.decide(table, most, first_slots);
  if (static_cast<int64_t>(moves.size()) > most) moves.resize(static_cast<size_t>(most));
  for (const ExpertMove& move : moves) {
    evict(move.slot);
    table.begin(move.expert, move.slot);
    s.budget.begin(bytes);
    s.pending.push_back({this, move, slots_with(move.slot).on});
  }
  return static_cast<int64_t>(moves.size());
}

Status PlacedMoe::place(int64_t expert, int64_t slot, Stream stream) {
  const ExpertSlots& table = state_->table;
  if (expert < 0 || expert >= table.num_experts() || slot < 0 || slot >= table.num_slots()) {
    return Error{
        ErrorKind::kInvalidArgument, "", slots_plan().layer.name,
        str("an expert below ", table.num_experts(), " and a slot below ", table.num_slots()),
        str("it is expert ", expert, " in slot ", slot)};
  }
  if (!state_->is_here(expert)) {
    return Error{ErrorKind::kInvalidArgument, "", slots_plan().layer.name,
                 str("one of the ", host_plan().experts.num_local(), " experts of this rank"),
                 str("expert ", expert, " is another rank's")};
  }
  return state_->place(expert, slot, stream);
}

Status PlacedMoe::evict(int64_t slot, Stream stream) {
  const ExpertSlots& table = state_->table;
  if (slot < 0 || slot >= table.num_slots()) {
    return Error{ErrorKind::kInvalidArgument, "", slots_plan().layer.name,
                 str("a slot below ", table.num_slots()), str("it is slot ", slot)};
  }
  DevicePair::State& s = state_->shared();
  const DeviceLock lock = s.device().lock();
  const std::vector<DeviceLock> others = s.lock_others();
  state_->decided.reset();
  state_->evict(slot);
  return s.flush_maps(stream);
}

std::vector<int32_t> PlacedMoe::placed() const {
  std::vector<int32_t> experts;
  for (int64_t slot = 0; slot < state_->table.num_slots(); ++slot)
    experts.push_back(state_->table.expert_in(slot));
  return experts;
}

Status PlacedMoe::set_adapter(int32_t id, const LoraWeights& adapter) {
  State& state = *state_;  // one that reads from files has a plan without adapters, which refuses
  const DeviceLock lock = state.shared().device().lock();
  const std::vector<DeviceLock> others = state.shared().lock_others();
  MORACLE_CHECK(state.all.set_adapter(id, adapter));
  // An expert on its way gets its adapters when it arrives.
  for (int64_t slot = 0; slot < state.table.num_slots(); ++slot) {
    if (state.table.state(slot) != ExpertSlots::State::kReady) continue;
    const int64_t local = state.on_host(state.table.expert_in(slot));
    State::Slots& to = state.slots_with(slot);
    MORACLE_CHECK(MoeAccess::copy_adapters(to.moe, slot - to.first, state.all, local, {}));
  }
  for (const State::Slots& one : state.slots) MORACLE_CHECK(one.on->device().synchronize());
  return {};
}

Status PlacedMoe::clear_adapter(int32_t id) {
  return set_adapter(id, LoraWeights());
}

void PlacedMoe::set_policy(const PolicyOptions& options) {
  state_->policy = SlotPolicy(state_->table.num_experts(), state_->table.num_slots(), options);
  state_->decided.reset();
}

Result<PackedWeights> PlacedMoe::pack(DescribedWeights&& weights, const Progress& progress) const {
  if (state_->pool) return MoeAccess::check_all(state_->all, std::move(weights), progress);
  return state_->all.pack(std::move(weights), progress);
}

Status PlacedMoe::swap(PackedWeights&& weights, Stream stream) {
  return state_->swap(std::move(weights), stream);
}

Status PlacedMoe::State::swap(PackedWeights&& weights, Stream stream) {
  DevicePair::State& s = shared();
  const DeviceLock lock = s.device().lock();
  const std::vector<DeviceLock> others = s.lock_others();
  MORACLE_CHECK(s.finish_transfers());  // they read the old weights
  if (pool) {
    MORACLE_TRY(DescribedWeights fresh, MoeAccess::take_described(all, std::move(weights)));
    pool->replace(std::move(fresh));
  } else {
    MORACLE_CHECK(all.swap(std::move(weights)));
  }
  s.forget(this);
  // Slots hold the old weights until each is filled: calls must not find them.
  std::vector<std::pair<int32_t, int64_t>> experts;
  for (int64_t slot = 0; slot < table.num_slots(); ++slot) {
    if (table.expert_in(slot) >= 0) experts.emplace_back(table.expert_in(slot), slot);
    cancel(slot);
    table.clear(slot);
  }
  for (Slots& one : slots) {
    std::fill(one.map.on_host.begin(), one.map.on_host.end(), -1);
    one.map.block->changed = true;
  }
  decided.reset();
  MORACLE_CHECK(s.flush_maps(stream));
  for (const auto& [expert, slot] : experts) MORACLE_CHECK(place(expert, slot, stream));
  for (const Slots& one : slots)
    MORACLE_CHECK(one.on->device().synchronize(s.stream_of(*one.on, stream)));
  return {};
}

}  // namespace moracle
