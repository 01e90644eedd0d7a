// Text of `explain --placement FILE`: measured load per rank.
#pragma once

#include "command.h"

namespace moracle::cli {

/// "linear", "round-robin", "measured load", "measured load with 4 redundant experts".
std::string placement_name(const ModelOptions& options);
/// Experts per rank and layer. Only with measured load.
Json map_json(const ModelOptions& options);
/// Load per rank for each placement; empty without measured load.
std::string load_text(const ModelOptions& options);
/// The same as JSON.
Json load_json(const ModelOptions& options);

}  // namespace moracle::cli
