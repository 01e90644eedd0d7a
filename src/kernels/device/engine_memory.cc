#include "kernels/device/engine_memory.h"

#include "base/text.h"

namespace moracle {

Status check_engine_options(const DeviceOptions& options) {
  const auto refused = [](const char* place, const char* need, const char* fact) {
    return Error{ErrorKind::kInvalidArgument, "", place, need, fact};
  };
  if ((options.allocate == nullptr) != (options.free == nullptr)) {
    return refused(options.allocate == nullptr ? "allocate" : "free",
                   "both allocate and free, or none", "it is not set");
  }
  if (options.run_tasks != nullptr && options.pin)
    return refused("pin", "threads of the library; without run_tasks it pins them",
                   "the threads are the engine's");
  if (options.run_tasks != nullptr && !options.cpus.empty())
    return refused("cpus", "threads of the library", "the threads are the engine's");
  return {};
}

Result<Buffer> EngineMemory::take(size_t bytes, const std::string& device,
                                  std::function<void()> wait) const {
  void* data = nullptr;
  const char* fact = "the engine's allocator returned null";
  try {
    data = allocate_(bytes);
  } catch (...) {  // allocators of engines throw; this library does not
    fact = "the engine's allocator threw an exception";
  }
  if (data == nullptr) {
    return Error{ErrorKind::kOutOfMemory, "", device, str(bytes, " bytes of memory"), fact};
  }
  Buffer buffer(data, bytes,
                std::shared_ptr<void>(data, [free = free_, wait = std::move(wait), bytes](void* p) {
                  if (wait) wait();
                  free(p, bytes);
                }));
  const size_t past = reinterpret_cast<uintptr_t>(data) % kMemoryAlignment;
  if (past == 0) return buffer;
  return Error{ErrorKind::kInvalidArgument, "", "allocate",
               str("memory at a multiple of ", kMemoryAlignment, " bytes"),
               str("it is ", past, " bytes past such an address")};
}

}  // namespace moracle
