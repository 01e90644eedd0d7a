// One NVIDIA GPU as a device. Streams are cudaStream_t. The default queue is the device's own
// stream: unlike the legacy stream, it can be captured in a graph.
#pragma once

#include "base/threads/thread_pool.h"
#include "kernels/cuda/device/cuda_memory.h"
#include "kernels/cuda/device/cuda_queue.h"
#include "kernels/cuda/device/cuda_watches.h"
#include "kernels/cuda/device/device_error.h"
#include "kernels/cuda/staging/pinned_staging.h"
#include "kernels/cuda/staging/weight_staging.h"
#include "kernels/kernel_device.h"

namespace moracle {

class CudaOps;
namespace cuda {
class CublasLt;
}

/// Every call that uses the device's own stream or its pinned memory holds lock(). That stream may
/// be under capture, and work that another thread enqueues meanwhile would become part of the
/// graph.
class CudaDevice : public KernelDevice {
 public:
  /// Errors: no such GPU, no driver, a compute capability below 7.5, out of memory.
  /// Threads of `options` read and pack weights.
  static Result<std::shared_ptr<Device>> open(int index, const DeviceOptions& options);
  ~CudaDevice() override;

  std::string name() const override;
  Platform platform() const override { return Platform::kCuda; }
  DType activation_dtype() const override { return DType::kBF16; }
  Result<Buffer> allocate(size_t bytes) override;
  /// Allocates from CUDA, never from the engine's allocator, so that other processes can open the
  /// memory.
  Result<Buffer> allocate_to_share(size_t bytes);
  bool host_visible() const override { return false; }
  /// Returns when the bytes have arrived for every stream. The caller may then free the source.
  Status upload(void* to, const void* from, size_t bytes, Stream stream) override;
  Status enqueue_upload(void* to, const void* from, size_t bytes, Stream stream) override;
  Status download(void* to, const void* from, size_t bytes, Stream stream) override;
  Status read(void* to, const void* from, size_t bytes) override;
  Status copy(void* to, const void* from, size_t bytes, Stream stream) override;
  Status synchronize(Stream stream) override;
  Result<std::unique_ptr<Graph>> record(const std::function<Status()>& enqueue,
                                        Stream stream) override;
  Result<std::unique_ptr<Timeline>> timeline(Stream stream) override;
  /// Allocates pinned memory.
  Result<Buffer> allocate_host(size_t bytes) override;
  Ops& ops() override;
  ThreadPool& host_threads() override { return host_threads_; }
  std::shared_ptr<StreamOrder> stream_order() override;
  Result<std::unique_ptr<HostLink>> host_link(const HostLinkSize& size) override;
  Result<std::unique_ptr<ExpertTransfers>> transfers(int64_t from_bytes, int64_t to_bytes) override;
  std::shared_ptr<void> pin(void* data, size_t bytes) override;

  const cuda::Queue& queue() const { return queue_; }
  const cuda::DeviceErrors& device_errors() const { return device_errors_; }
  /// Monitors waits for work that depends on other processes.
  cuda::Watches& watches() { return watches_; }
  /// Staging for weight conversion; the conversion threads share it.
  cuda::WeightStaging& weight_staging() { return weight_staging_; }
  /// cuBLASLt on this device; null until a layer uses it. The caller holds the device's lock.
  std::shared_ptr<cuda::CublasLt>& cublaslt() { return cublaslt_; }

 private:
  CudaDevice(int index, const DeviceOptions& options);
  Status start();
  Result<Buffer> zeroed(Result<Buffer> buffer);

  cuda::Queue queue_;
  const cuda::DeviceMemory memory_;
  cuda::DeviceErrors device_errors_;
  cuda::Watches watches_;
  cuda::PinnedStaging staging_;
  cuda::WeightStaging weight_staging_{queue_, memory_};
  std::unique_ptr<CudaOps> ops_;
  std::shared_ptr<cuda::CublasLt> cublaslt_;
  ThreadPool host_threads_;
};

}  // namespace moracle
