// Times the loops of limit_loops.cu with GPU events. Takes the median of a few runs.
#include "kernels/cuda/limits/cuda_limits.h"

#include <algorithm>

#include "base/text.h"
#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/limits/cuda_timer.h"
#include "kernels/cuda/limits/limit_loops.cuh"

namespace moracle::cuda {
namespace {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

class GpuLimits final : public LimitsProbe {
 public:
  explicit GpuLimits(std::shared_ptr<Device> device)
      : device_(std::move(device)), queue_(static_cast<CudaDevice&>(*device_).queue()) {}

  Status open(size_t buffer_bytes) {
    MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue_.index));
    cudaDeviceProp properties{};
    MORACLE_CUDA(cudaGetDeviceProperties(&properties, queue_.index));
    model_ = properties.name;
    processors_ = properties.multiProcessorCount;
    size_t free = 0, total = 0;
    MORACLE_CUDA(cudaMemGetInfo(&free, &total));
    memory_bytes_ = static_cast<int64_t>(free);
    const size_t cached = 8 * static_cast<size_t>(properties.l2CacheSize);
    size_t bytes = buffer_bytes;
    if (bytes == 0) bytes = std::max(std::min(size_t{2} << 30, free / 4), cached);
    bytes = std::max(bytes / sizeof(uint4), size_t{1}) * sizeof(uint4);
    MORACLE_TRY(buffer_, device_->allocate(bytes));
    MORACLE_TRY(out_, device_->allocate(sizeof(uint32_t)));
    MORACLE_CHECK(launch(queue_, {}, "limits: fill", fill_loop(), 4 * processors_, 512, 0,
                         buffer_.as<uint4>(), static_cast<int64_t>(bytes / sizeof(uint4))));
    MORACLE_CHECK(
        launch(queue_, {}, "limits: needs", compiled_needs(), 1, 1, 0, out_.as<uint32_t>()));
    MORACLE_CHECK(device_->download(&has_, out_.data(), sizeof has_));
    MORACLE_CHECK(device_->synchronize());
    return timer_.open(queue_);
  }

  int64_t buffer_bytes() const override { return static_cast<int64_t>(buffer_.bytes()); }
  int64_t memory_bytes() const override { return memory_bytes_; }

  Result<Limits> measure(const Progress& progress) override {
    Limits limits;
    limits.device = device_->name();
    limits.model = model_;
    limits.buffer_bytes = buffer_bytes();
    MORACLE_TRY(limits.read_bytes_per_second, read_bytes_per_second());
    for (const LimitLoop& loop : limit_loops()) {
      if (!usable(loop)) continue;
      MORACLE_CHECK(go_on_measuring(progress));
      MORACLE_TRY(const double ops, ops_of(loop));
      limits.peaks.push_back(
          {loop.name, loop.name.substr(loop.name.find(' ') + 1), loop.arithmetic, ops});
    }
    return limits;
  }

  Result<double> read_bytes_per_second() override {
    // A small buffer lies in a cache, and its time includes that of the launch.
    const auto count = static_cast<int64_t>(buffer_.bytes() / sizeof(uint4));
    constexpr int64_t kBlockVectors = kReadThreads * kReadAtOnce;
    const auto enqueue = [&] {
      return launch(queue_, {}, "limits: read", read_loop(),
                    (count + kBlockVectors - 1) / kBlockVectors, kReadThreads, 0,
                    static_cast<const uint4*>(buffer_.as<uint4>()), count, out_.as<uint32_t>());
    };
    MORACLE_TRY(const double seconds, median_of(7, enqueue));
    return static_cast<double>(buffer_.bytes()) / seconds;
  }

  Result<double> copy_bytes_per_second() override {
    MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue_.index));
    const size_t bytes = std::min(buffer_.bytes(), size_t{64} << 20);
    void* pinned = nullptr;
    MORACLE_CUDA(cudaMallocHost(&pinned, bytes));
    const Result<double> seconds = median_of(5, [&] {
      return check(
          cudaMemcpyAsync(buffer_.data(), pinned, bytes, cudaMemcpyHostToDevice, queue_.own),
          "cudaMemcpyAsync");
    });
    MORACLE_CUDA(cudaFreeHost(pinned));
    if (!seconds) return seconds.error();
    return static_cast<double>(bytes) / *seconds;
  }

  Result<double> ops_per_second(std::string_view peak) override {
    for (const LimitLoop& loop : limit_loops()) {
      if (loop.name == peak && usable(loop)) return ops_of(loop);
    }
    return 0.0;
  }

 private:
  bool usable(const LimitLoop& loop) const {
    return (has_ & static_cast<uint32_t>(loop.needs)) == static_cast<uint32_t>(loop.needs);
  }

  template <class Enqueue>
  Result<double> median_of(int runs, const Enqueue& enqueue) {
    std::vector<double> seconds;
    MORACLE_CHECK(enqueue());  // warm-up run, raises the clocks
    for (int i = 0; i < runs; ++i) {
      MORACLE_TRY(const double one, timer_.seconds(queue_, enqueue));
      seconds.push_back(one);
    }
    return median(std::move(seconds));
  }

  Result<double> ops_of(const LimitLoop& loop) {
    constexpr double kSeconds = 8e-3;  // long enough for the power draw to show
    const int64_t blocks = int64_t{processors_} * loop.blocks_per_processor;
    int64_t rounds = 256;
    const auto enqueue = [&] {
      return launch(queue_, {}, "limits: multiply", loop.run, blocks, loop.threads, 0, rounds,
                    out_.as<uint32_t>());
    };
    MORACLE_TRY(const double one_run, median_of(1, enqueue));
    rounds =
        std::max(rounds, static_cast<int64_t>(kSeconds / one_run * static_cast<double>(rounds)));
    MORACLE_TRY(const double seconds, median_of(3, enqueue));
    return loop.ops_per_round * static_cast<double>(rounds) * static_cast<double>(blocks) / seconds;
  }

  const std::shared_ptr<Device> device_;
  const Queue& queue_;
  std::string model_;
  int processors_ = 1;
  int64_t memory_bytes_ = 0;
  uint32_t has_ = 0;
  Buffer buffer_, out_;
  CudaTimer timer_;
};

}  // namespace

Result<std::unique_ptr<LimitsProbe>> open_limits(const std::shared_ptr<Device>& device,
                                                 size_t buffer_bytes) {
  if (dynamic_cast<CudaDevice*>(device.get()) == nullptr) {
    return Error{ErrorKind::kInvalidArgument, "", "limits", "a cuda device",
                 "it is " + device->name()};
  }
  auto probe = std::make_unique<GpuLimits>(device);
  MORACLE_CHECK(probe->open(buffer_bytes));
  return std::unique_ptr<LimitsProbe>(std::move(probe));
}

}  // namespace moracle::cuda
