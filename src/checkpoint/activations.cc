// Other activations than the checkpoint's floats.
#include "base/text.h"
#include "moracle/checkpoint.h"

namespace moracle {
namespace {

bool takes_int8(const Scheme& scheme) {
  const DType dtype = scheme.weight.dtype;
  return !scheme.activation &&
         (dtype == DType::kI8 || dtype == DType::kI4 || dtype == DType::kF4E2M1);
}

}  // namespace

void quantize_activations(DescribedMatrix& weights) {
  if (takes_int8(weights.scheme())) weights.set_activation(kInt8DynamicTokenSym);
}

void quantize_activations(DescribedWeights& weights) {
  quantize_activations(weights.w13);
  quantize_activations(weights.w2);
  weights.spec.scheme = weights.w13.scheme();
}

Result<FloatActivations> parse_activations(std::string_view text) {
  if (text.empty()) return FloatActivations::kKept;
  if (text == "bf16") return FloatActivations::kBf16;
  if (text == "int8") return FloatActivations::kInt8;
  return Error{ErrorKind::kInvalidArgument, "", "--activations", "bf16 or int8",
               str("'", text, "' is not known")};
}

}  // namespace moracle
