// A device: a place with memory and an ordered queue of work.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "moracle/base.h"
#include "moracle/oracle.h"

namespace moracle {

class Device;
class Ops;
class ThreadPool;

/// A queue of a device, in the device's own terms: a cudaStream_t, a cl_command_queue. Nothing: the
/// device's default queue. Work enqueued on one stream runs in order; the CPU works at once.
struct Stream {
  void* handle = nullptr;
};

/// Memory of one device. Move-only; gives the memory back when it ends.
class Buffer {
 public:
  Buffer() = default;
  Buffer(void* data, size_t bytes, std::shared_ptr<void> owner)
      : data_(data), bytes_(bytes), owner_(std::move(owner)) {}
  Buffer(Buffer&&) noexcept = default;
  Buffer& operator=(Buffer&&) noexcept = default;

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
  std::shared_ptr<void> owner_;
};

/// Work that a device recorded, to be enqueued at once and again and again: the same kernels with
/// the same arguments, on what lies in memory by then.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual Status replay(Stream stream = {}) = 0;
};

/// When the work of a stream got how far, by the device's clock.
class Timeline {
 public:
  virtual ~Timeline() = default;
  /// In stream order.
  virtual Status mark() = 0;
  /// Waits for the last mark. Microseconds from each mark to the next, since the last call.
  virtual Result<std::vector<double>> take() = 0;
};

/// One thread's hold on a device; see Device::turn.
using Turn = std::unique_lock<std::recursive_mutex>;

/// Orders the work on several streams that share memory (internal to the library).
class StreamOrder {
 public:
  virtual ~StreamOrder() = default;
  /// Work that `stream` gets from here on waits for the work between earlier calls of begin and
  /// end. Errors: the device's.
  virtual Status begin(Stream stream) = 0;
  virtual void end(Stream stream) = 0;
};

/// Several threads may use one device. Each call of a Device, Graph, Workspace, FusedMoe, Linear or
/// Model waits until calls of other threads on the same device have returned, where the two share
/// anything. Its results are those of the calls one after another. The caller must still:
/// - hold turn() over calls that belong together, such as an apply and the download of its output
///   into shared memory, or an enqueue and the synchronize() that is to report its errors;
/// - not move, assign or destroy an object while another thread calls it;
/// - not let two calls write to the same memory, or one read what the other writes, unless their
///   order does not matter.
class Device {
 public:
  virtual ~Device() = default;

  /// Holds the device for the calling thread: calls of other threads wait until the Turn ends. A
  /// thread may hold several at once. A call must not wait for another thread's call, in a progress
  /// callback for example, while it holds the device.
  [[nodiscard]] Turn turn() { return Turn(turn_); }

  /// "cpu", "cuda:0"
  virtual std::string name() const = 0;
  virtual Platform platform() const = 0;
  /// What activations are between the layers' kernels: f32 on a CPU.
  virtual DType activation_dtype() const = 0;

  /// Zeroed memory, aligned for every kernel. Errors: kOutOfMemory with need and have.
  virtual Result<Buffer> allocate(size_t bytes) = 0;
  /// True if host code may read and write this device's memory through its pointers.
  virtual bool host_visible() const = 0;
  /// Host to device and back, in stream order; the host memory must live until it is done.
  virtual Status upload(void* to, const void* from, size_t bytes, Stream stream = {}) = 0;
  virtual Status download(void* to, const void* from, size_t bytes, Stream stream = {}) = 0;
  /// An upload that nobody waits for: the source may go when it returns, the bytes arrive in stream
  /// order.
  virtual Status enqueue_upload(void* to, const void* from, size_t bytes, Stream stream = {}) {
    return upload(to, from, bytes, stream);
  }
  /// From one place of this device's memory to another, in stream order.
  virtual Status copy(void* to, const void* from, size_t bytes, Stream stream = {}) = 0;
  /// Waits until everything enqueued so far is done. Errors: what a kernel ran into, such as an id
  /// of an expert that does not exist, whichever thread enqueued it; reported once.
  virtual Status synchronize(Stream stream = {}) = 0;

  /// Records what `enqueue` enqueues on `stream` instead of doing it; the same must have been done
  /// once before, and wait for nothing. A device without graphs, such as the CPU, gives none and
  /// does not call `enqueue`. Errors: its own; what cannot be recorded.
  virtual Result<std::unique_ptr<Graph>> record(const std::function<Status()>& enqueue,
                                                Stream stream = {});

  /// Errors: memory.
  virtual Result<std::unique_ptr<Timeline>> timeline(Stream stream = {});
  /// Zeroed memory of the host that this device reads and writes at full speed. Errors:
  /// kOutOfMemory.
  virtual Result<Buffer> allocate_host(size_t bytes);

  /// Everything beside the GEMMs (internal to the library).
  virtual Ops& ops() = 0;
  /// Threads of the host for work on host memory, packing weights in particular (internal).
  virtual ThreadPool& host_threads() = 0;
  /// Nothing where streams run one after another, as a CPU's do (internal).
  virtual std::shared_ptr<StreamOrder> stream_order() { return nullptr; }

 private:
  std::recursive_mutex turn_;
};

/// What a device's name means.
struct DeviceName {
  Platform platform = Platform::kCpu;
  int index = 0;
};
/// "cpu", "cuda", "cuda:1", "opencl:0". Errors: anything else.
Result<DeviceName> parse_device(std::string_view name);

/// Opens "cpu"; in builds with CUDA "cuda[:n]", too (later "opencl[:n]"). `threads` are the host's,
/// the calling thread among them (of a GPU, those that read and pack weights); below 1: all that
/// the process may use, by its affinity mask and its control groups. This is the only number: the
/// library starts no other threads and uses no other library's (OpenMP), and calls from several
/// threads take turns with these. `pin` keeps all but the calling thread on CPUs of their own
/// within the mask, node after node; then weights lie on the node whose threads read them. Threads
/// that outnumber the CPUs are not pinned. Errors: a device that this build or this machine lacks,
/// naming those that exist; kOutOfMemory where the system starts fewer threads, with their number
/// and the system's reason.
Result<std::shared_ptr<Device>> open_device(std::string_view name = "cpu", int threads = 0,
                                            bool pin = false);

}  // namespace moracle
