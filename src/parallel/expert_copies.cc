#include "parallel/expert_copies.h"

#include <algorithm>

#include "base/text.h"
#include "base/try.h"

namespace moracle {

Result<ExpertCopies> ExpertCopies::from(std::span<const ExpertMap> maps, bool one_each) {
  MORACLE_CHECK(check_cover(maps, one_each));
  ExpertCopies copies;
  copies.ranks_.resize(maps[0].num_experts());
  for (size_t r = 0; r < maps.size(); ++r)
    for (const int32_t e : maps[r].global()) copies.ranks_[e].push_back(static_cast<int32_t>(r));
  copies.has_several_ = std::any_of(copies.ranks_.begin(), copies.ranks_.end(),
                                    [](const auto& ranks) { return ranks.size() > 1; });
  return copies;
}

Result<ExpertCopies> ExpertCopies::gather(Group& group, const ExpertMap& own, bool one_each) {
  const size_t num_experts = own.local().size();
  std::vector<int32_t> all(num_experts * group.size());
  MORACLE_CHECK(group.all_gather(std::as_bytes(std::span(own.local())),
                                 std::as_writable_bytes(std::span(all))));
  std::vector<ExpertMap> maps;
  for (int64_t r = 0; r < group.size(); ++r) {
    const auto first = all.begin() + r * static_cast<int64_t>(num_experts);
    MORACLE_TRY(ExpertMap map, ExpertMap::from({first, first + own.num_experts()}));
    maps.push_back(std::move(map));
  }
  return from(maps, one_each);
}

Result<std::vector<ExpertMap>> ExpertCopies::maps(int64_t size) const {
  std::vector<std::vector<int32_t>> local(size, std::vector<int32_t>(ranks_.size(), -1));
  std::vector<int32_t> count(size);
  for (size_t e = 0; e < ranks_.size(); ++e)
    for (const int32_t rank : ranks_[e]) local[rank][e] = count[rank]++;
  std::vector<ExpertMap> maps;
  for (std::vector<int32_t>& one : local) {
    MORACLE_TRY(ExpertMap map, ExpertMap::from(std::move(one)));
    maps.push_back(std::move(map));
  }
  return maps;
}

Status ExpertCopies::upload(int64_t rank, Device& device) {
  if (!has_several_) return {};
  // The number of copies of each expert, then the number of this rank's among them.
  std::vector<int32_t> table(2 * ranks_.size(), -1);
  for (size_t e = 0; e < ranks_.size(); ++e) {
    const std::vector<int32_t>& ranks = ranks_[e];
    table[e] = static_cast<int32_t>(ranks.size());
    const auto own = std::find(ranks.begin(), ranks.end(), static_cast<int32_t>(rank));
    if (own != ranks.end()) table[ranks_.size() + e] = static_cast<int32_t>(own - ranks.begin());
  }
  const size_t bytes = table.size() * sizeof(int32_t);
  MORACLE_TRY(table_, device.allocate(bytes));
  MORACLE_CHECK(device.upload(table_.data(), table.data(), bytes));
  return device.synchronize();  // before `table` is destroyed
}

}  // namespace moracle
