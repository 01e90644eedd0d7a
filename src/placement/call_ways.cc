#include "placement/call_ways.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace moracle {

double CallTimes::touched(int64_t num_tokens) const {
  const auto experts = static_cast<double>(num_experts);
  const double others = 1 - static_cast<double>(top_k) / experts;
  return experts * (1 - std::pow(others, static_cast<double>(num_tokens)));
}

// Between two measurements the time of an expert that is read changes evenly.
double CallTimes::host_us(int64_t num_tokens) const {
  const auto of_expert = [&](const OnHost& one) { return one.us / touched(one.num_tokens); };
  const auto after = std::find_if(on_host.begin(), on_host.end(),
                                  [&](const OnHost& one) { return one.num_tokens >= num_tokens; });
  if (after == on_host.end()) {  // beyond all measurements the host computes token after token
    const OnHost& last = on_host.back();
    return last.us * static_cast<double>(num_tokens) / static_cast<double>(last.num_tokens);
  }
  if (after->num_tokens == num_tokens || after == on_host.begin())
    return touched(num_tokens) * of_expert(*after);
  const OnHost& before = after[-1];
  const double share = static_cast<double>(num_tokens - before.num_tokens) /
                       static_cast<double>(after->num_tokens - before.num_tokens);
  return touched(num_tokens) * std::lerp(of_expert(before), of_expert(*after), share);
}

double CallTimes::call_us(CallWay way, int64_t num_tokens) const {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const double in_slots = static_cast<double>(num_filled) / static_cast<double>(num_experts);
  const double experts = touched(num_tokens);
  switch (way) {
    case CallWay::kDivided:
      return std::max((1 - in_slots) * host_us(num_tokens), in_slots * experts * slot_us);
    case CallWay::kFetched:
      if (transfer_us <= 0 || experts > static_cast<double>(num_filled)) return kNever;
      return (1 - in_slots) * experts * transfer_us + experts * slot_us;
    case CallWay::kStreamed:
      return stream_us <= 0 ? kNever : std::max(stream_us, experts * slot_us);
  }
  return kNever;
}

// Steps that fetch or stream are no graphs, and measurements vary: the other ways must be clearly
// faster than the divided one.
CallWay CallTimes::best(int64_t num_tokens) const {
  constexpr double kClearly = 0.97;
  CallWay best = CallWay::kDivided;
  double least = kClearly * call_us(best, num_tokens);
  for (const CallWay way : {CallWay::kFetched, CallWay::kStreamed}) {
    const double us = call_us(way, num_tokens);
    if (us < least) best = way, least = us;
  }
  return best;
}

std::vector<CallWay> CallTimes::ways(int64_t most) const {
  std::vector<CallWay> all;
  for (int64_t tokens = 1; tokens <= most; ++tokens) all.push_back(best(tokens));
  return all;
}

int64_t CallTimes::balanced_slots() const {
  double least = std::numeric_limits<double>::infinity();
  for (const OnHost& one : on_host) least = std::min(least, one.us / touched(one.num_tokens));
  return static_cast<int64_t>(least / (least + slot_us) * static_cast<double>(num_experts));
}

}  // namespace moracle
