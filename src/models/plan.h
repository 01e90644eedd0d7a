// From a Description to a choice for every module: what load does next, and what a dry run shows.
#pragma once

#include <optional>
#include <vector>

#include "models/description.h"
#include "moracle/model.h"

namespace moracle {

/// One choice of the oracle, for one module.
struct ModuleChoice {
  std::string part;
  std::optional<int64_t> layer;
  Selection selection;  ///< with a plan
};

/// options.adapters, read. Errors: as LoraAdapter::open.
Result<std::vector<LoraAdapter>> open_adapters(const Checkpoint& checkpoint,
                                               const ModelOptions& options);

/// In the order of visit_modules, which is that of loading. Errors: the first module that nothing
/// serves, with the trail.
/// Experts that any of `adapters` changes get room for all of them.
Result<std::vector<ModuleChoice>> choose(const Description& description,
                                         const ModelOptions& options, const Machine& machine,
                                         std::span<const LoraAdapter> adapters = {});
/// What all of it takes, without the choices. Errors: more memory than the device has; options.
Result<ModelPlan> size_up(const Description& description, std::span<const ModuleChoice> modules,
                          const ModelOptions& options, const Machine& machine);
/// Choices of equal layers together.
std::vector<Choice> grouped(std::vector<ModuleChoice> modules);

}  // namespace moracle
