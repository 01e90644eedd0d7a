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

/// In the order of loading: per layer qkv, output, router where there is one, experts; then the
/// output. Errors: the first module that nothing serves, with the trail.
Result<std::vector<ModuleChoice>> choose(const Description& description,
                                         const ModelOptions& options, const Machine& machine);
/// Choices of equal layers together.
std::vector<Choice> grouped(std::vector<ModuleChoice> modules);

/// Activations between the modules, [max_num_tokens, …].
struct Activations {
  Matrix hidden, normed, qkv, attended, added, router_logits;
  size_t bytes = 0;
};
Activations carve_activations(const Description& description, int64_t max_num_tokens, DType dtype,
                              std::byte* base);

}  // namespace moracle
