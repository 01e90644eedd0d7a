// Selects the cases of a long loop that a test runs.
#pragma once

#include <functional>
#include <string>
#include <vector>

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

/// The models that a suite of tests runs: all; under sanitizers every fifth, from a first one that
/// the suite's name sets.
inline std::vector<std::string> sample_of(const std::vector<std::string>& models,
                                          const std::string& suite) {
  Sample sample(suite);
  std::vector<std::string> taken;
  for (const std::string& model : models) {
    if (sample.takes()) taken.push_back(model);
  }
  return taken;
}

}  // namespace moracle::testing
