#pragma once

#include "models/decoder/model_state.h"

namespace moracle {

/// Checks the steps of Model::forward before it changes anything.
Status check_steps(std::span<const Model::Step> steps, Model::State& m);

}  // namespace moracle
