// Sends tokens to the ranks that hold their experts, and the results back. The layers of a model
// share one, with its memory.
#pragma once

#include <span>
#include <vector>

#include "moracle/moe.h"
#include "moracle/parallel.h"
#include "parallel/dispatch/routes.h"
#include "parallel/expert_batches.h"
#include "parallel/expert_copies.h"
#include "quant/rows.h"

namespace moracle {

struct ColumnOrders;
struct DispatchMessage;

class Dispatch {
 public:
  /// The arguments outlive it. `same_bits`: the bits of one process. The result of each slot then
  /// comes back by itself, and its own rank takes the weighted sum.
  Dispatch(Group& group, Exchange& exchange, Device& device, bool same_bits = false)
      : group_(group), exchange_(exchange), device_(device), same_bits_(same_bits) {}

  /// Makes what Exchange::batches() needs for a layer, if the exchange has them. Every rank calls
  /// it once for each layer, outside of graphs. Errors: a layer, placement or device that they
  /// cannot serve, with the reason.
  Status prepare(FusedMoe& moe, const ExpertCopies& copies);
  /// Begins a step of all ranks: waits until each of them is here. `rests`: this rank has no more
  /// tokens. Returns false if all ranks rest.
  Result<bool> begin_step(int64_t num_tokens, bool rests);
  /// The largest number of tokens that a rank has in this step.
  int64_t most_tokens() const { return most_tokens_; }
  /// True if run() is apply_gathered: the host decides nothing, so a graph can record it.
  bool gathers() const;
  /// A layer's experts within a step, for the tokens of all ranks. `hidden` and `output` have the
  /// rows of this rank's tokens; their memory and that of `topk_ids` and `topk_weights` hold
  /// most_tokens(). Ids past the tokens become -1 where gathers().
  Status run(FusedMoe& moe, const ExpertCopies& copies, const Matrix& hidden, int32_t* topk_ids,
             const float* topk_weights, const Matrix& output, Stream stream);

  /// The functions of DispatchedMoe.
  Status apply(FusedMoe& moe, const ExpertCopies& copies, const Matrix& hidden, TopkIds topk_ids,
               TopkWeights topk_weights, const Matrix& output, Stream stream);
  Status apply_gathered(FusedMoe& moe, const ExpertCopies& copies, const Matrix& hidden,
                        TopkIds topk_ids, TopkWeights topk_weights, const Matrix& output,
                        Stream stream);
  /// What apply_gathered sends for so few tokens that batches() take them, without the experts
  /// between: for timing. Errors: there are no batches; too many tokens.
  Status send_batch(FusedMoe& moe, const Matrix& hidden, TopkIds topk_ids, TopkWeights topk_weights,
                    const Matrix& output, Stream stream);
  /// Bytes of rows, scales, ids and weights that this rank sent to others in apply, both ways.
  int64_t sent_bytes() const { return sent_bytes_; }
  /// Device memory of apply_gathered for a layer with this plan.
  static int64_t gathered_bytes(const Plan& plan);
  /// Further device memory where batches() take up to `batch_tokens` tokens of a rank.
  static int64_t batch_bytes(const Plan& plan, int64_t batch_tokens, int64_t ranks);

 private:
  struct Arrived;  // rows of other ranks, with ids and weights
  struct Gathering;
  struct Batch;
  // The batch of a layer, in memory of its own.
  Result<Batch> batch_of(const FusedMoe& moe);
  bool takes_batch(const Plan& plan, int64_t num_tokens) const;
  Status apply_batch(FusedMoe& moe, const Matrix& hidden, TopkIds topk_ids,
                     TopkWeights topk_weights, const Matrix& output, Stream stream);
  Status dispatch_batch(FusedMoe& moe, const Batch& batch, const Matrix& hidden, TopkIds topk_ids,
                        Stream stream);
  Result<std::byte*> memory(Buffer& buffer, int64_t bytes);
  Result<Rows> in_codes(FusedMoe& moe, const Matrix& hidden, Stream stream);
  Result<ColumnOrders> upload_index(const Routes& routes, int64_t cols, Stream stream);
  Status gather_rows(const Rows& from, const ColumnOrders& columns, int64_t first, int64_t count,
                     std::byte* rows, std::byte* scales, Stream stream);
  Result<std::vector<Group::Part>> write_messages(const DispatchMessage& form, const Routes& routes,
                                                  std::byte* to);
  Result<Arrived> take_messages(const DispatchMessage& form, const Rows& like,
                                std::span<const std::span<const std::byte>> messages,
                                Routes& routes);
  Result<Arrived> send_rows(FusedMoe& moe, const Matrix& hidden, Routes& routes, Stream stream);
  Status run_arrived(FusedMoe& moe, const Arrived& arrived, const Matrix& results, Stream stream);
  Status return_rows(FusedMoe& moe, const Routes& routes, const Arrived& arrived,
                     const Matrix& output, Stream stream);
  Status return_slots(FusedMoe& moe, const Routes& routes, const Arrived& arrived, TopkIds topk_ids,
                      TopkWeights topk_weights, const Matrix& output, Stream stream);
  // Sends part r of `from`, of from_counts[r] rows, to rank r.
  Status exchange_rows(const std::byte* from, const std::vector<int64_t>& from_counts,
                       std::byte* to, const std::vector<int64_t>& to_counts, int64_t row_bytes,
                       Stream stream);

  Group& group_;
  Exchange& exchange_;
  Device& device_;
  const bool same_bits_;
  int64_t most_tokens_ = 0;
  int64_t sent_bytes_ = 0;
  // Grown as needed.
  Buffer index_, quantized_, scales_, sent_, arrived_, ids_, weights_, results_, packed_, returned_,
      slots_, sums_, gathered_, no_ids_, batch_;
  std::vector<std::byte> messages_;  // to all ranks, one after another
  std::vector<Group::Message> received_;
  std::vector<int32_t> index_rows_;
};

}  // namespace moracle
