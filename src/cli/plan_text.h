// Plans as JSON and as text, for every verb that shows them.
#pragma once

#include "command.h"

namespace moracle::cli {

/// {"backend", "layout", "weight_bytes", "workspace_bytes", "scratch_bytes", "max_num_tokens",
///  "matrices": [{"n", "k", "input_dtype", "kernels": [{"from_tokens", "name"}]}]}; null: no plan.
Json plan_json(const std::optional<Plan>& plan);
/// [{"backend", "accepted", "reasons": [{"rule", "need", "have"}], "moved_back"}], in the order in
/// which the rows were asked.
Json considered_json(const Selection& selection);

/// The whole plan of a model: one line per group of equal layers, then the sums.
void show(const ModelPlan& plan);
Json to_json(const ModelPlan& plan);

}  // namespace moracle::cli
