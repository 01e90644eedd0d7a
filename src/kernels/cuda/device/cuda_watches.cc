#include "kernels/cuda/device/cuda_watches.h"

#include <chrono>

#include "kernels/cuda/device/cuda_check.h"

namespace moracle::cuda {
namespace {

constexpr double kBetweenLooks = 1e-3;
// Stopped kernels end within milliseconds. After this many seconds the GPU counts as lost.
constexpr double kLongestStop = 5;

class WaitedFor {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

template <class Query>
bool is_unfinished(const Query& query) {
  if (query() != cudaErrorNotReady) return false;
  static_cast<void>(cudaGetLastError());  // clear it: the next launch must not report it
  return true;
}

}  // namespace

void Watches::add(std::weak_ptr<Watch> watch) {
  const std::lock_guard lock(mutex_);
  all_.push_back(std::move(watch));
}

std::vector<std::shared_ptr<Watch>> Watches::living() {
  const std::lock_guard lock(mutex_);
  std::erase_if(all_, [](const auto& watch) { return watch.expired(); });
  std::vector<std::shared_ptr<Watch>> watches;
  for (const auto& watch : all_) {
    if (auto living = watch.lock()) watches.push_back(std::move(living));
  }
  return watches;
}

template <class Query>
Status Watches::wait_for(const Query& query) {
  const auto watches = living();
  const WaitedFor waited;
  for (double next = kBetweenLooks; !watches.empty() && is_unfinished(query);) {
    if (waited.seconds() < next) continue;  // the query itself takes a microsecond
    for (const auto& watch : watches) {
      Status look = watch->look(waited.seconds());
      if (look) continue;
      for (const auto& each : watches) each->stop();
      const WaitedFor stopped;
      while (is_unfinished(query) && stopped.seconds() < kLongestStop) continue;
      return look;
    }
    next = waited.seconds() + kBetweenLooks;
  }
  return {};
}

Status Watches::guard(cudaStream_t stream) {
  return wait_for([stream] { return cudaStreamQuery(stream); });
}

Status Watches::wait(cudaStream_t stream) {
  MORACLE_CHECK(guard(stream));
  return check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

Status Watches::wait(cudaEvent_t event) {
  MORACLE_CHECK(wait_for([event] { return cudaEventQuery(event); }));
  return check(cudaEventSynchronize(event), "cudaEventSynchronize");
}

}  // namespace moracle::cuda
