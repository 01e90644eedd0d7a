// The experts of a layer on several ranks that have their own tokens. Prepare sends each token's
// row to the ranks that hold its experts; these run; finalize sends the results back and sums them.
#pragma once

#include <memory>
#include <vector>

#include "moracle/moe.h"
#include "moracle/parallel.h"
#include "parallel/dispatch/dispatch.h"

namespace moracle {

class DispatchedMoe {
 public:
  /// `moe` holds the experts of this rank, `maps` those of every rank. An expert may be on
  /// several ranks, which share its tokens. Errors: maps that do not cover every expert; a layer
  /// that the exchange's batches cannot serve; memory.
  static Result<DispatchedMoe> make(FusedMoe moe, std::vector<ExpertMap> maps,
                                    std::shared_ptr<Group> group,
                                    std::shared_ptr<Exchange> exchange,
                                    std::shared_ptr<Device> device);

  /// FusedMoe::apply over the experts of all ranks. The ranks may have different numbers of tokens,
  /// also none; each calls it. A row travels once to each rank that holds any of its experts, with
  /// their ids and weights; quantized, where the scheme quantizes activations. The host waits for
  /// the ids. `hidden` and `output` have the plan's activation dtype and no gaps. Sums over ranks
  /// are taken in their order.
  Status apply(const Matrix& hidden, TopkIds topk_ids, TopkWeights topk_weights,
               const Matrix& output, Stream stream = {});
  /// The same for equally many tokens on each rank; unused ones have ids of -1. Every rank gets all
  /// tokens, quantized as above except for kernels that fuse a whole layer, and results are summed.
  /// Nothing is decided on the host, so a graph can record it. More tokens than the plan's
  /// max_num_tokens divided by the ranks run in parts. Where the exchange has batches(), they take
  /// calls of few tokens instead: each rank then gets only the tokens of its experts.
  Status apply_gathered(const Matrix& hidden, TopkIds topk_ids, TopkWeights topk_weights,
                        const Matrix& output, Stream stream = {});

  /// What batches() do in apply_gathered, without the experts: for timing.
  Status send_batch(const Matrix& hidden, TopkIds topk_ids, TopkWeights topk_weights,
                    const Matrix& output, Stream stream = {});

  /// Bytes of rows, ids and weights that this rank sent to others in apply, both ways.
  int64_t sent_bytes() const { return dispatch_->sent_bytes(); }
  const FusedMoe& experts() const { return moe_; }

 private:
  DispatchedMoe(FusedMoe moe, std::shared_ptr<Group> group, std::shared_ptr<Exchange> exchange,
                std::shared_ptr<Device> device)
      : moe_(std::move(moe)),
        group_(std::move(group)),
        exchange_(std::move(exchange)),
        device_(std::move(device)),
        dispatch_(std::make_unique<Dispatch>(*group_, *exchange_, *device_)) {}

  FusedMoe moe_;
  ExpertCopies copies_;
  std::shared_ptr<Group> group_;
  std::shared_ptr<Exchange> exchange_;
  std::shared_ptr<Device> device_;
  std::unique_ptr<Dispatch> dispatch_;
};

}  // namespace moracle
