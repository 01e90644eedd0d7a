// Which numbers of a tensor are NaN or infinite, found in the bytes of the file.
#pragma once

#include <cstddef>
#include <cstdint>

#include "moracle/base.h"

namespace moracle {

/// The first of `count` elements that is NaN or infinite; -1 where none is, and for types that
/// hold finite numbers only. `data` needs no alignment.
int64_t first_not_finite(DType type, const std::byte* data, int64_t count);

}  // namespace moracle
