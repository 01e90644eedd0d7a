// Layers of which host memory holds some experts: calls and moves read the others from files first.
#include <algorithm>
#include <numeric>

#include "base/try.h"
#include "kernels/ops.h"
#include "placement/placed_moe_state.h"

namespace moracle {

std::vector<int32_t> PlacedMoe::State::experts_here() const {
  if (!pool) return all.plan().experts.global();
  std::vector<int32_t> experts(static_cast<size_t>(table.num_experts()));
  std::iota(experts.begin(), experts.end(), 0);
  return experts;
}

Status PlacedMoe::State::hold(std::span<const int32_t> experts) {
  if (!pool) return {};
  const auto there = [&](int32_t expert) { return pool->slot_of(expert) >= 0; };
  if (!std::all_of(experts.begin(), experts.end(), there))
    MORACLE_CHECK(shared().finish_transfers());  // they read the host's memory
  const int64_t before = pool->reads();
  Status held = pool->hold(all, experts);
  counts.reads += pool->reads() - before;
  counts.bytes_read += (pool->reads() - before) * MoeAccess::expert_bytes(all);
  return held;
}

Status PlacedMoe::State::compute_from_pool(const Matrix& hidden, const Matrix& sum,
                                           int64_t choices) {
  HostLink& link = *shared().link;
  const std::span<const int32_t> ids(link.ids(), static_cast<size_t>(choices));
  std::vector<int32_t> experts;
  std::copy_if(ids.begin(), ids.end(), std::back_inserter(experts),
               [](int32_t e) { return e >= 0; });
  std::sort(experts.begin(), experts.end());
  experts.erase(std::unique(experts.begin(), experts.end()), experts.end());
  const std::vector<std::vector<int32_t>> shares = pool->shares(experts);
  // Several shares are added in f32, and rounded once.
  auto* const sums = shared().host_sums.as<float>();
  const Matrix whole = Matrix::f32(sums, sum.rows, sum.cols),
               part = Matrix::f32(sums + sum.rows * sum.cols, sum.rows, sum.cols);
  Ops& ops = kernel_device(shared().host->device()).ops();
  for (size_t i = 0; i < shares.size(); ++i) {
    MORACLE_CHECK(hold(shares[i]));
    std::vector<int32_t> places(static_cast<size_t>(table.num_experts()), -1);
    for (const int32_t e : shares[i]) places[e] = static_cast<int32_t>(pool->slot_of(e));
    MORACLE_CHECK(MoeAccess::map_slots(all, places, {}));
    const Matrix& to = shares.size() == 1 ? sum : i == 0 ? whole : part;
    MORACLE_CHECK(all.apply(hidden, {link.ids()}, {link.weights()}, to, {}));
    if (i > 0) MORACLE_CHECK(ops.add(whole, part, {}));
  }
  return shares.size() == 1 ? Status() : ops.convert(whole, sum, {});
}

}  // namespace moracle
