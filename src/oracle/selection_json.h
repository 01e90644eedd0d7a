// Selections and plans as JSON, for the command, the server, Python and C.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "moracle/oracle.h"

namespace moracle {

/// [{"n", "k", "input_dtype", "product_bits", "reason", "kernels": [{"name", "from_tokens",
///   "to_tokens", "from_rows", "to_rows"}]}], as in MatrixPlan; null where any number may come, and
/// without a reason.
nlohmann::ordered_json matrices_json(const std::vector<MatrixPlan>& matrices);
/// {"backend", "layout", "weight_bytes", "workspace_bytes", "scratch_bytes", "max_num_tokens",
///  "in_this_build", "matrices"}; null: no plan.
nlohmann::ordered_json plan_json(const std::optional<Plan>& plan);
/// [{"backend", "accepted", "in_this_build", "reasons": [{"rule", "need", "have"}], "tuned",
///   "moved_back"}], in the order in which the oracle checks the rows.
nlohmann::ordered_json considered_json(const Selection& selection);

}  // namespace moracle
