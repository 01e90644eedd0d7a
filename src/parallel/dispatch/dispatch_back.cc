// The way back: experts run on the rows that arrived, results return to the ranks of their tokens.
#include <algorithm>

#include "base/try.h"
#include "kernels/ops.h"
#include "moe/moe_access.h"
#include "parallel/dispatch/dispatch_arrived.h"
#include "parallel/slot_sums.h"

namespace moracle {

// `results` has a row for each row that arrived, or with same_bits_ one for each slot.
Status Dispatch::run_arrived(FusedMoe& moe, const Arrived& arrived, const Matrix& results,
                             Stream stream) {
  const int64_t top_k = moe.plan().layer.top_k, per_row = same_bits_ ? top_k : 1;
  const int64_t all = arrived.rows.values.rows;
  for (int64_t first = 0; first < all; first += moe.plan().max_num_tokens) {
    const int64_t count = std::min(moe.plan().max_num_tokens, all - first);
    ExpertsCall call{.input = arrived.rows,
                     .topk_ids = arrived.ids.data + first * top_k,
                     .topk_weights = arrived.weights.data + first * top_k,
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

Status Dispatch::return_rows(FusedMoe& moe, const Routes& routes, const Arrived& arrived,
                             const Matrix& output, Stream stream) {
  const int64_t cols = output.cols, row_bytes = cols * bits(output.dtype) / 8;
  const int64_t received = routes.num_received(), sent = routes.num_sent();
  MORACLE_TRY(std::byte* const results, memory(results_, received * row_bytes));
  MORACLE_CHECK(run_arrived(moe, arrived, {results, output.dtype, received, cols, cols}, stream));
  MORACLE_TRY(std::byte* const returned, memory(returned_, sent * row_bytes));
  MORACLE_CHECK(exchange_rows(results, routes.receives, returned, routes.sends, row_bytes, stream));
  if (output.rows == 0) return {};
  MORACLE_TRY(std::byte* const slots, memory(slots_, output.rows * group_.size() * 4));
  MORACLE_CHECK(device_.upload(slots, routes.returns.data(), routes.returns.size() * 4, stream));
  MORACLE_CHECK(kernel_device(device_).ops().combine({returned, output.dtype, sent, cols, cols},
                                                     reinterpret_cast<const int32_t*>(slots),
                                                     nullptr, group_.size(), output, stream));
  return device_.synchronize(stream);
}

Status Dispatch::return_slots(FusedMoe& moe, const Routes& routes, const Arrived& arrived,
                              TopkIds topk_ids, TopkWeights topk_weights, const Matrix& output,
                              Stream stream) {
  Ops& ops = kernel_device(device_).ops();
  const LayerSpec& layer = moe.plan().layer;
  const int64_t cols = output.cols, row_bytes = cols * bits(output.dtype) / 8;
  const int64_t slots = static_cast<int64_t>(arrived.host_ids.size());
  MORACLE_TRY(std::byte* const results, memory(results_, slots * row_bytes));
  MORACLE_CHECK(run_arrived(moe, arrived, {results, output.dtype, slots, cols, cols}, stream));
  // Only slots of this rank's experts travel.
  std::vector<int32_t> own;
  for (int64_t i = 0; i < slots; ++i)
    if (arrived.host_ids[i] >= 0) own.push_back(static_cast<int32_t>(i));
  const auto here = static_cast<int64_t>(own.size()), back = routes.num_slots();
  const int64_t wanted = output.rows * layer.top_k;
  MORACLE_TRY(std::byte* const index, memory(index_, std::max(here, wanted) * 4));
  MORACLE_TRY(std::byte* const packed, memory(packed_, here * row_bytes));
  const auto pick = [&](std::byte* from, int64_t rows, const std::vector<int32_t>& picked,
                        const Matrix& to) -> Status {
    if (picked.empty()) return {};
    MORACLE_CHECK(device_.upload(index, picked.data(), picked.size() * 4, stream));
    MORACLE_CHECK(ops.embed({from, output.dtype, {rows, cols}},
                            reinterpret_cast<const int32_t*>(index), to, stream));
    return device_.synchronize(stream);  // before the index is used again
  };
  MORACLE_CHECK(pick(results, slots, own, {packed, output.dtype, here, cols, cols}));
  // One row more, so that slots without an expert find one.
  MORACLE_TRY(std::byte* const returned, memory(returned_, (back + 1) * row_bytes));
  MORACLE_CHECK(
      exchange_rows(packed, routes.slot_receives, returned, routes.slot_sends, row_bytes, stream));
  if (output.rows == 0) return {};
  const size_t sums_bytes = SlotSums::carve(layer, output.rows, output.dtype, nullptr).bytes;
  MORACLE_TRY(std::byte* const base, memory(sums_, static_cast<int64_t>(sums_bytes)));
  const SlotSums sums = SlotSums::carve(layer, output.rows, output.dtype, base);
  std::vector<int32_t> places = routes.slot_returns;
  std::replace(places.begin(), places.end(), -1, static_cast<int32_t>(back));
  MORACLE_CHECK(pick(returned, back + 1, places, sums.by_slot));
  MORACLE_CHECK(sums.add(layer, topk_ids, topk_weights, back, output, ops, stream));
  return device_.synchronize(stream);
}

}  // namespace moracle
