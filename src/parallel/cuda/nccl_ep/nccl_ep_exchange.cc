// NCCL, with nccl_ep for dispatched steps of few tokens.
#if defined(MORACLE_WITH_NCCL_EP)
#include "base/text.h"
#include "parallel/cuda/nccl_ep/nccl_ep_batches.h"
#include "parallel/cuda/nccl_ep/nccl_ep_load.h"
#include "parallel/exchange_makers.h"

namespace moracle {
namespace {

class NcclEpExchange final : public Exchange {
 public:
  explicit NcclEpExchange(std::unique_ptr<NcclExchange> rest)
      : rest_(std::move(rest)), batches_(*rest_) {}
  std::string_view name() const override { return "nccl-ep"; }
  bool in_graphs() const override { return true; }
  Status all_reduce(const Matrix& x, Stream stream) override {
    return rest_->all_reduce(x, stream);
  }
  Status all_gather(const void* mine, size_t bytes, void* all, Stream stream) override {
    return rest_->all_gather(mine, bytes, all, stream);
  }
  Status all_gather(std::span<const Gathered> parts, Stream stream) override {
    return rest_->all_gather(parts, stream);
  }
  Status reduce_scatter(const Matrix& all, const Matrix& mine, Stream stream) override {
    return rest_->reduce_scatter(all, mine, stream);
  }
  Status exchange(std::span<const Group::Part> send, std::span<const Group::Part> receive,
                  Stream stream) override {
    return rest_->exchange(send, receive, stream);
  }
  ExpertBatches* batches() override { return &batches_; }

 private:
  std::unique_ptr<NcclExchange> rest_;
  NcclEpBatches batches_;  // uses rest_, so it ends first
};

}  // namespace

std::string nccl_ep_lacks() {
  const Result<nccl::EpApi>& library = nccl::ep_api();
  return library ? "" : library.error().fact;
}

Result<std::unique_ptr<Exchange>> make_nccl_ep(std::shared_ptr<Group> group,
                                               std::shared_ptr<Device> device) {
  if (const auto& library = nccl::ep_api(); !library) return library.error();
  MORACLE_TRY(std::unique_ptr<NcclExchange> rest,
              NcclExchange::make(std::move(group), std::move(device)));
  return std::unique_ptr<Exchange>(std::make_unique<NcclEpExchange>(std::move(rest)));
}

}  // namespace moracle
#endif
