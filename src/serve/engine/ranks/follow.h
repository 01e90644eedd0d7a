#pragma once

#include "moracle/model.h"

namespace moracle::serve {

/// Loop of ranks above 0: runs the orders of rank 0's Engine until it stops. `folder` and `options`
/// are those that loaded `model`; reloads read `folder`. Errors: a rank that stopped or hangs; a
/// failure on this rank alone. The caller must then call Group::abort.
Status follow(Model& model, const std::string& folder, const ModelOptions& options);

}  // namespace moracle::serve
