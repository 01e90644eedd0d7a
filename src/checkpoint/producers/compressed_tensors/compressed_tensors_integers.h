// Integer weights in compressed-tensors formats: the allowed config groups, and the tensors beside
// the codes.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "checkpoint/producers/compressed_tensors/compressed_tensors.h"

namespace moracle {

/// Reads a group with 4- or 8-bit weights whose scales use one of `strategies`. Its activations are
/// int8 or e4m3 per token, dynamic, or not quantized. Errors: anything else, with its key.
Result<CtScheme> read_int_scheme(const Config& group,
                                 std::initializer_list<nlohmann::json> strategies);

/// Checks weight_scale, weight_zero_point (dtype `zeros`, `zero_rows` rows) and weight_g_idx of a
/// linear with known shape, and adds their names. Columns in left-to-right order are not act-order,
/// whatever the config says. The check reads the index up to the first column that is out of order.
Status describe_int_groups(const Tensors& tensors, const std::string& module,
                           const CtScheme& scheme, int64_t zero_rows, DType zeros,
                           DescribedLinear& linear, std::vector<std::string>& names);

}  // namespace moracle
