// Refuses a model whose layers need operations that a device does not have, before a weight is
// read.
#pragma once

#include "kernels/ops.h"
#include "models/description.h"

namespace moracle {

/// Errors (kUnsupported): the first layer that needs a missing operation, by its name.
Status check_operations(const Description& description, Platform platform);

}  // namespace moracle
