#include "parallel/slot_sums.h"

#include "base/try.h"
#include "oracle/carve.h"

namespace moracle {

SlotSums SlotSums::carve(const LayerSpec& layer, int64_t num_tokens, DType dtype, std::byte* base) {
  const int64_t rows = num_tokens * layer.top_k;
  Carver carver(base);
  SlotSums sums;
  sums.by_slot = carver.take_matrix(dtype, rows, layer.hidden_size);
  sums.by_expert = carver.take_matrix(dtype, rows, layer.hidden_size);
  sums.rows = {carver.take<int32_t>(layer.num_experts + 1), carver.take<int32_t>(rows),
               carver.take<int32_t>(rows), carver.take<int32_t>(rows)};
  sums.bytes = carver.bytes();
  return sums;
}

Status SlotSums::add(const LayerSpec& layer, TopkIds topk_ids, TopkWeights topk_weights,
                     int64_t slots, const Matrix& output, Ops& ops, Stream stream) const {
  const Matrix sorted = by_expert.slice(0, slots);
  MORACLE_CHECK(ops.plan_rows(topk_ids.data, output.rows, layer.top_k, layer.num_experts, nullptr,
                              layer.num_experts, rows, stream));
  const TensorView table{
      static_cast<const std::byte*>(by_slot.data), by_slot.dtype, {by_slot.rows, by_slot.cols}};
  MORACLE_CHECK(ops.embed(table, rows.row_slot, sorted, stream));
  const float* weights = layer.routing.weight_on_input ? nullptr : topk_weights.data;
  return ops.combine(sorted, rows.slot_row, weights, layer.top_k, output, stream);
}

}  // namespace moracle
