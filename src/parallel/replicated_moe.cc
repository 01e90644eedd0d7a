#include "parallel/replicated_moe.h"

#include "base/try.h"
#include "kernels/kernel_device.h"
#include "parallel/slot_sums.h"

namespace moracle {

size_t ReplicatedMoe::scratch_bytes(const LayerSpec& layer, int64_t max_num_tokens,
                                    DType activation) {
  return SlotSums::carve(layer, max_num_tokens, activation, nullptr).bytes;
}

Result<TopkIds> ReplicatedMoe::served(const ExpertCopies& copies, const LayerSpec& layer,
                                      int32_t* own_ids, int64_t num_tokens, TopkIds topk_ids,
                                      Stream stream) const {
  if (!copies.has_several()) return topk_ids;
  MORACLE_CHECK(copies.keep_own(topk_ids.data, num_tokens, layer.top_k, own_ids,
                                kernel_device(*device).ops(), stream));
  return TopkIds{own_ids};
}

Status ReplicatedMoe::apply(PlacedMoe& moe, const ExpertCopies& copies, int32_t* own_ids,
                            const Matrix& hidden, TopkIds topk_ids, TopkWeights topk_weights,
                            const Matrix& output, Stream stream, LoraIds lora_ids) const {
  MORACLE_TRY(const TopkIds own,
              served(copies, moe.host_plan().layer, own_ids, hidden.rows, topk_ids, stream));
  MORACLE_CHECK(moe.apply(hidden, own, topk_weights, output, stream, lora_ids));
  return exchange->all_reduce(output, stream);
}

Status ReplicatedMoe::apply(FusedMoe& moe, const ExpertCopies& copies, int32_t* own_ids,
                            const Matrix& hidden, TopkIds topk_ids, TopkWeights topk_weights,
                            const Matrix& output, Stream stream, LoraIds lora_ids) const {
  MORACLE_TRY(const TopkIds own,
              served(copies, moe.plan().layer, own_ids, hidden.rows, topk_ids, stream));
  if (!same_bits) {
    MORACLE_CHECK(moe.apply(hidden, own, topk_weights, output, stream, lora_ids));
    return exchange->all_reduce(output, stream);
  }
  const Plan& plan = moe.plan();
  const LayerSpec& layer = plan.layer;
  const SlotSums sums = SlotSums::carve(layer, plan.max_num_tokens, plan.activation_dtype, scratch);
  const Matrix by_slot = sums.by_slot.slice(0, hidden.rows * layer.top_k);
  MORACLE_CHECK(moe.apply_rows(hidden, own, topk_weights, by_slot, stream, lora_ids));
  // Each row is 0 on all ranks but one, so the sum is exact.
  MORACLE_CHECK(exchange->all_reduce(by_slot, stream));
  // Entries of row_slot past the last row are those of earlier calls, or 0: rows that exist.
  return sums.add(layer, topk_ids, topk_weights, by_slot.rows, output, kernel_device(*device).ops(),
                  stream);
}

}  // namespace moracle
