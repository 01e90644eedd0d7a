// What `explain` says about ranks that share the experts.
#pragma once

#include "command.h"

namespace moracle::cli {

/// The exchange that serves, why others do not, and the bytes that a rank sends.
std::string ranks_text(const std::vector<Choice>& choices, const Machine& machine,
                       const ModelOptions& options);
Json ranks_json(const std::vector<Choice>& choices, const Machine& machine,
                const ModelOptions& options);

}  // namespace moracle::cli
