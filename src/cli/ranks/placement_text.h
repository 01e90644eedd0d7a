// What `explain --placement FILE` says about the measured load of each rank.
#pragma once

#include "command.h"

namespace moracle::cli {

/// "linear", "round-robin", "measured load", "measured load with 4 redundant experts".
std::string placement_name(const ModelOptions& options);
/// The experts of each rank by layer. Only with measured load.
Json map_json(const ModelOptions& options);
/// The load of each rank with each placement; empty without measured load.
std::string load_text(const ModelOptions& options);
/// The same for programs.
Json load_json(const ModelOptions& options);

}  // namespace moracle::cli
