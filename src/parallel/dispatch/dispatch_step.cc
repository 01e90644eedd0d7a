// Steps of all ranks, and a layer in a step: there, through the experts, and back.
#include "parallel/dispatch/dispatch.h"

#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "kernels/ops.h"
#include "moe/moe_access.h"
#include "parallel/dispatch/dispatch_arrived.h"

namespace moracle {

Result<std::byte*> Dispatch::memory(Buffer& buffer, int64_t bytes) {
  const auto need = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  if (buffer.bytes() < need) {
    MORACLE_CHECK(device_.synchronize());  // earlier work may read the old memory
    MORACLE_TRY(buffer, device_.allocate(need));
  }
  return buffer.as<std::byte>();
}

Result<bool> Dispatch::begin_step(int64_t num_tokens, bool rests) {
  struct Part {
    int64_t num_tokens, rests;
  };
  const Part own{num_tokens, rests ? 1 : 0};
  std::vector<Part> all(group_.size());
  MORACLE_CHECK(
      group_.all_gather(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all))));
  most_tokens_ = 0;
  bool goes_on = false;
  for (const Part& part : all) {
    most_tokens_ = std::max(most_tokens_, part.num_tokens);
    goes_on = goes_on || part.rests == 0;
  }
  return goes_on;
}

bool Dispatch::gathers() const {
  // Up to so many ranks nearly every token has an expert on each of them.
  constexpr int64_t kMostGathering = 4;
  return !same_bits_ && exchange_.in_graphs() && group_.size() <= kMostGathering;
}

Status Dispatch::run(FusedMoe& moe, const ExpertCopies& copies, const Matrix& hidden,
                     int32_t* topk_ids, const float* topk_weights, const Matrix& output,
                     Stream stream) {
  if (most_tokens_ == 0) return {};
  if (!gathers()) return apply(moe, copies, hidden, {topk_ids}, {topk_weights}, output, stream);
  const int64_t top_k = moe.plan().layer.top_k, unused = most_tokens_ - hidden.rows;
  const auto all_rows = [this](Matrix x) {
    x.rows = most_tokens_;
    return x;
  };
  if (unused > 0) {
    const auto most = std::max<int64_t>(unused, moe.plan().max_num_tokens) * top_k;
    const auto bytes = static_cast<size_t>(most) * sizeof(int32_t);
    if (no_ids_.bytes() < bytes) {
      MORACLE_TRY(std::byte* const to, memory(no_ids_, static_cast<int64_t>(bytes)));
      const std::vector<int32_t> none(most, -1);
      MORACLE_CHECK(device_.upload(to, none.data(), bytes, stream));
      MORACLE_CHECK(device_.synchronize(stream));  // before `none` is destroyed
    }
    MORACLE_CHECK(device_.copy(topk_ids + hidden.rows * top_k, no_ids_.data(),
                               unused * top_k * sizeof(int32_t), stream));
  }
  return apply_gathered(moe, copies, all_rows(hidden), {topk_ids}, {topk_weights}, all_rows(output),
                        stream);
}

Status Dispatch::exchange_rows(const std::byte* from, const std::vector<int64_t>& from_counts,
                               std::byte* to, const std::vector<int64_t>& to_counts,
                               int64_t row_bytes, Stream stream) {
  const auto place = [row_bytes](std::byte* data, const std::vector<int64_t>& counts) {
    std::vector<Group::Part> parts;
    for (const int64_t count : counts) {
      parts.push_back({data, static_cast<size_t>(count * row_bytes)});
      data += count * row_bytes;
    }
    return parts;
  };
  for (int64_t r = 0; r < group_.size(); ++r)
    if (r != group_.rank()) sent_bytes_ += from_counts[r] * row_bytes;
  return exchange_.exchange(place(const_cast<std::byte*>(from), from_counts), place(to, to_counts),
                            stream);
}

Status Dispatch::apply(FusedMoe& moe, const ExpertCopies& copies, const Matrix& hidden,
                       TopkIds topk_ids, TopkWeights topk_weights, const Matrix& output,
                       Stream stream) {
  const Plan& plan = moe.plan();
  if (hidden.stride != hidden.cols || output.stride != output.cols || hidden.rows != output.rows ||
      output.dtype != plan.activation_dtype || hidden.dtype != output.dtype) {
    return Error{ErrorKind::kInvalidArgument, "", plan.layer.name,
                 str("hidden and output in ", name(plan.activation_dtype), " without gaps"),
                 str("they are ", name(hidden.dtype), " and ", name(output.dtype))};
  }
  std::vector<int32_t> ids(hidden.rows * plan.layer.top_k);
  std::vector<float> weights(ids.size());
  if (hidden.rows > 0) {
    MORACLE_CHECK(device_.download(ids.data(), topk_ids.data, ids.size() * 4, stream));
    MORACLE_CHECK(device_.download(weights.data(), topk_weights.data, ids.size() * 4, stream));
    MORACLE_CHECK(device_.synchronize(stream));
  }
  MORACLE_TRY(Routes routes, find_routes(ids, weights, plan.layer.top_k, copies, group_.size()));
  MORACLE_TRY(const Arrived arrived, send_rows(moe, hidden, routes, stream));
  return same_bits_ ? return_slots(moe, routes, arrived, topk_ids, topk_weights, output, stream)
                    : return_rows(moe, routes, arrived, output, stream);
}

}  // namespace moracle
