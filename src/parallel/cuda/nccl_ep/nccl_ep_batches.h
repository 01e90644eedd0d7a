// Batches through NVIDIA's nccl_ep in low-latency, expert-major mode: two kernels on each GPU that
// write to the memory of the other ranks.
#pragma once

#include <map>

#include "parallel/cuda/nccl_ep/nccl_ep_api.h"
#include "parallel/cuda/nccl_ep/nccl_ep_structs.h"
#include "parallel/cuda/nccl_exchange.h"
#include "parallel/exchange_makers.h"
#include "parallel/expert_batches.h"

namespace moracle {

class NcclEpBatches final : public ExpertBatches {
 public:
  /// `exchange` outlives it.
  explicit NcclEpBatches(NcclExchange& exchange);
  /// Ends within some seconds, even if the library does not.
  ~NcclEpBatches() override;

  int64_t max_tokens() const override { return kEpTokens; }
  Status prepare(const BatchShape& shape) override;
  Status dispatch(const BatchShape& shape, const Rows& tokens, TopkIds topk_ids, const Rows& batch,
                  int32_t* counts, Stream stream) override;
  Status combine(const BatchShape& shape, const ExpertResults& results, TopkIds topk_ids,
                 TopkWeights topk_weights, const Matrix& batch, const Matrix& output,
                 Stream stream) override;

 private:
  Result<std::shared_ptr<nccl::EpHandle>> find(const BatchShape& shape) const;
  // Runs `call` with the stream, if no exchange of this GPU has failed.
  Status enqueue(const char* name, size_t kind, Stream stream,
                 std::function<ncclResult_t(cudaStream_t)> call);

  NcclExchange& exchange_;
  const nccl::EpApi& api_;
  std::map<BatchShape, std::shared_ptr<nccl::EpHandle>> prepared_;
};

}  // namespace moracle
