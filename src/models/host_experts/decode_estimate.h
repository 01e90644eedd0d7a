// What a decode step with experts in slots takes, from measured rates and a simulated trace.
#pragma once

#include "models/plan.h"

namespace moracle {

/// See DecodeEstimate. None if nothing is placed, or a rate that it needs is unknown.
std::optional<DecodeEstimate> estimate_decode(std::span<const ModuleChoice> modules,
                                              const ModelPlan& plan, const ModelOptions& options);

}  // namespace moracle
