// Overrides the activation precision of the checkpoint's scheme.
#include "base/text.h"
#include "moracle/checkpoint.h"

namespace moracle {
namespace {

/// Float activations beside weights with fewer bits.
bool takes_codes(const Scheme& scheme) {
  const DType dtype = scheme.weight.dtype;
  return !scheme.activation &&
         (dtype == DType::kI8 || dtype == DType::kI4 || dtype == DType::kF4E2M1);
}

std::optional<QuantKey> key_of(ActivationPrecision precision) {
  if (precision == ActivationPrecision::kInt8) return kInt8DynamicTokenSym;
  if (precision == ActivationPrecision::kFp8) return kFp8DynamicTokenSym;
  return {};
}

}  // namespace

void set_activations(DescribedMatrix& weights, ActivationPrecision precision) {
  const Scheme& scheme = weights.scheme();
  if (const auto key = key_of(precision); key && takes_codes(scheme)) weights.set_activation(*key);
  if (precision == ActivationPrecision::k16Bit && scheme.activation)
    weights.set_activation(std::nullopt);
}

void set_activations(DescribedWeights& weights, ActivationPrecision precision) {
  // One format of activations serves both matrices.
  if (key_of(precision) && takes_codes(weights.w13.scheme()) != takes_codes(weights.w2.scheme()))
    return;
  set_activations(weights.w13, precision);
  set_activations(weights.w2, precision);
  weights.spec.scheme = weights.w13.scheme();
}

std::string_view name(ActivationPrecision precision) {
  constexpr std::string_view kNames[] = {"", "bf16", "int8", "16bit", "fp8"};
  return kNames[static_cast<int>(precision)];
}

Result<ActivationPrecision> parse_activations(std::string_view text) {
  using enum ActivationPrecision;
  for (const auto precision : {kStored, kBf16, kInt8, k16Bit, kFp8})
    if (text == name(precision)) return precision;
  return Error{ErrorKind::kInvalidArgument, "", "activations", "bf16, int8, fp8 or 16bit",
               str("'", text, "' is unknown")};
}

}  // namespace moracle
