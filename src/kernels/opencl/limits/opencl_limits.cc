// Times the loops of limits.cl with the device's clock. Takes the median of a few runs.
#include "kernels/opencl/limits/opencl_limits.h"

#include <algorithm>

#include "base/median.h"
#include "base/text.h"
#include "kernels/opencl/device/launch.h"
#include "kernels/opencl/device/opencl_device.h"

namespace moracle::opencl {
namespace opencl_limits {
namespace {

constexpr int64_t kReadAtOnce = 8;  // AT_ONCE in limits.cl
constexpr const char* kPeak = "f32 fma";

class OpenClLimits final : public LimitsProbe {
 public:
  explicit OpenClLimits(std::shared_ptr<Device> device)
      : device_(std::move(device)), queue_(static_cast<OpenClDevice&>(*device_).queue()) {
    // One work-item of a CPU holds a vector; a GPU has many work-items.
    const char* const types =
        queue_.is_cpu ? "-D REAL=float8 -D FIRST(x)=x.s0" : "-D REAL=float -D FIRST(x)=x";
    read_ = {"limits/limits.cl", "read_vectors", types};
    fill_ = {"limits/limits.cl", "fill_vectors", types};
    multiply_ = {"limits/limits.cl", "multiply", types};
  }

  Status open(size_t buffer_bytes) {
    MORACLE_TRY(read_kernel_, queue_.programs->make(read_));
    MORACLE_TRY(fill_kernel_, queue_.programs->make(fill_));
    MORACLE_TRY(multiply_kernel_, queue_.programs->make(multiply_));
    const Api& cl = *queue_.cl;
    memory_bytes_ =
        static_cast<int64_t>(value_of<cl_ulong>(cl, queue_.device, CL_DEVICE_GLOBAL_MEM_SIZE));
    const auto largest = value_of<cl_ulong>(cl, queue_.device, CL_DEVICE_MAX_MEM_ALLOC_SIZE);
    // Far larger than any cache, but small enough for a small machine.
    size_t bytes = buffer_bytes;
    if (bytes == 0) bytes = queue_.is_cpu ? size_t{512} << 20 : size_t{2} << 30;
    bytes = std::min<size_t>(bytes, largest / 4) / 16 * 16;
    MORACLE_TRY(buffer_, device_->allocate(bytes));
    MORACLE_TRY(out_, device_->allocate(sizeof(cl_uint)));
    return launch_kernel(queue_, {}, fill_, fill_kernel_, 4 * queue_.compute_units, threads(),
                         buffer_.as<std::byte>(), count());
  }

  int64_t buffer_bytes() const override { return static_cast<int64_t>(buffer_.bytes()); }
  int64_t memory_bytes() const override { return memory_bytes_; }

  Result<Limits> measure(const Progress& progress) override {
    Limits limits;
    limits.device = device_->name();
    limits.model = text_of(*queue_.cl, queue_.device, CL_DEVICE_NAME);
    limits.buffer_bytes = buffer_bytes();
    MORACLE_TRY(limits.read_bytes_per_second, read_bytes_per_second());
    MORACLE_CHECK(go_on_measuring(progress));
    MORACLE_TRY(const double ops, ops_per_second(kPeak));
    limits.peaks = {{kPeak, "fma", Arithmetic::kF32, ops}};
    return limits;
  }

  Result<double> read_bytes_per_second() override {
    const int64_t per_group = threads() * kReadAtOnce;
    MORACLE_TRY(const double seconds, median_of(7, [&] {
                  return launch_kernel(queue_, {}, read_, read_kernel_,
                                       (count() + per_group - 1) / per_group, threads(),
                                       buffer_.as<std::byte>(), count(), out_.as<std::byte>());
                }));
    return static_cast<double>(buffer_.bytes()) / seconds;
  }

  Result<double> ops_per_second(std::string_view peak) override {
    if (peak != kPeak) return 0.0;
    constexpr double kSeconds = 8e-3;  // long enough for the power draw to show
    const int64_t items = queue_.is_cpu ? 1 : threads(),
                  groups = (queue_.is_cpu ? 4 : 16) * queue_.compute_units;
    int64_t rounds = 256;
    const auto enqueue = [&] {
      return launch_kernel(queue_, {}, multiply_, multiply_kernel_, groups, items, rounds,
                           out_.as<std::byte>());
    };
    MORACLE_TRY(const double one_run, median_of(1, enqueue));
    rounds =
        std::max(rounds, static_cast<int64_t>(kSeconds / one_run * static_cast<double>(rounds)));
    MORACLE_TRY(const double seconds, median_of(3, enqueue));
    const double per_round = 2.0 * 16 * (queue_.is_cpu ? 8 : 1);  // operations of a work-item
    return per_round * static_cast<double>(rounds * groups * items) / seconds;
  }

 private:
  int64_t threads() const { return std::min<int64_t>(256, queue_.max_group); }
  int64_t count() const { return buffer_bytes() / 16; }

  template <class Enqueue>
  Result<double> median_of(int runs, const Enqueue& enqueue) {
    MORACLE_TRY(const std::unique_ptr<Timeline> times, device_->timeline({}));
    MORACLE_CHECK(enqueue());  // warm-up run, raises the clocks
    for (int i = 0; i < runs; ++i) {
      MORACLE_CHECK(times->mark());
      MORACLE_CHECK(enqueue());
    }
    MORACLE_CHECK(times->mark());
    MORACLE_TRY(std::vector<double> us, times->take());
    return 1e-6 * std::max(median(std::move(us)), 1e-3);
  }

  const std::shared_ptr<Device> device_;
  const Queue& queue_;
  KernelName read_, fill_, multiply_;
  cl_kernel read_kernel_ = nullptr, fill_kernel_ = nullptr, multiply_kernel_ = nullptr;
  int64_t memory_bytes_ = 0;
  Buffer buffer_, out_;
};

}  // namespace
}  // namespace opencl_limits

Result<std::unique_ptr<LimitsProbe>> open_limits(const std::shared_ptr<Device>& device,
                                                 size_t buffer_bytes) {
  if (dynamic_cast<OpenClDevice*>(device.get()) == nullptr) {
    return Error{ErrorKind::kInvalidArgument, "", "limits", "an opencl device",
                 "it is " + device->name()};
  }
  auto probe = std::make_unique<opencl_limits::OpenClLimits>(device);
  MORACLE_CHECK(probe->open(buffer_bytes));
  return std::unique_ptr<LimitsProbe>(std::move(probe));
}

}  // namespace moracle::opencl
