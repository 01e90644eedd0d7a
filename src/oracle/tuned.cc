#include "oracle/tuned.h"

#include <algorithm>
#include <cmath>

#include "oracle/backend.h"

namespace moracle {
namespace {

bool as_measured(const Request& request) {
  return request.parallel.ep_size == 1 && request.parallel.format == ActivationFormat::kStandard &&
         !request.deterministic;
}

// The time at `num_tokens` tokens; 0 if it was not measured.
double time_at(const Verdict& row, int64_t num_tokens) {
  for (const TunedTime& time : row.tuned) {
    if (time.num_tokens == num_tokens) return time.us;
  }
  return 0;
}

// Sum of log(time of `row` / time of `other`); below 0 `row` is faster. Covers the token counts at
// which `other` was measured, up to `max_num_tokens`. nullopt if `row` lacks one of these times.
std::optional<double> slower(const Verdict& row, const Verdict& other, int64_t max_num_tokens) {
  double sum = 0;
  bool any = false;
  for (const TunedTime& time : other.tuned) {
    if (time.num_tokens > max_num_tokens) continue;
    const double own = time_at(row, time.num_tokens);
    if (own <= 0 || time.us <= 0) return {};
    sum += std::log(own / time.us);
    any = true;
  }
  return any ? std::optional(sum) : std::nullopt;
}

}  // namespace

std::string tuned_name(const Request& request) {
  return describe(request.layer) + (request.bf16_activations ? ", activations in bf16" : "");
}

void apply_tuning(const Request& request, const Machine& machine, std::vector<Verdict>& rows) {
  if (!as_measured(request)) return;
  const std::string layer = tuned_name(request);
  const auto tuned = std::find_if(machine.tuned.begin(), machine.tuned.end(),
                                  [&](const TunedLayer& one) { return one.layer == layer; });
  if (tuned == machine.tuned.end()) return;
  for (Verdict& row : rows) {
    for (const TunedTime& time : tuned->times) {
      if (time.backend == row.backend->name && row.accepted()) row.tuned.push_back(time);
    }
  }
  const auto first =
      std::find_if(rows.begin(), rows.end(), [](const Verdict& row) { return row.accepted(); });
  if (first == rows.end()) return;
  auto fastest = first;
  double least = 0;
  for (auto row = first; row != rows.end(); ++row) {
    const std::optional<double> than = slower(*row, *first, request.max_num_tokens);
    if (row == first && !than) return;
    if (!than || *than >= least) continue;
    least = *than;
    fastest = row;
  }
  fastest->fastest = true;
  std::rotate(first, fastest, fastest + 1);
}

}  // namespace moracle
