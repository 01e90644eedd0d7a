// Finds the source of a non-finite number. Runs only if logits have one.
#pragma once

#include "moracle/model.h"

namespace moracle {

/// Explains why no token follows the last of `ids`. Runs `ids` again from the start of `cache`,
/// part by part, up to the first part that gives NaN or an infinity. `cache` keeps the tokens that
/// were run. The caller holds the model's device.
Error explain_non_finite(Model& model, std::span<const int32_t> ids, KvCache& cache,
                         int32_t adapter);

}  // namespace moracle
