// Exceptions to the order of the backend table.
#pragma once

#include <span>
#include <string_view>

#include "moracle/oracle.h"

namespace moracle {

/// An exception to the table's order.
struct Preference {
  std::string_view name;
  std::string_view first;  ///< rows whose names start with this text come before ...
  std::string_view over;   ///< ... rows whose names start with this text
  bool (*when)(const Request& request, const Machine& machine);
  std::string_view reason;
};
std::span<const Preference> preferences();

}  // namespace moracle
