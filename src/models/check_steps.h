#pragma once

#include "models/model_state.h"

namespace moracle {

/// What Model::forward refuses before it changes anything.
Status check_steps(std::span<const Model::Step> steps, Model::State& m);

}  // namespace moracle
