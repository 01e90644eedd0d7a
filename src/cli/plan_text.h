// Plans as JSON and as text, for all verbs that show them.
#pragma once

#include "command.h"

namespace moracle::cli {

/// [{"n", "k", "input_dtype", "product_bits", "reason", "kernels": [{"name", "from_tokens",
///   "to_tokens", "from_rows", "to_rows"}]}], as in KernelPlan; null where any number may come, and
/// without a reason.
Json matrices_json(const std::vector<MatrixPlan>& matrices);
/// {"backend", "layout", "weight_bytes", "workspace_bytes", "scratch_bytes", "max_num_tokens",
///  "in_this_build", "matrices"}; null: no plan.
Json plan_json(const std::optional<Plan>& plan);
/// [{"backend", "accepted", "in_this_build", "reasons": [{"rule", "need", "have"}], "tuned",
///   "moved_back"}], in the order in which the rows were asked.
Json considered_json(const Selection& selection);

/// Name of the backend; if this build lacks it, also the build that has it.
std::string backend_text(const Backend& backend);

/// One line for each text of Checkpoint::not_used().
std::string not_used_text(const Checkpoint& checkpoint);
/// The same for GenerationConfig::not_followed.
std::string not_followed_text(const GenerationConfig& config);

/// Shows the backends of a loaded model on stderr, one line per group of equal layers, then what is
/// not used of its checkpoint.
void show_choices(const Model& model, const Checkpoint& checkpoint);
/// Shows the whole plan of a model: one line per group of equal layers, then the sums.
void show(const ModelPlan& plan);
Json to_json(const ModelPlan& plan);

}  // namespace moracle::cli
