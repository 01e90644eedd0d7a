#pragma once

#include <optional>
#include <span>

#include "oracle/backend.h"

namespace moracle {

/// One possible objection to a backend. A rule reads only its arguments.
struct Rule {
  std::string_view name;
  /// The reason (need and have) why `backend` cannot serve `request` on `machine`, or nullopt.
  std::optional<Reason> (*refuse)(const Backend& backend, const Request& request,
                                  const Machine& machine);
  /// The rules after it assume that this rule does not object, so they are not evaluated.
  bool ends = false;
};

/// The rules in the order for readers: the layer's spec, the user's choice, the machine,
/// the layer, then how the layer is run.
std::span<const Rule> rules();

// The parts of rules(), each in its own file.
std::span<const Rule> layer_spec_rules();
std::span<const Rule> machine_rules();
std::span<const Rule> layer_rules();
std::span<const Rule> request_rules();

/// The maximum number of tokens in one apply. Every kernel counts rows, one per token and expert,
/// in 32 bits.
int64_t countable_tokens(const Request& request);

/// False if 64 bits may not count the bytes of the request's adapters.
bool countable_adapters(const Request& request);

/// Makes an objection. rules() adds the rule's name.
inline std::optional<Reason> object(std::string need, std::string have) {
  return Reason{"", std::move(need), std::move(have)};
}

}  // namespace moracle
