#include "parallel/cuda/rank_watch.h"

#include "base/text.h"
#include "parallel/connect.h"

namespace moracle {
namespace {

// A process that ends closes its sockets a little later than its GPU's mappings.
constexpr double kUntilNamed = 0.5;

}  // namespace

RankWatch::RankWatch(std::string exchange, std::shared_ptr<Group> group,
                     std::function<Status()> errors, std::function<void()> stop)
    : exchange_(std::move(exchange)),
      group_(std::move(group)),
      errors_(std::move(errors)),
      stop_(std::move(stop)) {}

Status RankWatch::find_reason(double waited_seconds) {
  if (Status named = group_->look(); !named) return named;
  if (Status own = errors_(); !own) {
    // The library reports a broken connection; the group names its rank.
    for (const Deadline soon(kUntilNamed); !soon.passed();) {
      if (Status named = group_->look(); !named) return named;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return own;
  }
  const double timeout = group_->options().timeout_seconds;
  if (waited_seconds < timeout) return {};
  // All ranks wait for the same operation, so those that run reach this line at about this time.
  if (Status silent = group_->barrier(); !silent) return silent;
  return Error{ErrorKind::kIo, "", str("exchange '", exchange_, "'"),
               str("to end within ", timeout, " s (timeout_seconds)"),
               "it has not, though every rank answers: they may wait for different operations"};
}

Status RankWatch::look(double waited_seconds) {
  if (status_) status_ = find_reason(waited_seconds);
  return status_;
}

void RankWatch::stop() {
  // Another watch of the same GPU may have found the error.
  if (status_) {
    status_ = Error{ErrorKind::kIo, "", str("exchange '", exchange_, "'"),
                    "no earlier error of this GPU's exchanges", "there was one"};
  }
  if (!stopped_) stop_();
  stopped_ = true;
}

Status RankWatch::fail(Error error) {
  if (status_) status_ = std::move(error);
  stop();
  return status_;
}

}  // namespace moracle
