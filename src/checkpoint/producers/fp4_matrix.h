// E2M1 matrices with two codes per byte and a separate tensor of scales: MXFP4 and NVFP4 of several
// producers.
#pragma once

#include <string>
#include <string_view>

#include "checkpoint/producers/producer.h"

namespace moracle {

/// The stored form of a module: codes u8 or i8 [N, K/2], the first in the low bits, and
/// `module`.`scales` [N, K/g]: exponent bytes for kMxfp4Static, e4m3 for kNvfp4Static.
struct Fp4Format {
  QuantKey weight;
  std::string codes = "weight_packed";
  std::string scales = "weight_scale";
  /// NVFP4: the number f32 [] or [1] that applies to all scales; empty: there is none.
  std::string global = {};
  bool divides = false;  ///< scales are divided by the global number
  /// A number for 4-bit activations that the file may hold; activations stay floats.
  std::string unused = {};
};

/// Errors: a tensor that is missing or has another dtype or shape.
Result<DescribedLinear> describe_fp4(const Tensors& tensors, const std::string& module,
                                     const Fp4Format& format);

/// For Reader::not_used. `key` of the config asks for 4-bit activations.
std::string unused_4bit_activations(std::string_view key);

}  // namespace moracle
