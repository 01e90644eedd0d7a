// Where a number that is not finite came from: only looked for when logits have one.
#pragma once

#include "moracle/model.h"

namespace moracle {

/// Called with what a part of a step gave; `layer` is below 0 outside the layers. Empty: nothing
/// looks. Errors end the step.
using OnOutput = std::function<Status(std::string_view part, int64_t layer, const Matrix& output)>;

/// Why no token follows the last of `ids`: runs them again from the start of `cache`, part by part,
/// up to the first part that gives NaN or an infinity. `cache` is left with what was run. The
/// caller holds the model's device.
Error explain_non_finite(Model& model, std::span<const int32_t> ids, KvCache& cache,
                         int32_t adapter);

}  // namespace moracle
