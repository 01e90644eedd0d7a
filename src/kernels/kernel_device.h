// What kernels, layers and models need of a device beyond its public interface.
#pragma once

#include <memory>

#include "moracle/device.h"

namespace moracle {

class ExpertTransfers;
class HostLink;
struct HostLinkSize;
class Ops;
class ThreadPool;

/// Orders work on several streams that share memory.
class StreamOrder {
 public:
  virtual ~StreamOrder() = default;
  /// Later work on `stream` waits for the work between earlier calls of begin and end. Errors:
  /// those of the device.
  virtual Status begin(Stream stream) = 0;
  virtual void end(Stream stream) = 0;
  /// True if a graph has captured work between begin and end. Its replays use the same memory.
  virtual bool captured() const { return false; }
};

/// Every Device is one.
class KernelDevice : public Device {
 public:
  /// All operations except the GEMMs.
  virtual Ops& ops() = 0;
  /// Host threads for work on host memory, mainly to pack weights.
  virtual ThreadPool& host_threads() = 0;
  /// Null if streams run one after another, as on a CPU.
  virtual std::shared_ptr<StreamOrder> stream_order() { return nullptr; }
  /// A link to the host for calls of at most this size: plain_host_link(). Errors: memory.
  virtual Result<std::unique_ptr<HostLink>> host_link(const HostLinkSize& size);
  /// Transfers of experts of at most `from_bytes` in host memory and `to_bytes` on this device:
  /// plain_transfers(). Errors: memory.
  virtual Result<std::unique_ptr<ExpertTransfers>> transfers(int64_t from_bytes, int64_t to_bytes);
  /// Pins host memory until the result ends, so that this device reads it at full speed. Null:
  /// not needed, or refused, which only costs speed.
  virtual std::shared_ptr<void> pin(void* data, size_t bytes) {
    static_cast<void>(data), static_cast<void>(bytes);
    return nullptr;
  }
};

inline KernelDevice& kernel_device(Device& device) {
  return static_cast<KernelDevice&>(device);
}

}  // namespace moracle
