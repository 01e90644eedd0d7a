#include "parallel/replicated_moe.h"

#include "base/try.h"
#include "kernels/ops.h"
#include "oracle/carve.h"

namespace moracle {
namespace {

struct SlotScratch {
  Matrix by_slot;    // [tokens * top_k, hidden_size]
  Matrix by_expert;  // the same rows, in one process's order
  RowPlan rows;      // of one process, which holds all experts
  size_t bytes = 0;
};

SlotScratch carve_slots(const LayerSpec& layer, int64_t num_tokens, DType dtype, std::byte* base) {
  const int64_t rows = num_tokens * layer.top_k;
  Carver carver(base);
  SlotScratch scratch;
  scratch.by_slot = carver.take_matrix(dtype, rows, layer.hidden_size);
  scratch.by_expert = carver.take_matrix(dtype, rows, layer.hidden_size);
  scratch.rows = {carver.take<int32_t>(layer.num_experts + 1), carver.take<int32_t>(rows),
                  carver.take<int32_t>(rows), carver.take<int32_t>(rows)};
  scratch.bytes = carver.bytes();
  return scratch;
}

}  // namespace

size_t ReplicatedMoe::scratch_bytes(const LayerSpec& layer, int64_t max_num_tokens,
                                    DType activation) {
  return carve_slots(layer, max_num_tokens, activation, nullptr).bytes;
}

Status ReplicatedMoe::apply(FusedMoe& moe, const Matrix& hidden, TopkIds topk_ids,
                            TopkWeights topk_weights, const Matrix& output, Stream stream,
                            LoraIds lora_ids) const {
  if (!same_bits) {
    MORACLE_CHECK(moe.apply(hidden, topk_ids, topk_weights, output, stream, lora_ids));
    return exchange->all_reduce(output, stream);
  }
  const Plan& plan = moe.plan();
  const LayerSpec& layer = plan.layer;
  Ops& ops = device->ops();
  const SlotScratch all = carve_slots(layer, plan.max_num_tokens, plan.activation_dtype, scratch);
  const int64_t rows = hidden.rows * layer.top_k;
  const Matrix by_slot = all.by_slot.slice(0, rows), by_expert = all.by_expert.slice(0, rows);
  MORACLE_CHECK(moe.apply_rows(hidden, topk_ids, topk_weights, by_slot, stream, lora_ids));
  // Each row is 0 on all ranks but one, so the sum is exact.
  MORACLE_CHECK(exchange->all_reduce(by_slot, stream));
  MORACLE_CHECK(ops.plan_rows(topk_ids.data, hidden.rows, layer.top_k, layer.num_experts, nullptr,
                              layer.num_experts, all.rows, stream));
  // Entries of row_slot past the last row are those of earlier calls, or 0: rows that exist.
  const TensorView table{
      static_cast<const std::byte*>(by_slot.data), by_slot.dtype, {rows, by_slot.cols}};
  MORACLE_CHECK(ops.embed(table, all.rows.row_slot, by_expert, stream));
  const float* weights = layer.routing.weight_on_input ? nullptr : topk_weights.data;
  return ops.combine(by_expert, all.rows.slot_row, weights, layer.top_k, output, stream);
}

}  // namespace moracle
