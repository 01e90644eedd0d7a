#pragma once

#include <optional>
#include <span>

#include "moracle/oracle.h"

namespace moracle {

/// One objection that a backend may have. Rules look at their arguments and nothing else.
struct Rule {
  std::string_view name;
  /// Why `backend` cannot serve `request` on `machine` (need and have), or nothing.
  std::optional<Reason> (*refuse)(const Backend& backend, const Request& request,
                                  const Machine& machine);
};

/// In the order in which a reader wants to see them.
std::span<const Rule> rules();

}  // namespace moracle
