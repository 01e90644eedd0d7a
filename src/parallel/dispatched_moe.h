// The experts of a layer on several ranks that have their own tokens. Prepare sends each token's
// row to the ranks that hold its experts; these run; finalize sends the results back and sums them.
#pragma once

#include <vector>

#include "moracle/moe.h"
#include "moracle/parallel.h"
#include "quant/rows.h"

namespace moracle {

class DispatchedMoe {
 public:
  /// `moe` holds the experts of this rank, `maps` those of every rank. Errors: maps that do not
  /// cover each expert once; memory.
  static Result<DispatchedMoe> make(FusedMoe moe, std::vector<ExpertMap> maps,
                                    std::shared_ptr<Group> group,
                                    std::shared_ptr<Exchange> exchange,
                                    std::shared_ptr<Device> device);

  /// FusedMoe::apply over the experts of all ranks. The ranks may have different numbers of tokens,
  /// also none; each calls it. A row travels once to each rank that holds any of its experts, with
  /// their ids and weights; quantized, where the scheme quantizes activations. The host waits for
  /// the ids, so this is for prompts. `hidden` and `output` have the plan's activation dtype and no
  /// gaps. Sums over ranks are taken in their order.
  Status apply(const Matrix& hidden, TopkIds topk_ids, TopkWeights topk_weights,
               const Matrix& output, Stream stream = {});
  /// The same for few tokens, equally many on each rank; unused ones have ids of -1. Every rank
  /// gets all tokens, and results are summed. Nothing is decided on the host, so a graph can record
  /// it. All ranks' tokens together are at most the plan's max_num_tokens.
  Status apply_gathered(const Matrix& hidden, TopkIds topk_ids, TopkWeights topk_weights,
                        const Matrix& output, Stream stream = {});

  /// Bytes of rows, ids and weights that this rank sent to others in apply, both ways.
  int64_t sent_bytes() const { return sent_bytes_; }
  const FusedMoe& experts() const { return moe_; }

 private:
  struct Routes;   // which tokens go to which rank
  struct Arrived;  // rows of other ranks, with ids and weights, in device memory
  DispatchedMoe(FusedMoe moe, std::shared_ptr<Group> group, std::shared_ptr<Exchange> exchange,
                std::shared_ptr<Device> device)
      : moe_(std::move(moe)),
        group_(std::move(group)),
        exchange_(std::move(exchange)),
        device_(std::move(device)) {}
  Result<std::byte*> memory(Buffer& buffer, int64_t bytes);
  Result<Routes> route(int64_t num_tokens, TopkIds ids, TopkWeights weights, Stream stream);
  Result<Arrived> dispatch(const Matrix& hidden, const Routes& routes, Stream stream);
  Status run(const Arrived& arrived, const Matrix& results, Stream stream);
  // Sends part r of `from`, of from_counts[r] rows, to rank r.
  Status exchange_rows(const std::byte* from, const std::vector<int64_t>& from_counts,
                       std::byte* to, const std::vector<int64_t>& to_counts, int64_t row_bytes,
                       Stream stream);

  FusedMoe moe_;
  std::shared_ptr<Group> group_;
  std::shared_ptr<Exchange> exchange_;
  std::shared_ptr<Device> device_;
  std::vector<int32_t> holder_;  // the rank of each expert
  int64_t sent_bytes_ = 0;
  // Grown as needed.
  Buffer index_, quantized_, scales_, sent_, arrived_, ids_, weights_, results_, returned_, slots_,
      gathered_;
};

}  // namespace moracle
