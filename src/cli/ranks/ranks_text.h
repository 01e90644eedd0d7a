// Text of `explain --parallel`.
#pragma once

#include "command.h"

namespace moracle::cli {

/// The selected exchange, the reasons against the others, and the bytes per token and layer.
std::string ranks_text(const std::vector<Choice>& choices, const Machine& machine,
                       const ModelOptions& options);
Json ranks_json(const std::vector<Choice>& choices, const Machine& machine,
                const ModelOptions& options);

}  // namespace moracle::cli
