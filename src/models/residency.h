// Chooses how 4-bit weights beside fp8 activations lie in memory (ModelOptions::weights).
#pragma once

#include <optional>

#include "models/description.h"
#include "moracle/model.h"

namespace moracle {

/// Plans the model with packed and with folded weights. `packed`: its description, whole, with
/// packed weights. None: the options leave the weights packed, and no others are possible. Errors,
/// only for kFolded: the reason why the weights stay packed; for kFolded and kAuto: those of
/// options.adapters.
Result<std::optional<ResidencyPlan>> plan_residency(const Checkpoint& checkpoint,
                                                    const Description& packed,
                                                    const ModelOptions& options,
                                                    const Machine& machine);

/// The changes to the schemes that options request. options.weights must not be kAuto.
SchemeChanges changes_of(const ModelOptions& options);

/// Describes the checkpoint as options request, with the residency that plan_residency chooses, and
/// sets options.weights to it. Errors: as plan_residency and describe.
Result<Description> describe_resident(const Checkpoint& checkpoint, const Machine& machine,
                                      ModelOptions& options,
                                      std::optional<ResidencyPlan>& residency);

}  // namespace moracle
