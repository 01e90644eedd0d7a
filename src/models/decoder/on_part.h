// Where the time of a step goes: whoever wants to know is told at the end of each part.
#pragma once

#include <functional>
#include <string_view>

namespace moracle {

/// Called with "norms", "attention linears", "attention", "router", "experts", … when that part of
/// a step has been enqueued (which on a CPU is: done). Empty: nobody wants to know.
using OnPart = std::function<void(std::string_view part)>;

inline void part_done(const OnPart& on_part, std::string_view part) {
  if (on_part) on_part(part);
}

}  // namespace moracle
