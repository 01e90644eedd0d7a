// compressed-tensors, format "mxfp8-quantized":
//   weight        e4m3 [N, K]
//   weight_scale  u8 [N, K/32]   exponents: the scale is 2^(byte - 127)
// value = code · scale. Activations: e4m3 in groups of 32 with power-of-two scales, or none.
#include "base/try.h"
#include "checkpoint/producers/compressed_tensors/compressed_tensors.h"
#include "checkpoint/producers/fp8_matrix.h"

namespace moracle {
namespace ct_mxfp8 {
namespace {

Status check_args(const Config& args) {
  MORACLE_CHECK(one_of(args, "num_bits", {8}));
  MORACLE_CHECK(one_of(args, "type", {"float"}));
  MORACLE_CHECK(one_of(args, "strategy", {"group"}));
  MORACLE_CHECK(one_of(args, "group_size", {32}));
  MORACLE_CHECK(one_of(args, "symmetric", {true}, true));
  return {};
}

Result<CtScheme> read_scheme(const Config& group) {
  MORACLE_TRY(const Config weights, weights_of(group, "float"));
  MORACLE_CHECK(check_args(weights));
  CtScheme scheme;
  scheme.scheme.weight = kMxfp8Static;
  MORACLE_TRY(const auto activations, group.object({"input_activations"}));
  if (!activations) return scheme;
  MORACLE_CHECK(check_args(*activations));
  MORACLE_CHECK(one_of(*activations, "dynamic", {true}));
  scheme.scheme.activation = kMxfp8Dynamic;
  return scheme;
}

Result<DescribedLinear> describe(const Tensors& tensors, const std::string& module,
                                 const CtScheme& scheme) {
  MORACLE_CHECK(check_absent(tensors, module + ".weight_zero_point", "symmetric is true"));
  return describe_fp8(tensors, module, {.scheme = scheme.scheme});
}

}  // namespace
}  // namespace ct_mxfp8

const CtFormat kCtMxfp8 = {"mxfp8-quantized", "{weight,weight_scale}", ct_mxfp8::read_scheme,
                           ct_mxfp8::describe};

}  // namespace moracle
