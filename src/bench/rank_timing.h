// Times calls that all ranks make together.
#pragma once

#include <functional>

#include "moracle/parallel.h"

namespace moracle::bench {

/// Every rank makes `calls` calls in each of several rounds, which all ranks begin together.
/// Returns the microseconds of one call in the median round. The first round does not count.
/// Errors: those of the calls.
Result<double> time_together(const std::function<Status()>& call, int64_t calls, Group& group,
                             Device& device);

}  // namespace moracle::bench
