// Overrides the activation precision of the checkpoint's scheme.
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

void set_activations(DescribedMatrix& weights, ActivationPrecision precision) {
  const Scheme& scheme = weights.scheme();
  if (precision == ActivationPrecision::kInt8 && takes_int8(scheme))
    weights.set_activation(kInt8DynamicTokenSym);
  if (precision == ActivationPrecision::k16Bit && scheme.activation)
    weights.set_activation(std::nullopt);
}

void set_activations(DescribedWeights& weights, ActivationPrecision precision) {
  // One format of activations serves both matrices.
  if (precision == ActivationPrecision::kInt8 &&
      takes_int8(weights.w13.scheme()) != takes_int8(weights.w2.scheme()))
    return;
  set_activations(weights.w13, precision);
  set_activations(weights.w2, precision);
  weights.spec.scheme = weights.w13.scheme();
}

std::string_view name(ActivationPrecision precision) {
  constexpr std::string_view kNames[] = {"", "bf16", "int8", "16bit"};
  return kNames[static_cast<int>(precision)];
}

Result<ActivationPrecision> parse_activations(std::string_view text) {
  for (const auto precision : {ActivationPrecision::kStored, ActivationPrecision::kBf16,
                               ActivationPrecision::kInt8, ActivationPrecision::k16Bit})
    if (text == name(precision)) return precision;
  return Error{ErrorKind::kInvalidArgument, "", "activations", "bf16, int8 or 16bit",
               str("'", text, "' is unknown")};
}

}  // namespace moracle
