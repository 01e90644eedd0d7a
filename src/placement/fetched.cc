// Calls whose experts move into slots before the device computes: for a bus that delivers an expert
// faster than the host computes it.
#include <algorithm>
#include <numeric>

#include "base/try.h"
#include "placement/placed_moe_state.h"

namespace moracle {

Status PlacedMoe::State::fetch(const int32_t* topk_ids, int64_t choices, Stream on) {
  DevicePair::State& s = shared();
  if (slots.size() > 1 || pool || table.num_slots() == 0) return {};
  std::vector<int32_t> ids(static_cast<size_t>(choices));
  MORACLE_CHECK(s.device().download(ids.data(), topk_ids, ids.size() * sizeof(int32_t), on));
  MORACLE_CHECK(s.device().synchronize(on));
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  // The device reports wrong ids.
  std::erase_if(ids,
                [&](int32_t id) { return id < 0 || id >= table.num_experts() || !is_here(id); });

  std::vector<int64_t> victims(static_cast<size_t>(table.num_slots()));
  std::iota(victims.begin(), victims.end(), 0);
  std::erase_if(victims, [&](int64_t slot) {
    return table.state(slot) == ExpertSlots::State::kArriving ||
           std::binary_search(ids.begin(), ids.end(), table.expert_in(slot));
  });
  const auto worth = [&](int64_t slot) {
    return table.expert_in(slot) < 0 ? -1 : policy.score(table.expert_in(slot));
  };
  std::stable_sort(victims.begin(), victims.end(),
                   [&](int64_t a, int64_t b) { return worth(a) < worth(b); });

  struct Fetch {
    int32_t expert;
    int64_t slot, transfer;
  };
  std::vector<Fetch> fetches;
  for (const int32_t expert : ids) {
    if (table.slot_of(expert) >= 0 || fetches.size() == victims.size()) continue;
    fetches.push_back({expert, victims[fetches.size()], 0});
    evict(fetches.back().slot);
    table.begin(expert, fetches.back().slot);
  }
  if (fetches.empty()) return {};
  ExpertTransfers& transfers = *s.first().transfers;
  const auto fill = [&]() -> Status {
    MORACLE_CHECK(s.flush_maps(on));
    MORACLE_TRY(const ExpertTransfers::Mark mark, transfers.mark(on));
    for (Fetch& one : fetches) {
      MORACLE_TRY(one.transfer, transfers.begin(matrices_of(one.expert, one.slot), mark, on));
    }
    for (const Fetch& one : fetches) {
      MORACLE_CHECK(transfers.wait(one.transfer, on));
      MORACLE_CHECK(arrive(one.expert, one.slot, on));
    }
    return s.flush_maps(on);
  };
  Status filled = fill();
  if (filled) return filled;
  for (const Fetch& one : fetches) {
    if (table.state(one.slot) == ExpertSlots::State::kReady) continue;
    table.clear(one.slot);
    set_map(one.expert, one.slot, false);
  }
  return filled;
}

}  // namespace moracle
