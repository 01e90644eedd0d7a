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

/// In the order in which a reader wants to see them: what was asked for, then the machine, then the
/// layer, then how it is run.
std::span<const Rule> rules();

// The parts of rules(), each in a file of its own.
std::span<const Rule> machine_rules();
std::span<const Rule> layer_rules();
std::span<const Rule> request_rules();

/// The most tokens that one apply can take: rows, one per token and expert, are counted in 32 bits
/// by every kernel.
int64_t countable_tokens(const Request& request);

/// An objection; rules() knows its name.
inline std::optional<Reason> object(std::string need, std::string have) {
  return Reason{"", std::move(need), std::move(have)};
}

}  // namespace moracle
