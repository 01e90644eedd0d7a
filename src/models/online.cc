// Describes a checkpoint with linear layers in other schemes than its own.
#include "checkpoint/online/online.h"
#include "models/modules.h"

namespace moracle {
namespace {

Status quantize_online(const Checkpoint& checkpoint, QuantizationMap map,
                       Description& description) {
  if (const std::optional<Scheme> output = map.take_output()) {
    MORACLE_TRY(description.output, quantize(std::move(description.output), *output));
  }
  if (!map.has_schemes()) return {};
  MORACLE_TRY(const OnlineChoice choice, OnlineChoice::make(checkpoint, map));
  const auto apply = [&](const ModuleLabel&, auto& weights) -> Status {
    MORACLE_TRY(weights, choice.apply(std::move(weights)));
    return {};
  };
  return visit_modules(description, apply);
}

Status fold_if_packed(DescribedMatrix& weights) {
  return has_residency(weights.scheme()) ? weights.fold() : Status();
}
Status fold_if_packed(DescribedWeights& weights) {
  const bool packed = has_residency(weights.w13.scheme()) || has_residency(weights.w2.scheme());
  return packed ? fold(weights) : Status();
}

}  // namespace

Status change_schemes(const Checkpoint& checkpoint, const SchemeChanges& changes,
                      Description& description) {
  MORACLE_CHECK(quantize_online(checkpoint, changes.quantization, description));
  return visit_modules(description, [&](const ModuleLabel&, auto& weights) -> Status {
    set_activations(weights, changes.activations);
    return changes.weights == WeightResidency::kFolded ? fold_if_packed(weights) : Status();
  });
}

Status fold(Description& description) {
  return visit_modules(description,
                       [](const ModuleLabel&, auto& weights) { return fold_if_packed(weights); });
}

Result<Description> describe(const Checkpoint& checkpoint, const SchemeChanges& changes) {
  MORACLE_TRY(Description description, describe(checkpoint));
  MORACLE_CHECK(change_schemes(checkpoint, changes, description));
  return description;
}

Result<Description> describe_next_tokens(const Checkpoint& checkpoint,
                                         const SchemeChanges& changes) {
  MORACLE_TRY(Description description, describe_next_tokens(checkpoint));
  MORACLE_CHECK(change_schemes(checkpoint, changes, description));
  return description;
}

}  // namespace moracle
