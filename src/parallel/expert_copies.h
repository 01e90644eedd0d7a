// Which ranks hold each expert of a layer, and which of several copies serves a token.
#pragma once

#include <span>
#include <vector>

#include "kernels/ops.h"
#include "moracle/device.h"
#include "moracle/oracle.h"
#include "moracle/parallel.h"

namespace moracle {

class ExpertCopies {
 public:
  ExpertCopies() = default;
  /// From the maps of all ranks. Errors: an expert that no rank has, or several where `one_each`.
  static Result<ExpertCopies> from(std::span<const ExpertMap> maps, bool one_each);
  /// Every rank of the group calls it with its own map. Errors: likewise, the same on every rank.
  static Result<ExpertCopies> gather(Group& group, const ExpertMap& own, bool one_each);

  int64_t num_experts() const { return static_cast<int64_t>(ranks_.size()); }
  /// The experts of each of `size` ranks, in ascending order.
  Result<std::vector<ExpertMap>> maps(int64_t size) const;
  const std::vector<int32_t>& ranks(int64_t expert) const { return ranks_[expert]; }
  /// True if an expert is on several ranks.
  bool has_several() const { return has_several_; }
  /// The rank that serves the token in row `token` of a step, round-robin over the copies as
  /// Ops::keep_own does. Ranks with the same rows choose the same copy without a message.
  int32_t rank_of(int64_t token, int32_t expert) const {
    const std::vector<int32_t>& ranks = ranks_[expert];
    return ranks.size() == 1 ? ranks[0]
                             : ranks[(token + expert) % static_cast<int64_t>(ranks.size())];
  }
  /// Puts the table of keep_own for `rank` into device memory. Does nothing without copies.
  Status upload(int64_t rank, Device& device);
  /// own [num_tokens, top_k] = `ids` that this rank serves, -1 for the copies of other ranks. Both
  /// may be the same. Only where has_several(), after upload().
  Status keep_own(const int32_t* ids, int64_t num_tokens, int64_t top_k, int32_t* own, Ops& ops,
                  Stream stream) const {
    return ops.keep_own(ids, num_tokens, top_k, table_.as<int32_t>(), num_experts(), own, stream);
  }

 private:
  std::vector<std::vector<int32_t>> ranks_;  // of each expert, ascending
  bool has_several_ = false;
  Buffer table_;
};

}  // namespace moracle
