// The value of a result that a test needs. An error ends the test with its message: gtest reports
// the exception as a failure.
#pragma once

#include <stdexcept>
#include <utility>

#include "moracle/base.h"

namespace moracle::testing {

/// Returns the value of a result.
template <class T>
T must(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.error().to_string());
  return *std::move(result);
}
inline void must(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.error().to_string());
}

}  // namespace moracle::testing
