// Device's defaults, for devices that execute work at once, as a CPU does.
#include "moracle/device.h"

#include <chrono>

namespace moracle {
namespace {

class HostTimeline : public Timeline {
 public:
  Status mark() override {
    marks_.push_back(Clock::now());
    return {};
  }
  Result<std::vector<double>> take() override {
    std::vector<double> us;
    for (size_t i = 1; i < marks_.size(); ++i)
      us.push_back(std::chrono::duration<double, std::micro>(marks_[i] - marks_[i - 1]).count());
    marks_.clear();
    return us;
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::vector<Clock::time_point> marks_;
};

}  // namespace

Result<std::unique_ptr<Graph>> Device::record(const std::function<Status()>&, Stream) {
  return std::unique_ptr<Graph>();
}

Result<std::unique_ptr<Timeline>> Device::timeline(Stream) {
  return std::unique_ptr<Timeline>(new HostTimeline());
}

Result<std::unique_ptr<HostAccess>> Device::host_access(const Buffer&) {
  return std::unique_ptr<HostAccess>();
}

Result<Buffer> Device::allocate_host(size_t bytes) {
  return allocate(bytes);
}

}  // namespace moracle
