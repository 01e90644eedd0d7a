// Linear layers together with the operations around them, for the library's own source folders.
#pragma once

#include "kernels/grouped_linear.h"
#include "moracle/moe.h"

namespace moracle {

struct LinearAccess {
  /// True if the layer's kernel for this many tokens computes such an input by itself.
  static bool starts_with_norm(const Linear& linear, const NormedInput& x);
  /// Linear::apply to the norm of x. Requires starts_with_norm.
  static Status apply(Linear& linear, const NormedInput& x, const Matrix& y, Stream stream);
  /// Ops::add_rms_norm if the call has a norm, then apply, then Ops::route: in one kernel where the
  /// device has one, with the same bits. Errors: those of the three.
  static Status route(Linear& router, const RouterCall& call, Stream stream);
};

}  // namespace moracle
