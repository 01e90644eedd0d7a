#include "kernels/fused_experts.h"

namespace moracle {

Status FusedExperts::prepare(const Matrix&, int64_t, const Rows&, Stream) {
  return Error{ErrorKind::kInvalidArgument, "", "fused experts",
               "a form of their own for activations", "they take them as they are"};
}

}  // namespace moracle
