#include "parallel/dispatch/routes.h"

#include <algorithm>

#include "base/text.h"

namespace moracle {
namespace {

// Appends the rows that travel to rank `r`.
void add_rows(std::span<const int32_t> ids, std::span<const float> weights, int64_t top_k,
              const ExpertCopies& copies, int64_t r, int64_t size, Routes& routes) {
  const int64_t num_tokens = static_cast<int64_t>(ids.size()) / top_k;
  int64_t rows = 0, slots = 0;
  for (int64_t t = 0; t < num_tokens; ++t) {
    const std::span<const int32_t> own = ids.subspan(t * top_k, top_k);
    const auto is_there = [&](int32_t id) { return id >= 0 && copies.rank_of(t, id) == r; };
    if (std::none_of(own.begin(), own.end(), is_there)) continue;
    routes.returns[t * size + r] = static_cast<int32_t>(routes.num_sent());
    routes.tokens.push_back(static_cast<int32_t>(t));
    ++rows;
    for (int64_t j = 0; j < top_k; ++j) {
      routes.ids.push_back(is_there(own[j]) ? own[j] : -1);
      routes.weights.push_back(weights[t * top_k + j]);
      if (!is_there(own[j])) continue;
      routes.slot_returns[t * top_k + j] = static_cast<int32_t>(routes.num_slots() + slots);
      ++slots;
    }
  }
  routes.sends.push_back(rows);
  routes.slot_sends.push_back(slots);
}

}  // namespace

Result<Routes> find_routes(std::span<const int32_t> ids, std::span<const float> weights,
                           int64_t top_k, const ExpertCopies& copies, int64_t size) {
  const auto num_experts = static_cast<int32_t>(copies.num_experts());
  for (const int32_t id : ids) {
    if (id >= -1 && id < num_experts) continue;
    return Error{ErrorKind::kInvalidArgument, "", "topk_ids",
                 str("-1, or an expert from 0 to ", num_experts - 1), str("one is ", id)};
  }
  Routes routes;
  routes.returns.assign(ids.size() / top_k * size, -1);
  routes.slot_returns.assign(ids.size(), -1);
  for (int64_t r = 0; r < size; ++r) add_rows(ids, weights, top_k, copies, r, size, routes);
  return routes;
}

}  // namespace moracle
