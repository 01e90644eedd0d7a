// Matrices of e4m3 codes with a tensor of scales beside them: what producers of FP8 share.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/producers/producer.h"

namespace moracle {

/// How a config says that its modules are stored: `module`.weight e4m3 [N, K] and `module`.`scale`.
struct Fp8Format {
  /// The weight's group says how many scales there are: GroupShape{} one, in a tensor [] or [1];
  /// kPerRow [N] or [N, 1]; blocks a grid of whole and, at the edges, partial blocks. Scales of
  /// dtype kF8E8M0 are bytes of exponents. A static activation key asks for `module`.input_scale.
  Scheme scheme;
  std::string scale = "weight_scale";
  bool tensor_or_channel = false;  ///< the weight's group is the one that the scales' shape shows
  bool powers_of_two = false;      ///< every scale has to be one; they may also be stored as e8m0
};

/// True if the file holds codes or scales of an FP8 matrix for the module.
bool stores_fp8(const Tensors& tensors, const std::string& module, const std::string& scale);

/// Errors: a tensor that is missing or of another dtype; a grid of scales that does not fit the
/// blocks.
Result<DescribedLinear> describe_fp8(const Tensors& tensors, const std::string& module,
                                     const Fp8Format& format);

/// `count` bytes of exponents from element `first` on, as the powers of two that they mean. Errors:
/// 255, which is no number, with its element.
Result<std::vector<float>> read_exponents(const Tensors& tensors, const std::string& name,
                                          int64_t first, int64_t count);

}  // namespace moracle
