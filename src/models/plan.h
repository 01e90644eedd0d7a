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
  Selection selection;  ///< with a plan, where it comes from `choose`
};

/// What may be asked of a model's experts beside its options, to learn what would serve them.
struct ExpertWishes {
  Parallelism parallel;
  int64_t lora_rank = 0;  ///< of adapters that are not there
};

/// options.adapters, read. Errors: as LoraAdapter::open.
Result<std::vector<LoraAdapter>> open_adapters(const Checkpoint& checkpoint,
                                               const ModelOptions& options);

/// Asks the oracle about every module, in the order of visit_modules, which is that of loading.
/// Experts that any of `adapters` changes get scratch for all of them. A module that nothing serves
/// has a selection without a plan. Errors: options; a pattern of `backend` that matches nothing, or
/// only some of the modules that are multiplied together.
Result<std::vector<ModuleChoice>> consider(const Description& description,
                                           const ModelOptions& options, const Machine& machine,
                                           std::span<const LoraAdapter> adapters = {},
                                           const ExpertWishes& wishes = {});
/// The same for the experts of some layers alone.
using LayerExperts = std::pair<int64_t, DescribedWeights>;
Result<std::vector<ModuleChoice>> consider(std::span<const LayerExperts> experts,
                                           const ModelOptions& options, const Machine& machine,
                                           std::span<const LoraAdapter> adapters = {},
                                           const ExpertWishes& wishes = {});
/// As consider. Errors beside those: the first module that nothing serves, with the trail.
Result<std::vector<ModuleChoice>> choose(const Description& description,
                                         const ModelOptions& options, const Machine& machine,
                                         std::span<const LoraAdapter> adapters = {});
/// What all of it takes, without the choices. Errors: more memory than the device has; options.
Result<ModelPlan> plan_memory(const Description& description, std::span<const ModuleChoice> modules,
                              const ModelOptions& options, const Machine& machine);
/// Choices of equal layers, for which the same was asked, together.
std::vector<Choice> grouped(std::vector<ModuleChoice> modules);

}  // namespace moracle
