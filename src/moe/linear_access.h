// Linear layers together with the operations around them, for the library's own source folders.
#pragma once

#include "kernels/grouped_linear.h"
#include "moracle/moe.h"

namespace moracle {

struct LinearAccess {
  /// Ops::add_rms_norm if the call has a norm, then apply, then Ops::route: in one kernel where the
  /// device has one, with the same bits. Errors: those of the three.
  static Status route(Linear& router, const RouterCall& call, Stream stream);
};

}  // namespace moracle
