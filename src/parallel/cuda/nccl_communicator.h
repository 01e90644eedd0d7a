// A communicator of NCCL whose waits all end and whose errors name the rank.
#pragma once

#include <functional>
#include <set>
#include <string_view>
#include <thread>

#include "moracle/parallel.h"
#include "parallel/cuda/nccl_api.h"
#include "parallel/cuda/rank_watch.h"

namespace moracle::nccl {

class Communicator {
 public:
  /// Connects the current device of each rank. Errors: versions that differ; NCCL's; a rank that
  /// does not come within the group's timeout.
  static Result<std::unique_ptr<Communicator>> open(const std::shared_ptr<Group>& group);
  /// Uses the engine's communicator, which it neither aborts nor ends. Errors: NCCL's; another
  /// rank, size or device than those of `group` and `device`.
  static Result<std::unique_ptr<Communicator>> adopt(const std::shared_ptr<Group>& group,
                                                     int device, ncclComm_t comm);
  /// Ends within some seconds, even if NCCL does not: it then goes on in a thread of its own.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  ncclComm_t get() const { return comm_; }
  /// Runs `call`, which enqueues an operation. In the first call of a kind (a size, some peers)
  /// NCCL connects to other ranks, and waits for them: that call runs in a thread of its own, so
  /// that the wait can end. Errors: NCCL's, by name.
  Status enqueue(const char* name, size_t kind, const std::function<ncclResult_t()>& call);
  /// Runs `call` in a thread, and waits for it as long as no rank fails.
  Status run_watched(const char* name, std::function<ncclResult_t()> call);
  const std::shared_ptr<RankWatch>& watch() const { return watch_; }

 private:
  explicit Communicator(std::shared_ptr<Group> group);
  Error failed(ncclResult_t result, const char* call) const;
  // NCCL's asynchronous error; does not wait.
  Status found() const;
  // Ends running kernels, in a thread: NCCL waits for graphs that hold its kernels.
  void abort();

  const Api& api_;
  std::shared_ptr<Group> group_;
  ncclComm_t comm_ = nullptr;
  bool owned_ = true;
  bool aborted_ = false;
  std::set<std::pair<std::string_view, size_t>> connected_;  // operations and kinds
  std::shared_ptr<RankWatch> watch_;
};

/// Runs `end` on the current device in a detached thread, which owns its captures, and waits at
/// most `seconds` for it.
constexpr double kLongestEnd = 5;
void end_in_time(std::function<void()> end, double seconds = kLongestEnd);

}  // namespace moracle::nccl
