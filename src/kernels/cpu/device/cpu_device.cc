#include "kernels/cpu/device/cpu_device.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "base/text.h"
#include "base/try.h"
#include "kernels/cpu/ops/cpu_ops.h"
#include "oracle/machine/detect.h"

namespace moracle {

namespace {
ThreadAffinity affinity_of(const DeviceOptions& options) {
  ThreadAffinity affinity;
  if (options.pin) {
    const std::vector<int> cpus = options.cpus.empty() ? affinity_cpus() : options.cpus;
    const int threads = options.threads < 1 ? usable_threads(cpus) : options.threads;
    affinity = assign_threads(threads, cpus, numa_nodes());
  }
  affinity.team = options.cpus;
  return affinity;
}
ThreadPool threads_of(const DeviceOptions& options) {
  if (options.run_tasks) return ThreadPool(options.threads, options.run_tasks);
  return ThreadPool(options.threads, affinity_of(options));
}
}  // namespace

Status cpu::check_isa(Isa planned) {
  static const Isa kHere = detect_cpu().isa;
  const Isa lacking = missing(planned, kHere);
  if (lacking == Isa::kNone) return {};
  return Error{ErrorKind::kUnsupported, "", "cpu", "a CPU with " + names(planned) + ", as planned",
               "this CPU lacks " + names(lacking)};
}

CpuDevice::CpuDevice(const DeviceOptions& options)
    : memory_(options), pool_(threads_of(options)), ops_(std::make_unique<CpuOps>(pool_)) {}
CpuDevice::~CpuDevice() = default;

Result<std::shared_ptr<Device>> CpuDevice::open(const DeviceOptions& options) {
  MORACLE_CHECK(check_cpus(options.cpus));
  auto device = std::make_shared<CpuDevice>(options);
  MORACLE_CHECK(device->pool_.started());
  return std::shared_ptr<Device>(std::move(device));
}

Ops& CpuDevice::ops() {
  return *ops_;
}

// Every call completes its work before it returns. Only errors wait for this call.
Status CpuDevice::synchronize(Stream) {
  return ops_->take_device_error();
}

Result<Buffer> CpuDevice::allocate(size_t bytes) {
  if (bytes == 0) return Buffer();
  if (memory_) {
    MORACLE_TRY(Buffer buffer, memory_.take(bytes, name()));
    std::memset(buffer.data(), 0, bytes);
    return buffer;
  }
  // Allocate directly from the system: zeroed, page-aligned, returned whole, on huge pages if
  // possible.
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return Error{ErrorKind::kOutOfMemory, "", "cpu", str(bytes, " bytes of memory"),
                 std::strerror(errno)};
  }
  ::madvise(data, bytes, MADV_HUGEPAGE);
  return Buffer(data, bytes, std::shared_ptr<void>(data, [bytes](void* p) { ::munmap(p, bytes); }));
}

Status CpuDevice::reserve_scratch(size_t bytes) {
  const DeviceLock lock = this->lock();
  if (bytes <= scratch_.bytes()) return {};
  // Free the old scratch last: existing kernels still need it if the system refuses more memory.
  MORACLE_TRY(scratch_, allocate(bytes));
  return {};
}

Status CpuDevice::upload(void* to, const void* from, size_t bytes, Stream) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return {};
}

Status CpuDevice::read(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return {};
}

Status CpuDevice::copy(void* to, const void* from, size_t bytes, Stream) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return {};
}

Status CpuDevice::download(void* to, const void* from, size_t bytes, Stream) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return {};
}

}  // namespace moracle
