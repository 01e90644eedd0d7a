// Long library calls: run without the GIL; Ctrl-C or the progress function can cancel them.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <exception>
#include <mutex>
#include <utility>

#include "errors.h"
#include "moracle/base.h"

namespace moracle::python {

/// One long call. Every 20 ms it checks for signals and calls `progress(done, total)`. An exception
/// of either stops the call and propagates to the caller. If `progress` returns False, the call
/// raises moracle.Cancelled.
class LongCall {
 public:
  /// `progress`: a callable, or None.
  explicit LongCall(nb::object progress) : progress_(std::move(progress)) {}

  /// Returns the value of work(progress). Releases the GIL during the call.
  template <class Work>
  auto run(const Work& work) {
    auto result = [&] {
      const nb::gil_scoped_release released;
      return work([this](int64_t done, int64_t total) { return go_on(done, total); });
    }();
    if (raised_) std::rethrow_exception(std::exchange(raised_, nullptr));
    return value_of(std::move(result));
  }

 private:
  bool go_on(int64_t done, int64_t total);

  nb::object progress_;
  std::mutex mutex_;  // the library calls progress from several threads
  std::chrono::steady_clock::time_point last_{};
  std::exception_ptr raised_;
};

/// Runs pending signal handlers and propagates their exceptions. Needs the GIL.
void check_signals();

}  // namespace moracle::python
