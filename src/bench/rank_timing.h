// Times calls that all ranks make together.
#pragma once

#include <functional>

#include "moracle/parallel.h"

namespace moracle::bench {

/// Microseconds of one of `calls` calls, which every rank makes: the median of several rounds, each
/// of which all ranks begin together. The first round does not count. Errors: those of the calls.
Result<double> time_together(const std::function<Status()>& call, int64_t calls, Group& group,
                             Device& device);

}  // namespace moracle::bench
