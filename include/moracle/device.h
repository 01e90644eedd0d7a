// A device: memory and an ordered queue of work.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "moracle/base.h"
#include "moracle/oracle.h"

namespace moracle MORACLE_API {

/// A native queue of a device: a cudaStream_t or a cl_command_queue. Null: the device's default
/// queue, which on CUDA is a stream of its own. Pass cudaStreamLegacy for the legacy stream, which
/// CUDA also counts as 0. Work on one stream runs in order. The CPU runs work immediately.
struct Stream {
  void* handle = nullptr;
};

/// Memory of one device. Move-only; the destructor releases the memory.
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

/// Recorded device work that can be enqueued many times with one call. A replay runs the same
/// kernels with the same arguments on the current content of memory.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual Status replay(Stream stream = {}) = 0;
};

/// Timestamps of a stream's work, from the device's clock.
class Timeline {
 public:
  virtual ~Timeline() = default;
  /// Records a timestamp in stream order.
  virtual Status mark() = 0;
  /// Waits for the last mark. Returns the microseconds between consecutive marks since the last
  /// call.
  virtual Result<std::vector<double>> take() = 0;
};

/// A lock on a device, held by one thread; see Device::lock.
using DeviceLock = std::unique_lock<std::recursive_mutex>;

/// The host's access to a buffer of a device that shares its memory with the host (an integrated
/// GPU, a CPU through OpenCL). Destroying the object ends the access, too.
class HostAccess {
 public:
  virtual ~HostAccess() = default;
  /// Ends the access: kernels see what the host wrote. Errors: those of the driver.
  virtual Status end() = 0;
};

/// Several threads may use one device. A call of a Device, Graph, Workspace, FusedMoe, Linear or
/// Model waits for calls of other threads that share resources on the same device. The results are
/// the same as for sequential calls. The caller must still:
/// - hold lock() over calls that belong together, such as an apply and the download of its output
///   into shared memory, or an enqueue and the synchronize() that reports its errors;
/// - not move, assign or destroy an object while another thread calls it;
/// - not let two calls write to the same memory, or one call read memory that another call writes,
///   unless their order does not matter.
class Device {
 public:
  virtual ~Device() = default;

  /// Locks the device for the calling thread. Calls of other threads wait until the lock is
  /// destroyed. A thread may hold several locks at once. While a thread holds the device, it must
  /// not wait for a call of another thread, for example in a progress callback.
  [[nodiscard]] DeviceLock lock() { return DeviceLock(mutex_); }

  /// "cpu", "cuda:0" or "opencl:0".
  virtual std::string name() const = 0;
  virtual Platform platform() const = 0;
  /// The dtype of activations between the kernels of a layer: f32 on a CPU.
  virtual DType activation_dtype() const = 0;

  /// Allocates zeroed memory, aligned for every kernel. Errors: kOutOfMemory, with the required and
  /// the available bytes.
  virtual Result<Buffer> allocate(size_t bytes) = 0;
  /// True if host code may access this device's memory through its pointers.
  virtual bool host_visible() const = 0;
  /// Lets the host write to a buffer in place until the result ends; kernels must not use it
  /// meanwhile. Null where the host needs no permission (see host_visible), and where the device
  /// has memory of its own. Errors: those of the driver.
  virtual Result<std::unique_ptr<HostAccess>> host_access(const Buffer& buffer);
  /// Copies `bytes` from host to device or back, in stream order. The host memory must live until
  /// the copy is done.
  virtual Status upload(void* to, const void* from, size_t bytes, Stream stream = {}) = 0;
  virtual Status download(void* to, const void* from, size_t bytes, Stream stream = {}) = 0;
  /// Copies `bytes` of this device's memory to the host and waits for the copy alone. The work that
  /// wrote them must be complete. Several threads may call it at once, also while another thread
  /// holds lock(): a ReadMemory for tensors that lie on the device. Errors: those of the device.
  virtual Status read(void* to, const void* from, size_t bytes) = 0;
  /// An upload that does not wait. The source may be freed when the call returns. The bytes arrive
  /// in stream order.
  virtual Status enqueue_upload(void* to, const void* from, size_t bytes, Stream stream = {}) {
    return upload(to, from, bytes, stream);
  }
  /// Copies `bytes` within this device's memory, in stream order.
  virtual Status copy(void* to, const void* from, size_t bytes, Stream stream = {}) = 0;
  /// Waits until all enqueued work is done. Errors: kernel errors, such as the id of an expert that
  /// does not exist, from any thread's work. Each is reported once and begins with LayerSpec::name.
  virtual Status synchronize(Stream stream = {}) = 0;

