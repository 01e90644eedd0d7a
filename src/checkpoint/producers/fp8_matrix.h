// E4M3 matrices with a separate tensor of scales: the common code of FP8 producers.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/producers/producer.h"

namespace moracle {

/// The stored form of modules according to a config: `module`.weight e4m3 [N, K] and
/// `module`.`scale`.
struct Fp8Format {
  /// The weight's group sets the shape of the scales. GroupShape{}: one scale, in a tensor [] or
  /// [1]. kPerRow: [N] or [N, 1]. Blocks: a grid of blocks, partial at the edges. Scales of dtype
  /// kF8E8M0 are exponent bytes. A static activation key requires `module`.input_scale.
  Scheme scheme;
  /// The file may also use the other name of weight_scale and weight_scale_inv, and
  /// activation_scale for input_scale.
  std::string scale = "weight_scale";
  bool tensor_or_channel = false;  ///< the shape of the scales sets the weight's group
  /// Every scale must be a power of two. The file may also store the scales as exponents of type
  /// u8. Scales of type e8m0 need no statement.
  bool powers_of_two = false;
};

/// True if the file holds FP8 codes or scales for the module.
bool stores_fp8(const Tensors& tensors, const std::string& module);

/// Groups of 32 with scales that are exponents are MXFP8, whatever the config calls them. Errors: a
/// tensor that is missing or has another dtype; a grid of scales that does not fit the blocks.
Result<DescribedLinear> describe_fp8(const Tensors& tensors, const std::string& module,
                                     const Fp8Format& format);

/// The same for tensors that hold all experts, with e as first index: `module` e4m3 [E, N, K] and
/// `module`_scale_inv or `module`_scale.
bool stores_fp8_experts(const Tensors& tensors, const std::string& module);

/// Describes expert e of such tensors. Errors: those of describe_fp8; static activations.
Result<DescribedLinear> describe_fp8_expert(const Tensors& tensors, const std::string& module,
                                            const Fp8Format& format, int64_t e,
                                            int64_t num_experts);

/// The type of a tensor of exponents: most files say u8, some e8m0.
DType exponents_of(const Tensors& tensors, const std::string& name);

/// True for the names of e4m3: "e4m3", "float8_e4m3fn", "torch.float8_e4m3fn", "fp8_e4m3".
bool names_e4m3(std::string_view text);

/// Reads `count` exponent bytes from element `first` on and returns their powers of two. Errors:
/// 255, which is NaN, with its element.
Result<std::vector<float>> read_exponents(const Tensors& tensors, const std::string& name,
                                          int64_t first, int64_t count);

}  // namespace moracle
