// What would serve a whole model, and why nothing else: for a person, where `plan` is for loading.
#pragma once

#include "models/plan.h"

namespace moracle {

struct ModelExplanation {
  std::vector<Choice> choices;  ///< whose selections may lack a plan
  /// Why the model as a whole cannot run; empty: it can. An architecture that is unknown has
  /// choices for its experts alone.
  std::string not_runnable;
};

/// Asks as Model::load and plan do. Errors: as there, but for modules that nothing serves, memory
/// that does not suffice, and, where there are experts, an architecture that cannot be described.
Result<ModelExplanation> explain(const Checkpoint& checkpoint, const ModelOptions& options,
                                 const Machine& machine, const ExpertWishes& wishes = {});

}  // namespace moracle
