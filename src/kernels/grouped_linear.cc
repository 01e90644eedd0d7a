#include "kernels/grouped_linear.h"

#include "base/text.h"

namespace moracle {
namespace {

Error not_planned(const char* what) {
  return {ErrorKind::kInvalidArgument, "", "grouped linear",
          str("a kernel that ", what, ", as its plan says"), "this kernel does not"};
}

}  // namespace

Status GroupedLinear::run_dense(const Matrix&, const Rows&, const Matrix&, Stream) {
  return not_planned("reads activations as the caller has them");
}

Status GroupedLinear::run_activated(const GroupedRows&, const ActivationSpec&, const Matrix&,
                                    Stream) {
  return not_planned("applies the activation");
}

Status GroupedLinear::run_quantized(const GroupedRows&, const ActivationSpec&, const Matrix&,
                                    const QuantKey&, const Rows&, Stream) {
  return not_planned("quantizes its output");
}

Status GroupedLinear::run_combined(const GroupedRows&, const Combination&, const Matrix&, Stream) {
  return not_planned("adds the rows of each token");
}

Status GroupedLinear::run_normed(const NormedInput&, const Matrix&, Stream) {
  return not_planned("normalizes its input");
}

Status GroupedLinear::run_unquantized(const Matrix&, const Matrix&, Stream) {
  return not_planned("quantizes its input");
}

Status GroupedLinear::run_router(const RouterCall&, Stream) {
  return not_planned("chooses experts");
}

}  // namespace moracle
