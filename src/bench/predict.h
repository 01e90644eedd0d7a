// What the simulator says about decode steps that were timed.
#pragma once

#include <optional>

#include "bench/model.h"
#include "models/decoder/model_state.h"
#include "placement/trace.h"

namespace moracle::bench {

/// From the costs that loading measured, the timed parts outside the experts, and the trace. None
/// without slots or a trace, or for several sequences, which the simulator does not follow.
std::optional<PredictedSlots> predict(const Model::State& model, const RoutingTrace& trace,
                                      const Decode& decode);

}  // namespace moracle::bench
