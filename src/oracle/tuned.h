// Times measured on this machine override the table's order.
#pragma once

#include <string>
#include <vector>

#include "moracle/oracle.h"

namespace moracle {

/// The TunedLayer::layer of a request: the text of all properties that change its times.
std::string tuned_name(const Request& request);

/// Stores the measured times of the request's layer in each row of `rows`. Moves the fastest
/// accepted row before the first accepted row. Nothing moves if that first row was not measured, or
/// if the request has features that were not measured: several ranks, batched activations,
/// determinism.
void apply_tuning(const Request& request, const Machine& machine, std::vector<Verdict>& rows);

}  // namespace moracle
