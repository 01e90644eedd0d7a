// The error of work that several threads share.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>

#include "moracle/base.h"

namespace moracle {

/// Keeps the error with the lowest position (a row, a chunk). The reported error does not depend on
/// the number of threads.
class FirstError {
 public:
  void keep(int64_t place, Error error) {
    const std::lock_guard lock(mutex_);
    if (error_ && place_ < place) return;
    place_ = place;
    error_ = std::move(error);
  }
  Status status() && { return error_ ? Status(*std::move(error_)) : Status(); }

 private:
  std::mutex mutex_;
  int64_t place_ = 0;
  std::optional<Error> error_;
};

}  // namespace moracle
