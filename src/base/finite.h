// Finds NaN and infinite numbers in the bytes of a tensor.
#pragma once

#include <cstddef>
#include <cstdint>

#include "moracle/base.h"

namespace moracle {

/// Index of the first NaN or infinite element of `count` elements; -1 if there is none, or if the
/// type has only finite numbers. `data` needs no alignment.
int64_t first_not_finite(DType type, const std::byte* data, int64_t count);

}  // namespace moracle
