// Placement of experts on ranks.
#include <numeric>

#include "base/text.h"
#include "base/try.h"
#include "moracle/oracle.h"

namespace moracle {
namespace {

Error wrong(std::string need, std::string fact) {
  return {ErrorKind::kInvalidArgument, "", "expert_map", std::move(need), std::move(fact)};
}

}  // namespace

std::string_view name(Placement placement) {
  return placement == Placement::kLinear ? "linear" : "round-robin";
}

Result<Placement> parse_placement(std::string_view text) {
  for (Placement placement : {Placement::kLinear, Placement::kRoundRobin}) {
    if (text == name(placement)) return placement;
  }
  return Error{ErrorKind::kInvalidArgument, "", "placement", "linear or round-robin",
               str("it is '", text, "'")};
}

ExpertMap ExpertMap::all(int64_t num_experts) {
  ExpertMap map;
  map.local_.resize(num_experts);
  std::iota(map.local_.begin(), map.local_.end(), 0);
  map.global_ = map.local_;
  return map;
}

Result<ExpertMap> ExpertMap::place(int64_t num_experts, int64_t ep_size, int64_t ep_rank,
                                   Placement placement) {
  if (num_experts < 1 || num_experts > kMaxLayerSize || ep_size < 1)
    return wrong(str("1 to ", kMaxLayerSize, " experts and at least one rank"),
                 str("there are ", num_experts, " experts and ", ep_size, " ranks"));
  if (ep_rank < 0 || ep_rank >= ep_size)
    return wrong(str("a rank from 0 to ", ep_size - 1), str("it is ", ep_rank));
  const int64_t least = num_experts / ep_size, more = num_experts % ep_size;
  const int64_t count = least + (ep_rank < more ? 1 : 0);
  const int64_t first = ep_rank * least + std::min(ep_rank, more);
  ExpertMap map;
  map.local_.assign(num_experts, -1);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t e = placement == Placement::kLinear ? first + i : ep_rank + i * ep_size;
    map.local_[e] = static_cast<int32_t>(i);
    map.global_.push_back(static_cast<int32_t>(e));
  }
  return map;
}

Result<ExpertMap> ExpertMap::from(std::vector<int32_t> local) {
  ExpertMap map;
  map.local_ = std::move(local);
  for (int32_t here : map.local_) {
    if (here >= 0) map.global_.push_back(-1);
  }
  for (int32_t e = 0; e < static_cast<int32_t>(map.local_.size()); ++e) {
    const int32_t here = map.local_[e];
    if (here == -1) continue;
    const std::string need = str("-1, or each of 0 to ", map.num_local() - 1, " once");
    if (here < 0 || here >= map.num_local()) return wrong(need, str("expert ", e, " has ", here));
    if (map.global_[here] >= 0)
      return wrong(need, str("experts ", map.global_[here], " and ", e, " both have ", here));
    map.global_[here] = e;
  }
  return map;
}

bool ExpertMap::is_identity() const {
  for (size_t e = 0; e < local_.size(); ++e) {
    if (local_[e] != static_cast<int32_t>(e)) return false;
  }
  return true;
}

Status check_cover(std::span<const ExpertMap> ranks, bool one_each) {
  const int64_t num_experts = ranks.empty() ? 0 : ranks[0].num_experts();
  std::vector<int64_t> holder(num_experts, -1);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].num_experts() != num_experts)
      return wrong(str("a map of ", num_experts, " experts on every rank, as on rank 0"),
                   str("rank ", rank, " has ", ranks[rank].num_experts()));
    for (int32_t e : ranks[rank].global()) {
      if (one_each && holder[e] >= 0)
        return wrong("each expert on one rank",
                     str("expert ", e, " is on ranks ", holder[e], " and ", rank));
      holder[e] = static_cast<int64_t>(rank);
    }
  }
  for (int64_t e = 0; e < num_experts; ++e) {
    if (holder[e] < 0)
      return wrong(one_each ? "each expert on one rank" : "each expert on a rank",
                   str("expert ", e, " is on no rank"));
  }
  return {};
}

Result<ExpertMap> Parallelism::map(int64_t num_experts) const {
  if (!expert_map) return ExpertMap::place(num_experts, ep_size, ep_rank, placement);
  if (expert_map->num_experts() == num_experts) return *expert_map;
  return wrong(str("an entry for each of ", num_experts, " experts"),
               str("it has ", expert_map->num_experts()));
}

}  // namespace moracle
