#include "kernels/opencl/staging/opencl_uploads.h"

#include <mutex>

#include "kernels/opencl/device/opencl_device.h"
#include "kernels/opencl/staging/staging.h"

namespace moracle::opencl {
namespace {

// Copies on its own queue. The thread that converts weights holds the device's lock() meanwhile, so
// the threads that read and pack must not take it.
class OpenClUploads : public Uploads {
 public:
  explicit OpenClUploads(const Queue& queue) : queue_(queue), staging_(queue) {}
  ~OpenClUploads() override {
    if (copies_ == nullptr) return;
    static_cast<void>(queue_.cl->clFinish(copies_));
    static_cast<void>(queue_.cl->clReleaseCommandQueue(copies_));
  }

  Status send(std::byte* to, const std::byte* from, size_t bytes) override {
    const std::lock_guard lock(mutex_);
    if (copies_ == nullptr) {
      cl_int code = CL_SUCCESS;
      copies_ = queue_.cl->clCreateCommandQueueWithProperties(queue_.context, queue_.device,
                                                              nullptr, &code);
      MORACLE_CHECK(check(code, "clCreateCommandQueueWithProperties"));
    }
    return staging_.enqueue(to, from, bytes, {copies_});
  }
  Status finish() override {
    const std::lock_guard lock(mutex_);
    return copies_ == nullptr ? Status() : check(queue_.cl->clFinish(copies_), "clFinish");
  }

 private:
  const Queue& queue_;
  std::mutex mutex_;
  cl_command_queue copies_ = nullptr;
  Staging staging_;
};

}  // namespace

std::unique_ptr<Uploads> open_uploads(Device& device) {
  auto* const there = dynamic_cast<OpenClDevice*>(&device);
  return there == nullptr ? nullptr : std::make_unique<OpenClUploads>(there->queue());
}

}  // namespace moracle::opencl
