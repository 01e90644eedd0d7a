// Times the parts of a step: calls back at the end of each part.
#pragma once

#include <functional>
#include <string_view>

namespace moracle {

/// Called with "norms", "attention linears", "attention", "router", "experts", … when that part of
/// a step has been enqueued. On a CPU, the part is then done. Empty: no callback.
using OnPart = std::function<void(std::string_view part)>;

inline void part_done(const OnPart& on_part, std::string_view part) {
  if (on_part) on_part(part);
}

}  // namespace moracle