  /// Records the work that `enqueue` enqueues on `stream`, without running it. The same work must
  /// have run once before. `enqueue` must not wait for the device. A device without graphs, such as
  /// the CPU, returns null and does not call `enqueue`. Errors: those of `enqueue`; work that
  /// cannot be recorded.
  virtual Result<std::unique_ptr<Graph>> record(const std::function<Status()>& enqueue,
                                                Stream stream = {});

  /// A timeline of `stream`. Errors: memory.
  virtual Result<std::unique_ptr<Timeline>> timeline(Stream stream = {});
  /// Zeroed host memory that this device accesses at full speed. Errors: kOutOfMemory.
  virtual Result<Buffer> allocate_host(size_t bytes);

 private:
  friend class KernelDevice;  // which every device is
  Device() = default;
  std::recursive_mutex mutex_;
};

/// A parsed device name.
struct DeviceName {
  Platform platform = Platform::kCpu;
  int index = 0;
};
/// Parses "cpu", "cuda", "cuda:1", "opencl:0". Errors: any other text.
Result<DeviceName> parse_device(std::string_view name);
/// "cpu", "cuda:1"
std::string name(const DeviceName& device);

/// Alignment of device memory, in bytes: what every kernel needs.
inline constexpr size_t kMemoryAlignment = 64;

/// How to open a device.
struct DeviceOptions {
  /// Host threads, including the calling thread. For a GPU these threads read and pack weights.
  /// 0: all CPUs that the affinity mask and the control groups allow; at most 4,096. The library
  /// starts no other threads and uses no other thread library (OpenMP); drivers of OpenCL may.
  /// Calls from several threads use this team one after another.
  int threads = 0;
  /// Pins every thread except the calling one to its own CPU within the affinity mask, node after
  /// node. Each weight then lies on the NUMA node whose threads read it. If there are more threads
  /// than CPUs, no thread is pinned.
  bool pin = false;
  /// CPU devices only: the CPUs of every thread except the calling one, in place of the affinity
  /// mask of the caller. For an engine whose calling thread is bound to fewer CPUs than the engine
  /// has. Empty: that mask. `threads` 0 then means as many threads as CPUs here, within the control
  /// groups. Refused together with `run_tasks`.
  std::vector<int> cpus;
  /// The engine's threads instead of own ones: the device then starts none. Each job is `threads`
  /// tasks at most (0: as above); the calling thread runs a job of one task itself. Results have
  /// the bits of own threads, of the same number. Calls of several threads still run one after
  /// another. Must not throw. Refused together with `pin`.
  RunTasks run_tasks;
  /// The engine's allocator, for example PyTorch's caching allocator. Every buffer of the device
  /// comes from it: weights, workspaces, kernel scratch, cells for errors. allocate(bytes) returns
  /// memory of this device at a multiple of kMemoryAlignment bytes, with any content (the library
  /// zeroes it). Null or an exception: refused, which the caller of the library sees as
  /// kOutOfMemory. free(data, bytes) takes the memory back when no enqueued work uses it any more;
  /// it may come after the device's end. On CUDA the device is current in both, and the memory must
  /// be usable on every stream. Several threads may call them at once, but neither comes during an
  /// apply. Set both or none. Not from them: pinned host memory, memory that vendor libraries take,
  /// and memory that the exchange cuda-peer shares with other processes. OpenCL refuses them,
  /// because kernels reach only memory of their own context.
  std::function<void*(size_t bytes)> allocate;
  std::function<void(void* data, size_t bytes)> free;
  /// OpenCL: folder for compiled kernels, keyed by source, device and driver. Empty: kernels are
  /// compiled again in every process.
  std::string kernel_cache;
  /// OpenCL: called with the name of a kernel file before the driver compiles it, from the thread
  /// that waits. Compiling takes up to seconds.
  std::function<void(std::string_view file)> compiling;
};

/// Opens "cpu", "cuda[:n]" in builds with CUDA, or "opencl[:n]" in builds with OpenCL.
/// Errors: a device that this build or machine does not have, with the list of available ones; a
/// number of threads outside [0, 4096]; options that do not go together; a CPU that the system
/// refuses;
/// kOutOfMemory if the system starts fewer threads, with their number and the system's reason.
Result<std::shared_ptr<Device>> open_device(std::string_view name, const DeviceOptions& options);
Result<std::shared_ptr<Device>> open_device(const DeviceName& device, const DeviceOptions& options);
/// The same with two of the options.
Result<std::shared_ptr<Device>> open_device(std::string_view name = "cpu", int threads = 0,
                                            bool pin = false);

}  // namespace MORACLE_API
