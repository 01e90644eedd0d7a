// The experts of a layer on several ranks that have their own tokens: dispatch, experts, combine.
#pragma once

#include <memory>
#include <vector>

#include "moracle/moe.h"
#include "moracle/parallel.h"
#include "parallel/dispatch/all_to_all_experts.h"
#include "parallel/dispatch/gathered_experts.h"

namespace moracle {

class DispatchedMoe {
 public:
  /// `moe` holds the experts of this rank, `maps` those of every rank. An expert may be on
  /// several ranks, which share its tokens. Errors: maps that do not cover every expert; memory.
  static Result<DispatchedMoe> make(FusedMoe moe, std::vector<ExpertMap> maps,
                                    std::shared_ptr<Group> group,
                                    std::shared_ptr<Exchange> exchange,
                                    std::shared_ptr<Device> device);

  /// FusedMoe::apply over the experts of all ranks, by all-to-all. The ranks may have different
  /// numbers of tokens, also none; each calls it. A row is sent once to each rank that holds any of
  /// its experts, with their ids and weights; quantized, where the scheme quantizes activations.
  /// The host waits for the ids. `hidden` and `output` have the plan's activation dtype and no
  /// gaps. Results are added in the order of the ranks.
  Status apply(const Matrix& hidden, TopkIds topk_ids, TopkWeights topk_weights,
               const Matrix& output, Stream stream = {});
  /// The same for equally many tokens on each rank, by all-gather and reduce-scatter; unused tokens
  /// have ids of -1. Tokens are quantized as above, except for kernels that fuse a whole layer. The
  /// host reads nothing, so a graph can record it. More tokens than the plan's max_num_tokens
  /// divided by the ranks run in chunks.
  Status apply_gathered(const Matrix& hidden, TopkIds topk_ids, TopkWeights topk_weights,
                        const Matrix& output, Stream stream = {});

  /// AllToAllExperts::sent_bytes, of apply.
  int64_t sent_bytes() const { return all_to_all_->sent_bytes(); }
  const FusedMoe& experts() const { return moe_; }

 private:
  DispatchedMoe(FusedMoe moe, std::shared_ptr<Group> group, std::shared_ptr<Exchange> exchange,
                std::shared_ptr<Device> device)
      : moe_(std::move(moe)),
        group_(std::move(group)),
        exchange_(std::move(exchange)),
        device_(std::move(device)),
        all_to_all_(std::make_unique<AllToAllExperts>(*group_, *exchange_, *device_)),
        gathered_(std::make_unique<GatheredExperts>(*group_, *exchange_, *device_)) {}

  FusedMoe moe_;
  ExpertCopies copies_;
  std::shared_ptr<Group> group_;
  std::shared_ptr<Exchange> exchange_;
  std::shared_ptr<Device> device_;
  std::unique_ptr<AllToAllExperts> all_to_all_;
  std::unique_ptr<GatheredExperts> gathered_;
};

}  // namespace moracle
