// The times that placement depends on, measured on a loaded layer.
#include <algorithm>
#include <random>

#include "base/try.h"
#include "placement/call_ways.h"
#include "placement/placed_moe_state.h"

namespace moracle {
Result<double> PlacedMoe::State::host_us(int64_t num_tokens) {
  HostLink& link = *shared().link;
  const Plan& plan = all.plan();
  std::vector<int32_t> experts = experts_here();
  const int64_t cols = plan.layer.hidden_size, top_k = plan.layer.top_k;
  const int64_t choices = num_tokens * top_k;
  std::mt19937_64 engine(1);
  for (int64_t i = 0; i < choices; ++i) {
    const auto at = static_cast<size_t>(i % top_k);
    link.ids()[i] = -1, link.weights()[i] = 0;
    if (at >= experts.size()) continue;
    // Distinct experts of a token, drawn evenly.
    std::swap(experts[at], experts[at + engine() % (experts.size() - at)]);
    link.ids()[i] = experts[at];
  }
  const auto rows_at = [&](void* data) {
    return Matrix{data, plan.activation_dtype, num_tokens, cols, cols};
  };
  std::fill_n(link.hidden(), num_tokens * cols * bits(plan.activation_dtype) / 8, std::byte{});
  double least = 0;
  for (int run = 0; run < 3; ++run) {
    const auto start = Clock::now();
    const Matrix hidden = rows_at(link.hidden()), sum = rows_at(link.sum());
    if (pool)
      MORACLE_CHECK(compute_from_pool(hidden, sum, choices));
    else
      MORACLE_CHECK(all.apply(hidden, {link.ids()}, {link.weights()}, sum, {}));
    const double us = us_since(start);
    least = run == 0 ? us : std::min(least, us);
  }
  return least;
}

Result<double> PlacedMoe::State::slot_us() {
  Slots& there = slots.front();
  const Plan& plan = there.moe.plan();
  std::vector<int32_t> ids(static_cast<size_t>(plan.layer.top_k), -1);
  int64_t count = 0;
  for (int64_t slot = 0; slot < there.num_slots() && count < plan.layer.top_k; ++slot)
    if (table.state(slot) == ExpertSlots::State::kReady) ids[count++] = table.expert_in(slot);
  if (count == 0) return 0;
  Device& device = shared().device();
  const int64_t cols = plan.layer.hidden_size;
  const std::vector<std::byte> zeros(
      static_cast<size_t>(std::max(cols * bits(plan.activation_dtype) / 8, plan.layer.top_k * 4)));
  const size_t id_bytes = ids.size() * sizeof(int32_t);
  MORACLE_TRY(const Buffer hidden, device.allocate(zeros.size()));
  MORACLE_TRY(const Buffer output, device.allocate(zeros.size()));
  MORACLE_TRY(const Buffer weights, device.allocate(id_bytes));
  MORACLE_TRY(const Buffer on_device, device.allocate(id_bytes));
  MORACLE_CHECK(device.upload(hidden.data(), zeros.data(), zeros.size()));
  MORACLE_CHECK(device.upload(weights.data(), zeros.data(), id_bytes));
  MORACLE_CHECK(device.upload(on_device.data(), ids.data(), id_bytes));
  MORACLE_CHECK(shared().flush_maps({}));
  constexpr int kRuns = 3,
                kCalls = 8;  // one after the other: the device need not wait for the host
  double least = 0;
  for (int run = 0; run < kRuns; ++run) {
    MORACLE_CHECK(device.synchronize());
    const auto start = Clock::now();
    for (int call = 0; call < kCalls; ++call) {
      const Matrix in{hidden.data(), plan.activation_dtype, 1, cols, cols},
          out{output.data(), plan.activation_dtype, 1, cols, cols};
      MORACLE_CHECK(there.moe.apply(in, {on_device.as<int32_t>()}, {weights.as<float>()}, out, {}));
    }
    MORACLE_CHECK(device.synchronize());
    const double us = us_since(start) / kCalls;
    least = run == 0 ? us : std::min(least, us);
  }
  return least / static_cast<double>(count);
}

// The slot gets the bytes that it has, or those of an expert that no call finds there.
Result<double> PlacedMoe::State::transfer_us(bool& in_background) {
  const int32_t there = table.expert_in(0);
  const int32_t expert = there >= 0 ? there : experts_here().front();
  MORACLE_CHECK(hold({&expert, 1}));
  ExpertTransfers& transfers = *slots_with(0).on->transfers;
  double least = 0;
  for (int run = 0; run < 3; ++run) {
    const auto start = Clock::now();
    const auto matrices = matrices_of(expert, 0);
    in_background = transfers.in_background(matrices);
    MORACLE_TRY(const int64_t number, transfers.begin(matrices, {}, {}));
    static_cast<void>(number);
    MORACLE_CHECK(transfers.finish());
    const double us = us_since(start);
    least = run == 0 ? us : std::min(least, us);
  }
  return least;
}

Result<PlacedTimes> PlacedMoe::measure() {
  State& state = *state_;
  DevicePair::State& s = state.shared();
  const DeviceLock lock = s.device().lock();
  const std::vector<DeviceLock> others = s.lock_others();
  MORACLE_CHECK(s.device().synchronize());
  const Plan& plan = state.all.plan();
  const int64_t most = std::min(plan.max_num_tokens, slots_plan().max_num_tokens);
  PlacedTimes times;
  const PlacementCounts before = state.counts;
  CallTimes calls;
  calls.num_experts = static_cast<int64_t>(state.experts_here().size());
  calls.top_k = std::min(plan.layer.top_k, calls.num_experts);
  calls.num_filled = std::min(state.table.num_ready(), calls.num_experts);
  if (calls.num_experts == 0) return times;  // other ranks have all
  MORACLE_TRY(const double one, state.host_us(1));
  times.costs.bytes = slot_bytes();
  times.costs.host_us = one / static_cast<double>(std::max<int64_t>(plan.layer.top_k, 1));
  MORACLE_TRY(times.costs.slot_us, state.slot_us());
  // A transfer reads the expert from host memory once, as computing it does. A host that computes
  // longer than the bus takes is busy for the bus's time, and one that packs itself for all of it.
  times.costs.move_us = times.costs.host_us;
  if (state.table.num_slots() > 0) {
    bool in_background = false;
    MORACLE_TRY(times.transfer_us, state.transfer_us(in_background));
    times.costs.move_us =
        in_background ? std::min(times.costs.host_us, times.transfer_us) : times.transfer_us;
  }
  calls.slot_us = times.costs.slot_us / static_cast<double>(state.slots.size());
  if (state.slots.size() == 1 && !state.pool) calls.transfer_us = times.transfer_us;
  for (int run = 0; run < 2 && state.buffers != nullptr; ++run) {
    const auto start = Clock::now();  // the first run may touch memory for the first time
    s.forget(&state);
    MORACLE_TRY(State::StreamBuffer* const staged, state.stage(0, {}));
    static_cast<void>(staged);
    MORACLE_CHECK(s.first().transfers->finish());
    times.stream_us = us_since(start) * static_cast<double>(state.num_passes());
  }
  calls.stream_us = times.stream_us;
  // Longer calls are measured only until another way is faster for good.
  for (int64_t tokens = 1;; tokens = std::min(2 * tokens, most)) {
    MORACLE_TRY(const double us, tokens == 1 ? one : state.host_us(tokens));
    calls.on_host.push_back({tokens, us});
    const bool streams = tokens > 1 && calls.best(tokens) == CallWay::kStreamed;
    if (tokens == most || streams || (state.buffers == nullptr && tokens >= 64)) break;
  }
  times.ways = calls.ways(most);
  times.balanced_slots = calls.balanced_slots();
  state.counts = before;
  return times;
}

}  // namespace moracle
