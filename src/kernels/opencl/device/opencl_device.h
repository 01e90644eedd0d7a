// One OpenCL device: a GPU of any maker, or the CPU through a driver such as PoCL. Streams are
// cl_command_queue.
#pragma once

#include "base/threads/thread_pool.h"
#include "kernels/kernel_device.h"
#include "kernels/opencl/device/opencl_errors.h"
#include "kernels/opencl/device/opencl_memory.h"
#include "kernels/opencl/device/programs.h"
#include "kernels/opencl/staging/staging.h"

namespace moracle {

class OpenClOps;

class OpenClDevice : public KernelDevice {
 public:
  /// Errors: no loader, no such device, a device that lacks a feature of every kernel (shared
  /// pointers, 64-bit atomics), out of memory. `options.threads` host threads read and pack
  /// weights.
  static Result<std::shared_ptr<Device>> open(int index, const DeviceOptions& options);
  ~OpenClDevice() override;

  std::string name() const override;
  Platform platform() const override { return Platform::kOpenCl; }
  DType activation_dtype() const override { return DType::kBF16; }
  Result<Buffer> allocate(size_t bytes) override;
  bool host_visible() const override { return false; }
  Result<std::unique_ptr<HostAccess>> host_access(const Buffer& buffer) override;
  /// Returns when the bytes have arrived. The caller may then free the source.
  Status upload(void* to, const void* from, size_t bytes, Stream stream) override;
  Status enqueue_upload(void* to, const void* from, size_t bytes, Stream stream) override;
  Status download(void* to, const void* from, size_t bytes, Stream stream) override;
  Status read(void* to, const void* from, size_t bytes) override;
  Status copy(void* to, const void* from, size_t bytes, Stream stream) override;
  Status synchronize(Stream stream) override;
  Result<std::unique_ptr<Timeline>> timeline(Stream stream) override;
  Result<Buffer> allocate_host(size_t bytes) override;
  Ops& ops() override;
  ThreadPool& host_threads() override { return host_threads_; }
  std::shared_ptr<StreamOrder> stream_order() override;

  const opencl::Queue& queue() const { return queue_; }

 private:
  OpenClDevice(int index, const DeviceOptions& options);
  Status start();

  opencl::Queue queue_;
  std::shared_ptr<opencl::Memory> memory_;
  opencl::Programs programs_;
  opencl::Staging staging_;
  opencl::DeviceErrors device_errors_;
  std::unique_ptr<OpenClOps> ops_;
  ThreadPool host_threads_;
};

}  // namespace moracle
