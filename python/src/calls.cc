#include "calls.h"

namespace moracle::python {

void check_signals() {
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

bool LongCall::go_on(int64_t done, int64_t total) {
  {
    const std::lock_guard lock(mutex_);
    if (raised_) return false;
    const auto now = std::chrono::steady_clock::now();
    const bool last = total > 0 && done == total && !progress_.is_none();
    if (!last && now - last_ < std::chrono::milliseconds(20)) return true;
    last_ = now;
  }
  const nb::gil_scoped_acquire acquired;  // never with mutex_ locked: that would deadlock
  try {
    check_signals();
    return progress_.is_none() || !progress_(done, total).is(nb::handle(Py_False));
  } catch (...) {
    const std::lock_guard lock(mutex_);
    raised_ = std::current_exception();
    return false;
  }
}

}  // namespace moracle::python
