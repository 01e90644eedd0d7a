#pragma once

#include "oracle/backend.h"

namespace moracle {

/// The plan of `backend` for `request` on `machine`: a pure function of its arguments. The backend
/// must have a layout and kernels.
Plan make_plan(const Backend& backend, const Request& request, const Machine& machine);

}  // namespace moracle
