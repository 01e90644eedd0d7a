// How experts of a placed layer come into slots: at once, or slice by slice during later calls. A
// slot that an expert leaves or enters is on no map, so no call reads it.
#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "placement/placed_moe_state.h"

namespace moracle {

Status PlacedMoe::State::set_local(int64_t expert, int32_t slot, Stream stream) {
  local[expert] = slot;
  return MoeAccess::map_slots(slots, local, stream);
}

void PlacedMoe::State::cancel(int64_t slot) {
  DevicePair::State& s = shared();
  const auto found = std::find_if(s.pending.begin(), s.pending.end(), [&](const PendingMove& one) {
    return one.layer == this && one.move.slot == slot;
  });
  if (found == s.pending.end()) return;
  s.pending.erase(found);
  s.budget.end(MoeAccess::slot_bytes(slots));
}

Status PlacedMoe::State::evict(int64_t slot, Stream stream) {
  const int32_t expert = table.expert_in(slot);
  const bool is_ready = table.state(slot) == ExpertSlots::State::kReady;
  cancel(slot);
  table.clear(slot);
  return is_ready ? set_local(expert, -1, stream) : Status();
}

Status PlacedMoe::State::fill(int64_t expert, int64_t slot, Stream stream) {
  DevicePair::State& s = shared();
  if (!s.pending.empty()) s.pending.front().next_slice = 0;  // its bytes are overwritten
  for (int64_t slice = 0; slice < MoeAccess::num_slot_slices(all); ++slice) {
    MORACLE_CHECK(MoeAccess::pack_for_slot(all, expert, slice, slots, s.packed.as<std::byte>()));
  }
  return arrive(expert, slot, stream);
}

Status PlacedMoe::State::arrive(int64_t expert, int64_t slot, Stream stream) {
  MORACLE_CHECK(
      MoeAccess::fill_slot(slots, slot, all, expert, shared().packed.as<std::byte>(), stream));
  MORACLE_CHECK(set_local(expert, static_cast<int32_t>(slot), stream));
  table.finish(slot);
  ++counts.moves;
  counts.bytes_moved += MoeAccess::slot_bytes(slots);
  return {};
}

Status PlacedMoe::State::place(int64_t expert, int64_t slot, Stream stream) {
  const DeviceLock lock = shared().device().lock();
  if (table.ready_slot(expert) == slot) return {};
  if (table.slot_of(expert) >= 0) MORACLE_CHECK(evict(table.slot_of(expert), stream));
  MORACLE_CHECK(evict(slot, stream));
  table.begin(expert, slot);
  Status filled = fill(expert, slot, stream);
  if (!filled) {
    table.clear(slot);
    local[expert] = -1;
  }
  return filled;
}

Result<int64_t> PlacedMoe::State::move(int64_t most, Stream stream) {
  DevicePair::State& s = shared();
  const DeviceLock lock = s.device().lock();
  const int64_t bytes = MoeAccess::slot_bytes(slots);
  const int64_t fits =
      s.pending.empty() ? std::max<int64_t>(s.budget.moves_of(bytes), 1) : s.budget.moves_of(bytes);
  const std::vector<ExpertMove> moves = policy.decide(table, std::min(most, fits));
  for (const ExpertMove& move : moves) {
    MORACLE_CHECK(evict(move.slot, stream));
    table.begin(move.expert, move.slot);
    s.budget.begin(bytes);
    s.pending.push_back({this, move});
  }
  return static_cast<int64_t>(moves.size());
}

Status PlacedMoe::State::pack_pending(DevicePair::State& shared) {
  if (shared.pending.empty()) return {};
  PendingMove& first = shared.pending.front();
  const State& layer = *static_cast<const State*>(first.layer);
  return MoeAccess::pack_for_slot(layer.all, first.move.expert, first.next_slice++, layer.slots,
                                  shared.packed.as<std::byte>());
}

Status PlacedMoe::State::arrive_pending(DevicePair::State& shared, Stream stream) {
  if (shared.pending.empty()) return {};
  const PendingMove first = shared.pending.front();
  State& layer = *static_cast<State*>(first.layer);
  if (first.next_slice < MoeAccess::num_slot_slices(layer.all)) return {};
  shared.pending.pop_front();
  shared.budget.end(MoeAccess::slot_bytes(layer.slots));
  Status arrived = layer.arrive(first.move.expert, first.move.slot, stream);
  if (!arrived) layer.table.clear(first.move.slot);
  return arrived;
}

Status PlacedMoe::place(int64_t expert, int64_t slot, Stream stream) {
  const ExpertSlots& table = state_->table;
  if (expert < 0 || expert >= table.num_experts() || slot < 0 || slot >= table.num_slots()) {
    return Error{
        ErrorKind::kInvalidArgument, "", slots_plan().layer.name,
        str("an expert below ", table.num_experts(), " and a slot below ", table.num_slots()),
        str("it is expert ", expert, " in slot ", slot)};
  }
  return state_->place(expert, slot, stream);
}

Status PlacedMoe::evict(int64_t slot, Stream stream) {
  const ExpertSlots& table = state_->table;
  if (slot < 0 || slot >= table.num_slots()) {
    return Error{ErrorKind::kInvalidArgument, "", slots_plan().layer.name,
                 str("a slot below ", table.num_slots()), str("it is slot ", slot)};
  }
  const DeviceLock lock = state_->shared().device().lock();
  return state_->evict(slot, stream);
}

std::vector<int32_t> PlacedMoe::placed() const {
  std::vector<int32_t> experts;
  for (int64_t slot = 0; slot < state_->table.num_slots(); ++slot)
    experts.push_back(state_->table.expert_in(slot));
  return experts;
}

void PlacedMoe::set_policy(const PolicyOptions& options) {
  state_->policy = SlotPolicy(state_->table.num_experts(), options);
}

Result<int64_t> PlacedMoe::move(int64_t most, Stream stream) {
  return state_->move(most, stream);
}

Result<PackedWeights> PlacedMoe::pack(DescribedWeights&& weights, const Progress& progress) const {
  return state_->all.pack(std::move(weights), progress);
}

Status PlacedMoe::swap(PackedWeights&& weights, Stream stream) {
  return state_->swap(std::move(weights), stream);
}

Status PlacedMoe::State::swap(PackedWeights&& weights, Stream stream) {
  const DeviceLock lock = shared().device().lock();
  MORACLE_CHECK(all.swap(std::move(weights)));
  // Slots hold the old weights until each is filled: calls must not find them.
  std::vector<std::pair<int32_t, int64_t>> experts;
  for (int64_t slot = 0; slot < table.num_slots(); ++slot) {
    if (table.expert_in(slot) >= 0) experts.emplace_back(table.expert_in(slot), slot);
    cancel(slot);
    table.clear(slot);
  }
  std::fill(local.begin(), local.end(), -1);
  MORACLE_CHECK(MoeAccess::map_slots(slots, local, stream));
  for (const auto& [expert, slot] : experts) MORACLE_CHECK(place(expert, slot, stream));
  return shared().device().synchronize(stream);
}

}  // namespace moracle
