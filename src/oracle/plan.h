#pragma once

#include "moracle/oracle.h"

namespace moracle {

/// What `backend` would do for `request` on `machine`: a pure function of its arguments. The
/// backend has a layout and kernels.
Plan make_plan(const Backend& backend, const Request& request, const Machine& machine);

}  // namespace moracle
