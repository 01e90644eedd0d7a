// Values of ModelOptions from the words that a user types.
#pragma once

#include "moracle/model.h"
#include "support/must.h"

namespace moracle::testing {

inline BackendMap backend(std::string_view text) {
  return must(BackendMap::parse(text));
}
/// "" quantizes nothing.
inline QuantizationMap quantization(std::string_view text) {
  return text.empty() ? QuantizationMap() : must(QuantizationMap::parse(text));
}
inline DeviceName device(std::string_view text) {
  return must(parse_device(text));
}

}  // namespace moracle::testing
