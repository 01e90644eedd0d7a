// Scales, zero points and biases are named, not counted: a list of them in the wrong order is
// no program.
#include <utility>

#include "moracle/quant.h"

moracle::CanonicalMatrix make(std::vector<float> scales, std::vector<float> bias) {
#ifdef MORACLE_MUST_NOT_COMPILE
  return moracle::CanonicalMatrix{
      8, 16, moracle::kInt8StaticChannelSym, {}, {}, std::move(bias), {}, {}, std::move(scales)};
#else
  moracle::CanonicalMatrix matrix;
  matrix.n = 8;
  matrix.k = 16;
  matrix.key = moracle::kInt8StaticChannelSym;
  matrix.scales = std::move(scales);
  matrix.bias = std::move(bias);
  return matrix;
#endif
}
