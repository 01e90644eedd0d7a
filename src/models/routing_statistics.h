// Placement of a model's experts by a file of routing statistics.
#pragma once

#include <set>

#include "moracle/model.h"
#include "moracle/routing.h"

namespace moracle {

/// Errors: the statistics in the options are those of another model. Layers are compared by
/// map_by_load.
Status check_measured_load(const ModelOptions& options, const Checkpoint& checkpoint);

/// Errors: the statistics have a layer that has no experts in the model.
Status check_layers(const RoutingStatistics& statistics, const std::set<int64_t>& with_experts);

/// The experts of this rank in one layer. Errors: the statistics lack the layer, or it has another
/// number of experts there; those of place_by_load.
Result<ExpertMap> map_by_load(const RoutingStatistics& statistics, int64_t layer,
                              int64_t num_experts, const Parallelism& parallel, int64_t redundant);

}  // namespace moracle
