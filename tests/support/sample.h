// Which cases of a long loop a test takes.
#pragma once

#include <functional>
#include <string>

namespace moracle::testing {

/// Takes every case, but under sanitizers, which multiply a test's time, every fourth one. Which
/// one is first depends on the name of the test's model, so that all models together see every
/// case.
class Sample {
 public:
#if defined(MORACLE_SANITIZED)
  static constexpr int kStep = 4;
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
