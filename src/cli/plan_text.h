// Plans as JSON and as text, for all verbs that show them.
#pragma once

#include "command.h"
#include "oracle/selection_json.h"

namespace moracle::cli {

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
