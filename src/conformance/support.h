// Which backends serve a request on a machine with every feature: docs/support.md, `moracle
// support`.
#pragma once

#include <map>
#include <string_view>
#include <vector>

#include "moracle/oracle.h"

namespace moracle::conformance {

/// A few tokens for a plain layer of the size of Qwen3-30B-A3B's.
Request plain_request(const Scheme& scheme);

/// For each backend, by name, the rules that refuse the request, on the machine where fewest do.
/// The rule `build` is left out, so that every build gives the same answer.
std::map<std::string_view, std::vector<std::string_view>> objections(const Request& request);

}  // namespace moracle::conformance
