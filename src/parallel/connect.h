// The functions of transports(), with their deadline and errors.
#pragma once

#include <chrono>
#include <thread>

#include "moracle/parallel.h"

namespace moracle {

Result<std::shared_ptr<Group>> open_mpi(const RankOptions& options);
Result<std::shared_ptr<Group>> open_tcp(const RankOptions& options);

/// The end of a wait; 0 seconds: none.
class Deadline {
 public:
  explicit Deadline(double seconds) : seconds_(seconds), start_(std::chrono::steady_clock::now()) {}
  double seconds() const { return seconds_; }
  bool passed() const { return seconds_ > 0 && waited() >= seconds_; }
  double waited() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  /// Milliseconds left, for poll(): at most `most`.
  int left_ms(int most) const {
    if (seconds_ <= 0) return most;
    const double left = (seconds_ - waited()) * 1000;
    return left < 0 ? 0 : left < most ? static_cast<int>(left) + 1 : most;
  }

 private:
  double seconds_;
  std::chrono::steady_clock::time_point start_;
};

/// "ranks 1, 3: need to answer within 5 s; …"
Error silent_ranks(const std::vector<int64_t>& ranks, double seconds);
/// "rank 2: needs to take part until the end; it has ended (…)"
Error ended_rank(int64_t rank, const std::string& how);
/// "rank 2: needs messages that arrive unchanged; …"
Error changed_message(int64_t rank);
/// The reason that another rank gave to abort().
Error aborted_rank(int64_t rank, const std::string& reason);

}  // namespace moracle
