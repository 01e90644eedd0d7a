// What every device's operations ask of their arguments.
#pragma once

#include "moracle/base.h"
#include "moracle/checkpoint.h"
#include "moracle/quant.h"

namespace moracle {

/// Errors: an activation that needs a limit and has none.
Status check_activation(const ActivationSpec& activation);

/// For logits of so many experts. Errors: groups that do not divide, fewer experts than top_k to
/// choose from, a correction bias where the routing has none or the other way round.
Status check_routing(const Routing& routing, int64_t num_experts, bool has_bias, int64_t top_k);

/// Errors: as Ops::find_top_k.
Status check_top_k(const Matrix& numbers, int64_t k);

}  // namespace moracle
