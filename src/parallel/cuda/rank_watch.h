// Watchdog for a GPU that waits for the GPUs of other ranks: names the silent rank.
#pragma once

#include <functional>

#include "kernels/cuda/device/cuda_watches.h"
#include "moracle/parallel.h"

namespace moracle {

class RankWatch final : public cuda::Watch {
 public:
  /// `errors` asks the library for errors of its own, `stop` ends its kernels; neither blocks.
  RankWatch(std::string exchange, std::shared_ptr<Group> group, std::function<Status()> errors,
            std::function<void()> stop);
  /// Errors: a rank that ended or stopped; the library's; a wait longer than the group's timeout,
  /// with the ranks that do not answer the group either. The first error stays.
  Status look(double waited_seconds) override;
  void stop() override;
  /// The first error. Nothing can be enqueued after it.
  const Status& status() const { return status_; }
  /// Takes `error` as the first one, and stops.
  Status fail(Error error);

 private:
  Status find_reason(double waited_seconds);
  const std::string exchange_;
  const std::shared_ptr<Group> group_;
  const std::function<Status()> errors_;
  const std::function<void()> stop_;
  Status status_;
  bool stopped_ = false;
};

}  // namespace moracle
