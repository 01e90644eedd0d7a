// The CPU as a device: memory is host memory, the queue is the thread pool, and calls run
// synchronously.
#pragma once

#include "base/threads/thread_pool.h"
#include "kernels/device/engine_memory.h"
#include "kernels/kernel_device.h"
#include "kernels/ops.h"

namespace moracle {

class CpuOps;

namespace cpu {
/// Errors: this CPU lacks instructions of a plan.
Status check_isa(Isa planned);
}  // namespace cpu

class CpuDevice : public KernelDevice {
 public:
  explicit CpuDevice(int threads) : CpuDevice(DeviceOptions{.threads = threads}) {}
  explicit CpuDevice(const DeviceOptions& options);
  /// Errors: fewer threads started than `options` wants (see ThreadPool::started).
  static Result<std::shared_ptr<Device>> open(const DeviceOptions& options);
  ~CpuDevice() override;

  std::string name() const override { return "cpu"; }
  Platform platform() const override { return Platform::kCpu; }
  DType activation_dtype() const override { return DType::kF32; }
  Result<Buffer> allocate(size_t bytes) override;
  bool host_visible() const override { return true; }
  Status upload(void* to, const void* from, size_t bytes, Stream) override;
  Status download(void* to, const void* from, size_t bytes, Stream) override;
  Status read(void* to, const void* from, size_t bytes) override;
  Status copy(void* to, const void* from, size_t bytes, Stream) override;
  Status synchronize(Stream) override;
  Ops& ops() override;

  ThreadPool& host_threads() override { return pool_; }
  ThreadPool& pool() { return pool_; }

  /// Scratch for one call of a kernel. Callers hold lock(), so that kernels of one device do not
  /// overlap. Grows only while kernels are made. Errors: kOutOfMemory; the old scratch then
  /// remains.
  Status reserve_scratch(size_t bytes);
  std::byte* scratch() const { return scratch_.as<std::byte>(); }

 private:
  const EngineMemory memory_;
  ThreadPool pool_;
  Buffer scratch_;
  std::unique_ptr<CpuOps> ops_;
};

}  // namespace moracle
