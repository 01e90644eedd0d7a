// Experts on the received rows, then the combine: results return to the ranks of their tokens.
#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "kernels/kernel_device.h"
#include "kernels/ops.h"
#include "moe/moe_access.h"
#include "parallel/dispatch/all_to_all_experts.h"
#include "parallel/slot_sums.h"

namespace moracle {

Result<std::byte*> AllToAllExperts::grow(Buffer& buffer, int64_t bytes) {
  const auto need = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  if (buffer.bytes() < need) {
    MORACLE_CHECK(device_.synchronize());  // earlier work may read the old memory
    MORACLE_TRY(buffer, device_.allocate(need));
  }
  return buffer.as<std::byte>();
}

Status AllToAllExperts::all_to_all(const std::byte* send, const std::vector<int64_t>& send_counts,
                                   std::byte* recv, const std::vector<int64_t>& recv_counts,
                                   int64_t row_bytes, Stream stream) {
  const auto blocks_of = [row_bytes](std::byte* data, const std::vector<int64_t>& counts) {
    std::vector<Group::Block> blocks;
    for (const int64_t count : counts) {
      blocks.push_back({data, static_cast<size_t>(count * row_bytes)});
      data += count * row_bytes;
    }
    return blocks;
  };
  for (int64_t r = 0; r < group_.size(); ++r)
    if (r != group_.rank()) sent_bytes_ += send_counts[r] * row_bytes;
  return exchange_.exchange(blocks_of(const_cast<std::byte*>(send), send_counts),
                            blocks_of(recv, recv_counts), stream);
}

Status AllToAllExperts::run_experts(FusedMoe& moe, const Received& received, const Matrix& results,
                                    Stream stream) {
  const int64_t top_k = moe.plan().layer.top_k, per_row = same_bits_ ? top_k : 1;
  const int64_t all = received.rows.values.rows;
  for (int64_t first = 0; first < all; first += moe.plan().max_num_tokens) {
    const int64_t count = std::min(moe.plan().max_num_tokens, all - first);
    ExpertsCall call{.input = received.rows,
                     .topk_ids = ids_.as<int32_t>() + first * top_k,
                     .topk_weights = weights_.as<float>() + first * top_k,
                     .output = results.slice(first * per_row, count * per_row)};
    call.input.values = call.input.values.slice(first, count);
    if (call.input.num_scales > 0) {
      call.form = ExpertsCall::Input::kReady;
      call.input.scales += first * call.input.num_scales;
    }
    if (same_bits_) call.result = ExpertsCall::Output::kSlots;
    MORACLE_CHECK(MoeAccess::run(moe, std::move(call), stream));
  }
  return {};
}

Status AllToAllExperts::combine(FusedMoe& moe, const SendPlan& plan, const Received& received,
                                const Matrix& output, Stream stream) {
  const int64_t cols = output.cols, row_bytes = cols * bits(output.dtype) / 8;
  const int64_t num_received = plan.num_received(), sent = plan.num_sent();
  MORACLE_TRY(std::byte* const results, grow(results_, num_received * row_bytes));
  MORACLE_CHECK(
      run_experts(moe, received, {results, output.dtype, num_received, cols, cols}, stream));
  MORACLE_TRY(std::byte* const returned, grow(returned_, sent * row_bytes));
  MORACLE_CHECK(
      all_to_all(results, plan.recv_counts, returned, plan.send_counts, row_bytes, stream));
  if (output.rows == 0) return {};
  const size_t index_bytes = plan.token_rows.size() * 4;
  MORACLE_TRY(std::byte* const index, grow(index_, static_cast<int64_t>(index_bytes)));
  MORACLE_CHECK(device_.upload(index, plan.token_rows.data(), index_bytes, stream));
  MORACLE_CHECK(kernel_device(device_).ops().combine({returned, output.dtype, sent, cols, cols},
                                                     reinterpret_cast<const int32_t*>(index),
                                                     nullptr, group_.size(), output, stream));
  return device_.synchronize(stream);
}

Status AllToAllExperts::combine_slots(FusedMoe& moe, const SendPlan& plan, const Received& received,
                                      TopkIds topk_ids, TopkWeights topk_weights,
                                      const Matrix& output, Stream stream) {
  Ops& ops = kernel_device(device_).ops();
  const LayerSpec& layer = moe.plan().layer;
  const int64_t cols = output.cols, row_bytes = cols * bits(output.dtype) / 8;
  const int64_t slots = static_cast<int64_t>(received.ids.size());
  MORACLE_TRY(std::byte* const results, grow(results_, slots * row_bytes));
  MORACLE_CHECK(run_experts(moe, received, {results, output.dtype, slots, cols, cols}, stream));
  // Send only the slots of this rank's experts.
  std::vector<int32_t> own;
  for (int64_t i = 0; i < slots; ++i)
    if (received.ids[i] >= 0) own.push_back(static_cast<int32_t>(i));
  const auto num_own = static_cast<int64_t>(own.size()), num_returned = plan.num_slots();
  const int64_t wanted = output.rows * layer.top_k;
  MORACLE_TRY(std::byte* const index, grow(index_, std::max(num_own, wanted) * 4));
  MORACLE_TRY(std::byte* const packed, grow(packed_, num_own * row_bytes));
  const auto gather = [&](std::byte* from, int64_t rows, const std::vector<int32_t>& picked,
                          const Matrix& to) -> Status {
    if (picked.empty()) return {};
    MORACLE_CHECK(device_.upload(index, picked.data(), picked.size() * 4, stream));
    MORACLE_CHECK(ops.embed({from, output.dtype, {rows, cols}},
                            reinterpret_cast<const int32_t*>(index), to, stream));
    return device_.synchronize(stream);  // before the index is overwritten
  };
  MORACLE_CHECK(gather(results, slots, own, {packed, output.dtype, num_own, cols, cols}));
  // One more row, which slots without an expert read.
  MORACLE_TRY(std::byte* const returned, grow(returned_, (num_returned + 1) * row_bytes));
  MORACLE_CHECK(all_to_all(packed, plan.slot_recv_counts, returned, plan.slot_send_counts,
                           row_bytes, stream));
  if (output.rows == 0) return {};
  const size_t sums_bytes = SlotSums::carve(layer, output.rows, output.dtype, nullptr).bytes;
  MORACLE_TRY(std::byte* const base, grow(sums_, static_cast<int64_t>(sums_bytes)));
  const SlotSums sums = SlotSums::carve(layer, output.rows, output.dtype, base);
  std::vector<int32_t> rows = plan.slot_rows;
  std::replace(rows.begin(), rows.end(), -1, static_cast<int32_t>(num_returned));
  MORACLE_CHECK(gather(returned, num_returned + 1, rows, sums.by_slot));
  MORACLE_CHECK(sums.add(layer, topk_ids, topk_weights, num_returned, output, ops, stream));
  return device_.synchronize(stream);
}

Status AllToAllExperts::run(FusedMoe& moe, const ExpertCopies& copies, const Matrix& hidden,
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
  MORACLE_TRY(SendPlan sends, plan_sends(ids, weights, plan.layer.top_k, copies, group_.size()));
  MORACLE_TRY(const Received received, dispatch(moe, hidden, sends, stream));
  return same_bits_ ? combine_slots(moe, sends, received, topk_ids, topk_weights, output, stream)
                    : combine(moe, sends, received, output, stream);
}

}  // namespace moracle
