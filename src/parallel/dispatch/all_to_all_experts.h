// All-to-all dispatch and combine of a layer's tokens: each row goes to the ranks that hold its
// experts, and their results return. The host reads the ids and the counts.
#pragma once

#include <vector>

#include "moracle/moe.h"
#include "moracle/parallel.h"
#include "parallel/dispatch/send_plan.h"
#include "quant/rows.h"

namespace moracle {

struct DispatchMessage;

class AllToAllExperts {
 public:
  /// The arguments outlive it. `same_bits`: the bits of one process. The result of each slot then
  /// returns by itself, and the token's rank takes the weighted sum.
  AllToAllExperts(Group& group, Exchange& exchange, Device& device, bool same_bits = false)
      : group_(group), exchange_(exchange), device_(device), same_bits_(same_bits) {}

  /// FusedMoe::apply over the experts of all ranks. The ranks may have different numbers of tokens,
  /// also none; each calls it. A row is sent once to each rank that holds any of its experts, with
  /// their ids and weights; quantized, where the scheme quantizes activations. The host waits for
  /// the ids. `hidden` and `output` have the plan's activation dtype and no gaps. Results are added
  /// in the order of the ranks. More received rows than the plan's max_num_tokens run in chunks.
  Status run(FusedMoe& moe, const ExpertCopies& copies, const Matrix& hidden, TopkIds topk_ids,
             TopkWeights topk_weights, const Matrix& output, Stream stream);
  /// Bytes of rows, scales, ids and weights that this rank sent to others, dispatch and combine.
  int64_t sent_bytes() const { return sent_bytes_; }

 private:
  struct Received {
    Rows rows;                   ///< quantized, or floats without scales; grouped by source rank
    std::vector<int32_t> ids;    ///< [rows, top_k]
    std::vector<float> weights;  ///< likewise
  };

  // all_to_all_dispatch.cc. Sets the receive counts of `plan`.
  Result<Received> dispatch(FusedMoe& moe, const Matrix& hidden, SendPlan& plan, Stream stream);
  Result<Rows> quantize(FusedMoe& moe, const Matrix& hidden, Stream stream);
  Result<Received> unpack(const DispatchMessage& form, const Rows& like,
                          std::span<const std::span<const std::byte>> messages, SendPlan& plan);
  // all_to_all_combine.cc. `results` has a row for each received row, or with same_bits_ for each
  // slot.
  Status run_experts(FusedMoe& moe, const Received& received, const Matrix& results, Stream stream);
  Status combine(FusedMoe& moe, const SendPlan& plan, const Received& received,
                 const Matrix& output, Stream stream);
  Status combine_slots(FusedMoe& moe, const SendPlan& plan, const Received& received,
                       TopkIds topk_ids, TopkWeights topk_weights, const Matrix& output,
                       Stream stream);
  // An all-to-all with counts of rows in device memory.
  Status all_to_all(const std::byte* send, const std::vector<int64_t>& send_counts, std::byte* recv,
                    const std::vector<int64_t>& recv_counts, int64_t row_bytes, Stream stream);
  Result<std::byte*> grow(Buffer& buffer, int64_t bytes);

  Group& group_;
  Exchange& exchange_;
  Device& device_;
  const bool same_bits_;
  int64_t sent_bytes_ = 0;
  // Device memory; grows to the largest call.
  Buffer index_, quantized_, scales_, sent_, received_, ids_, weights_, results_, packed_,
      returned_, sums_;
  std::vector<std::byte> messages_;  // to all ranks, one after another
  std::vector<Group::Message> received_messages_;
};

}  // namespace moracle
