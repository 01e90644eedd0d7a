// Integer weights in the formats of compressed-tensors: what their config groups may say, and the
// tensors beside the codes.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "checkpoint/producers/compressed_tensors.h"

namespace moracle {

/// What a group says of weights of 4 or 8 bits with scales of one of `strategies`, and of the
/// activations beside them: int8 or e4m3 per token, dynamic, or none. Errors: anything else, by its
/// key.
Result<CtScheme> read_int_scheme(const Config& group,
                                 std::initializer_list<nlohmann::json> strategies);

/// Checks weight_scale, weight_zero_point (of dtype `zeros`, `zero_rows` rows) and weight_g_idx of
/// a linear whose shape is known, and adds their names. Columns in order from left to right are not
/// act-order, whatever the config says: this reads the index up to the first that is not.
Status describe_int_groups(const Tensors& tensors, const std::string& module,
                           const CtScheme& scheme, int64_t zero_rows, DType zeros,
                           DescribedLinear& linear, std::vector<std::string>& names);

}  // namespace moracle
