// compressed-tensors, formats "mxfp4-pack-quantized" and "nvfp4-pack-quantized":
//   weight_packed        u8 [N, K/2]     two e2m1 codes per byte, the first in the low bits
//   weight_scale         u8 [N, K/32]    MXFP4: exponents, the scale is 2^(byte - 127)
//                        e4m3 [N, K/16]  NVFP4
//   weight_global_scale  f32 [1]         NVFP4: the scale is divided by it
//   input_global_scale   f32 [1]         unused
// value = code · scale. Activations of 4 bits stay floats, which is more exact; others are refused.
#include "base/try.h"
#include "checkpoint/producers/compressed_tensors/compressed_tensors.h"
#include "checkpoint/producers/fp4_matrix.h"

namespace moracle {
namespace ct_fp4 {
namespace {

Status check_args(const Config& args, const char* strategy, int64_t group) {
  MORACLE_CHECK(one_of(args, "num_bits", {4}));
  MORACLE_CHECK(one_of(args, "type", {"float"}));
  MORACLE_CHECK(one_of(args, "strategy", {strategy}));
  MORACLE_CHECK(one_of(args, "group_size", {group}));
  MORACLE_CHECK(one_of(args, "symmetric", {true}, true));
  return {};
}

Result<CtScheme> read_scheme(const Config& group, const QuantKey& weight, const char* strategy) {
  MORACLE_TRY(const Config weights, weights_of(group, "float"));
  MORACLE_CHECK(check_args(weights, strategy, weight.group.cols));
  MORACLE_TRY(const auto activations, group.object({"input_activations"}));
  if (activations) MORACLE_CHECK(check_args(*activations, strategy, weight.group.cols));
  CtScheme scheme;
  scheme.scheme.weight = weight;
  scheme.drops_activations = activations.has_value();
  return scheme;
}

Result<CtScheme> read_mxfp4(const Config& group) {
  return read_scheme(group, kMxfp4Static, "group");
}
Result<CtScheme> read_nvfp4(const Config& group) {
  return read_scheme(group, kNvfp4Static, "tensor_group");
}

Result<DescribedLinear> describe(const Tensors& tensors, const std::string& module,
                                 const CtScheme& scheme) {
  MORACLE_CHECK(check_absent(tensors, module + ".weight_zero_point", "symmetric is true"));
  Fp4Format format{.weight = scheme.scheme.weight, .unused = "input_global_scale"};
  if (format.weight == kNvfp4Static) {
    format.global = "weight_global_scale";
    format.divides = true;
  }
  return describe_fp4(tensors, module, format);
}

}  // namespace
}  // namespace ct_fp4

const CtFormat kCtMxfp4 = {"mxfp4-pack-quantized", "{weight_packed,weight_scale}",
                           ct_fp4::read_mxfp4, ct_fp4::describe};
const CtFormat kCtNvfp4 = {"nvfp4-pack-quantized",
                           "{weight_packed,weight_scale,weight_global_scale}", ct_fp4::read_nvfp4,
                           ct_fp4::describe};

}  // namespace moracle
