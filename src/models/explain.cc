#include "models/explain.h"

#include <algorithm>

#include "base/try.h"
#include "models/divide.h"
#include "models/host_experts/decode_estimate.h"
#include "models/host_experts/place_experts.h"
#include "models/residency.h"
#include "models/routing_statistics.h"

namespace moracle {
namespace {

// Expert names are alike across architectures, so experts can be explained even if the rest cannot.
// Their weights stay packed: a whole model decides about its memory.
Result<std::vector<LayerExperts>> describe_experts(const Checkpoint& checkpoint,
                                                   const ModelOptions& options) {
  std::vector<LayerExperts> experts;
  for (const int64_t layer : checkpoint.moe_layers()) {
    MORACLE_TRY(DescribedWeights weights, checkpoint.moe_layer(layer, options.quantization));
    set_activations(weights, options.activations);
    experts.emplace_back(layer, std::move(weights));
  }
  return experts;
}

}  // namespace

Result<ModelExplanation> explain(const Description& description, const ModelOptions& options,
                                 const Machine& machine, AdapterSpan adapters,
                                 const ExpertWishes& wishes) {
  ModelExplanation explanation;
  Result<ExpertWishes> placed = place_experts(description, options, machine, adapters, wishes);
  if (!placed && placed.error().kind != ErrorKind::kOutOfMemory) return placed.error();
  MORACLE_TRY(auto modules,
              consider(description, options, machine, adapters, placed ? *placed : wishes));
  const auto unserved = std::find_if(modules.begin(), modules.end(),
                                     [](const ModuleChoice& one) { return !one.selection.plan; });
  if (unserved != modules.end()) {
    explanation.not_runnable = unserved->selection.chosen().error().to_string();
  } else if (auto sizes = plan_memory(description, modules, options, machine); !sizes) {
    const bool of_device =
        sizes.error().kind == ErrorKind::kOutOfMemory || sizes.error().place == "device";
    if (!of_device) return sizes.error();
    explanation.not_runnable = sizes.error().to_string();
  } else {
    explanation.plan = *std::move(sizes);
    explanation.plan->estimate = estimate_decode(modules, *explanation.plan, options);
  }
  if (!placed) explanation.not_runnable = placed.error().to_string();
  explanation.choices = grouped(std::move(modules));
  return explanation;
}

Result<ModelExplanation> explain(const Checkpoint& checkpoint, const ModelOptions& wanted,
                                 const Machine& machine, const ExpertWishes& wishes) {
  ModelOptions options = wanted;
  MORACLE_CHECK(set_free_memory(options, machine));
  MORACLE_TRY(const AdapterList adapters, open_adapters(checkpoint, options));
  MORACLE_CHECK(check_measured_load(options, checkpoint));
  auto known = describe(checkpoint);
  if (!known) {
    if (known.error().kind != ErrorKind::kUnsupported || checkpoint.moe_layers().empty())
      return known.error();
    if (options.weights == WeightResidency::kFolded) return known.error();
    const Result<std::vector<LayerExperts>> experts = describe_experts(checkpoint, options);
    // The architecture's error says why the file's experts cannot be used.
    if (!experts && experts.error().kind == ErrorKind::kBadFile) return known.error();
    if (!experts) return experts.error();
    MORACLE_TRY(auto modules, consider(*experts, options, machine, adapters, wishes));
    return ModelExplanation{grouped(std::move(modules)), known.error().to_string()};
  }
  Description description = *std::move(known);
  MORACLE_CHECK(
      change_schemes(checkpoint, {options.quantization, options.activations}, description));
  MORACLE_TRY(std::optional<ResidencyPlan> residency,
              plan_residency(checkpoint, description, options, machine));
  if (residency && residency->chosen == WeightResidency::kFolded) MORACLE_CHECK(fold(description));
  MORACLE_CHECK(divide(description, options));
  MORACLE_TRY(ModelExplanation explanation,
              explain(description, options, machine, adapters, wishes));
  explanation.residency = std::move(residency);
  return explanation;
}

}  // namespace moracle
