// The times that placement depends on, measured on a loaded layer.
#include <algorithm>

#include "base/try.h"
#include "placement/placed_moe_state.h"

namespace moracle {
Result<double> PlacedMoe::State::host_us(int64_t num_tokens) {
  HostLink& link = *shared().link;
  const Plan& plan = all.plan();
  const std::vector<int32_t> experts = experts_here();
  const int64_t cols = plan.layer.hidden_size, choices = num_tokens * plan.layer.top_k;
  for (int64_t i = 0; i < choices; ++i) {
    link.ids()[i] = experts.empty() ? -1 : experts[i % experts.size()];
    link.weights()[i] = 0;
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
  times.stream_from = most + 1;
  MORACLE_TRY(const double one, state.host_us(1));
  constexpr double kSlotBytesPerUs = 1e6;  // assumed: what a GPU's memory gives
  times.costs.bytes = slot_bytes();
  times.costs.host_us = one / static_cast<double>(std::max<int64_t>(plan.layer.top_k, 1));
  times.costs.slot_us = static_cast<double>(slot_bytes()) / kSlotBytesPerUs;
  // A transfer reads the expert from host memory once, as computing it does. A host that computes
  // longer than the bus takes is busy for the bus's time, and one that packs itself for all of it.
  times.costs.move_us = times.costs.host_us;
  if (state.table.num_slots() > 0) {
    bool in_background = false;
    MORACLE_TRY(times.transfer_us, state.transfer_us(in_background));
    times.costs.move_us =
        in_background ? std::min(times.costs.host_us, times.transfer_us) : times.transfer_us;
  }
  if (state.buffers == nullptr) return times;

  const int64_t passes = state.num_passes();
  for (int run = 0; run < 2; ++run) {  // the first one may touch memory for the first time
    const auto start = Clock::now();
    s.forget(&state);
    MORACLE_TRY(State::StreamBuffer* const staged, state.stage(0, {}));
    static_cast<void>(staged);
    MORACLE_CHECK(s.first().transfers->finish());
    times.stream_us = us_since(start) * static_cast<double>(passes);
  }
  double before = one;
  for (int64_t tokens = 16, last = 1; last < most; last = tokens, tokens *= 2) {
    tokens = std::min(tokens, most);
    MORACLE_TRY(const double us, state.host_us(tokens));
    if (us > times.stream_us) {
      const double share = us > before ? (times.stream_us - before) / (us - before) : 0;
      times.stream_from =
          last +
          std::max<int64_t>(
              static_cast<int64_t>(std::max(share, 0.0) * static_cast<double>(tokens - last)), 1);
      break;
    }
    before = us;
  }
  state.counts = {};
  return times;
}

}  // namespace moracle
