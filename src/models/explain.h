// The selections of a whole model with all reasons, for users; `plan` is for loading.
#pragma once

#include "models/plan.h"

namespace moracle {

struct ModelExplanation {
  std::vector<Choice> choices;  ///< their selections may lack a plan
  /// Why the model as a whole cannot run; empty if it can. An unknown architecture has choices for
  /// its experts alone.
  std::string not_runnable;
  std::optional<ModelPlan> plan = {};           ///< without choices; none if it cannot run
  std::optional<ResidencyPlan> residency = {};  ///< as ModelPlan::residency
};

/// Queries the oracle as Model::load and plan do. Errors: the same, except for modules that nothing
/// serves and memory that does not suffice. With experts, an architecture that cannot be described
/// is no error either.
Result<ModelExplanation> explain(const Checkpoint& checkpoint, const ModelOptions& options,
                                 const Machine& machine, const ExpertWishes& wishes = {});

/// Outlines a checkpoint that has this description.
Result<Outline> outline(const Checkpoint& checkpoint, const Description& description);

/// Explains a description as it is to be loaded.
Result<ModelExplanation> explain(const Description& description, const ModelOptions& options,
                                 const Machine& machine, AdapterSpan adapters = {},
                                 const ExpertWishes& wishes = {});

}  // namespace moracle
