// Argument checks that all devices' operations share.
#pragma once

#include <initializer_list>
#include <string_view>

#include "moracle/base.h"
#include "moracle/layer.h"
#include "moracle/quant.h"

namespace moracle {

/// Errors: a matrix that is not f32, bf16 or f16. `platform` names the device's kind.
Status check_floats(std::string_view platform, std::initializer_list<const Matrix*> matrices);

/// Errors: an activation that needs a limit and has none.
Status check_activation(const ActivationSpec& activation);

/// For logits of `num_experts` experts. Errors: groups that do not divide, fewer experts to choose
/// from than top_k, a correction bias that the routing lacks, or a routing's bias that is missing.
Status check_routing(const Routing& routing, int64_t num_experts, bool has_bias, int64_t top_k);

/// Errors: those of Ops::find_top_k.
Status check_top_k(const Matrix& numbers, int64_t k);

}  // namespace moracle
