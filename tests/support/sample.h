// Selects the cases of a long loop that a test runs.
#pragma once

#include <functional>
#include <string>

namespace moracle::testing {

/// Runs every case; under sanitizers, which slow a test down, only every fifth. The name of the
/// test's model sets the first one, so that all models together cover every case.
class Sample {
 public:
#if defined(MORACLE_SANITIZED)
  static constexpr int kStep = 5;
#else
  static constexpr int kStep = 1;
#endif

  explicit Sample(const std::string& model) : next_(std::hash<std::string>()(model) % kStep) {}

  bool takes() {
    return next_++ % kStep == 0;
  }

 private:
  size_t next_;
};

}  // namespace moracle::testing
