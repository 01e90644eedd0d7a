#include "kernels/weights/uploads.h"

#include <mutex>

#include "base/try.h"
#if defined(MORACLE_WITH_CUDA)
#include "kernels/cuda/staging/cuda_uploads.h"
#endif
#if defined(MORACLE_WITH_OPENCL)
#include "kernels/opencl/staging/opencl_uploads.h"
#endif

namespace moracle {
namespace {

class PlainUploads final : public Uploads {
 public:
  explicit PlainUploads(Device& device) : device_(device) {}
  Status send(std::byte* to, const std::byte* from, size_t bytes) override {
    const std::lock_guard lock(mutex_);
    MORACLE_CHECK(device_.upload(to, from, bytes));
    return device_.synchronize();  // upload() alone may still be reading the source
  }
  Status finish() override { return device_.synchronize(); }

 private:
  Device& device_;
  std::mutex mutex_;
};

}  // namespace

Status Uploads::send_rows(const Layout& layout, const MatrixShape&, const CanonicalMatrix&, int64_t,
                          int64_t, int64_t, std::byte*) {
  return Error{ErrorKind::kUnsupported, "", "uploads", "a device that packs weights",
               "this one does not pack " + std::string(layout.name)};
}

std::unique_ptr<Uploads> open_uploads(Device& device) {
#if defined(MORACLE_WITH_OPENCL)
  if (auto uploads = opencl::open_uploads(device)) return uploads;
#endif
#if defined(MORACLE_WITH_CUDA)
  if (auto uploads = cuda::open_uploads(device)) return uploads;
#endif
  return std::make_unique<PlainUploads>(device);
}

}  // namespace moracle
