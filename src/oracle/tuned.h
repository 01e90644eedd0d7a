// Measurements before order: where this machine's own times are known, they choose.
#pragma once

#include <string>
#include <vector>

#include "moracle/oracle.h"

namespace moracle {

/// TunedLayer::layer of a request: what changes its times.
std::string tuned_name(const Request& request);

/// Gives each row of `rows` its times for the request's layer, and moves the fastest accepted row
/// before the first accepted one. Nothing moves where that first one was not measured, or where the
/// request asks for more than was measured: several ranks, batched activations, determinism.
void apply_tuning(const Request& request, const Machine& machine, std::vector<Verdict>& rows);

}  // namespace moracle
