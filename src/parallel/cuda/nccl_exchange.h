// Moves activations between NVIDIA GPUs with NCCL.
#pragma once

#include "kernels/cuda/device/cuda_device.h"
#include "parallel/cuda/nccl_communicator.h"

namespace moracle {

class NcclExchange final : public Exchange {
 public:
  /// `communicator`: the engine's; null: one of its own.
  static Result<std::unique_ptr<NcclExchange>> make(std::shared_ptr<Group> group,
                                                    std::shared_ptr<Device> device,
                                                    ncclComm_t communicator = nullptr);
  /// Waits for the device's own stream. Graphs that hold operations must be gone before.
  ~NcclExchange() override;
  std::string_view name() const override { return "nccl"; }
  bool in_graphs() const override { return true; }
  Status all_reduce(const Matrix& x, Stream stream) override;
  Status all_gather(const void* mine, size_t bytes, void* all, Stream stream) override;
  Status all_gather(std::span<const Gathered> gathered, Stream stream) override;
  Status reduce_scatter(const Matrix& all, const Matrix& mine, Stream stream) override;
  Status exchange(std::span<const Group::Block> send, std::span<const Group::Block> receive,
                  Stream stream) override;

  const std::shared_ptr<Group>& group() const { return group_; }
  CudaDevice& device() const { return *device_; }
  nccl::Communicator& communicator() const { return *communicator_; }

 private:
  NcclExchange(std::shared_ptr<Group> group, std::shared_ptr<CudaDevice> device)
      : api_(*nccl::api()), group_(std::move(group)), device_(std::move(device)) {}
  // Calls enqueue(stream) on the device, if nothing has failed.
  template <class Enqueue>
  Status enqueue(const char* name, size_t kind, Stream stream, const Enqueue& enqueue);

  const nccl::Api& api_;
  std::shared_ptr<Group> group_;
  std::shared_ptr<CudaDevice> device_;
  std::unique_ptr<nccl::Communicator> communicator_;
};

/// Errors: numbers that are not floats, or that have gaps.
Status check_summed(const Matrix& x);
/// Errors: also rows of `all` that are not those of `mine` for each rank.
Status check_scattered(const Matrix& all, const Matrix& mine, int64_t ranks);

}  // namespace moracle
