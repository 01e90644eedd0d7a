#include "parallel/dispatch/dispatch_step.h"

#include <algorithm>

#include "base/try.h"

namespace moracle {
namespace {

// Up to so many ranks nearly every token has an expert on each of them.
constexpr int64_t kMostGathering = 4;

}  // namespace

DispatchStep::DispatchStep(Group& group, Exchange& exchange, Device& device, bool same_bits)
    : group_(group),
      device_(device),
      gathers_(!same_bits && exchange.in_graphs() && group.size() <= kMostGathering),
      all_to_all_(group, exchange, device, same_bits),
      gathered_(group, exchange, device) {}

Result<bool> DispatchStep::begin(int64_t num_tokens, bool rests) {
  struct RankState {
    int64_t num_tokens, rests;
  };
  const RankState own{num_tokens, rests ? 1 : 0};
  std::vector<RankState> all(group_.size());
  MORACLE_CHECK(
      group_.all_gather(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all))));
  most_tokens_ = 0;
  bool goes_on = false;
  for (const RankState& rank : all) {
    most_tokens_ = std::max(most_tokens_, rank.num_tokens);
    goes_on = goes_on || rank.rests == 0;
  }
  return goes_on;
}

Status DispatchStep::clear_ids(const Plan& plan, int32_t* ids, int64_t count, Stream stream) {
  if (count == 0) return {};
  const int64_t most = std::max(count, plan.max_num_tokens * plan.layer.top_k);
  if (no_ids_.bytes() < most * sizeof(int32_t)) {
    const std::vector<int32_t> none(most, -1);
    MORACLE_CHECK(device_.synchronize());  // earlier work may read the old memory
    MORACLE_TRY(no_ids_, device_.allocate(none.size() * sizeof(int32_t)));
    MORACLE_CHECK(device_.upload(no_ids_.data(), none.data(), no_ids_.bytes(), stream));
    MORACLE_CHECK(device_.synchronize(stream));  // before `none` is destroyed
  }
  return device_.copy(ids, no_ids_.data(), count * sizeof(int32_t), stream);
}

Status DispatchStep::run_experts(FusedMoe& moe, const ExpertCopies& copies, const Matrix& hidden,
                                 int32_t* topk_ids, const float* topk_weights, const Matrix& output,
                                 Stream stream) {
  if (most_tokens_ == 0) return {};
  if (!gathers_)
    return all_to_all_.run(moe, copies, hidden, {topk_ids}, {topk_weights}, output, stream);
  const int64_t top_k = moe.plan().layer.top_k;
  MORACLE_CHECK(clear_ids(moe.plan(), topk_ids + hidden.rows * top_k,
                          (most_tokens_ - hidden.rows) * top_k, stream));
  Matrix all_hidden = hidden, all_output = output;
  all_hidden.rows = all_output.rows = most_tokens_;
  return gathered_.run(moe, copies, all_hidden, {topk_ids}, {topk_weights}, all_output, stream);
}

}  // namespace moracle
