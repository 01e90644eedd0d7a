// compressed-tensors, format "float-quantized", 8 bits:
//   weight        e4m3 [N, K]
//   weight_scale  [1] or []                 strategy tensor
//                 [N, 1] or [N]             strategy channel
//                 [ceil(N/bn), ceil(K/bk)]  strategy block with block_structure [bn, bk]
//   input_scale   [1] or []                 if activations are static
// value = code · scale. Activations: e4m3 per token, dynamic (with block weights: per group of bk
// columns); e4m3 per tensor, static; or none.
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/producers/compressed_tensors/compressed_tensors.h"
#include "checkpoint/producers/fp8_matrix.h"

namespace moracle {
namespace ct_float {
namespace {

Result<QuantKey> read_weight(const Config& weights) {
  MORACLE_CHECK(one_of(weights, "num_bits", {8}));
  MORACLE_CHECK(one_of(weights, "symmetric", {true}, true));
  MORACLE_TRY(const auto strategy, one_of(weights, "strategy", {"tensor", "channel", "block"}));
  if (strategy == "tensor") return kFp8StaticTensorSym;
  if (strategy == "channel") return kFp8StaticChannelSym;
  MORACLE_TRY(const auto block, weights.integers({"block_structure"}));
  const auto fits = [](int64_t size) { return size >= 1 && size <= INT32_MAX; };
  if (block.size() == 2 && fits(block[0]) && fits(block[1]))
    return fp8_static_block(block[0], block[1]);
  const auto* found = weights.find({"block_structure"});
  return weights.wrong({"block_structure"}, "two positive sizes, of rows and columns",
                       found ? "it is " + JsonField::shown(*found) : "it is missing");
}

Result<QuantKey> read_activation(const Config& activations, const QuantKey& weight) {
  MORACLE_CHECK(one_of(activations, "num_bits", {8}));
  MORACLE_CHECK(one_of(activations, "type", {"float"}));
  MORACLE_CHECK(one_of(activations, "symmetric", {true}, true));
  if (weight.group != GroupShape{} && weight.group != kPerRow) {
    MORACLE_CHECK(one_of(activations, "strategy", {"group"}));
    MORACLE_CHECK(one_of(activations, "dynamic", {true}));
    MORACLE_CHECK(one_of(activations, "group_size", {weight.group.cols}));
    return fp8_dynamic_group(weight.group.cols);
  }
  MORACLE_TRY(const auto strategy, one_of(activations, "strategy", {"token", "tensor"}));
  const bool dynamic = strategy == "token";
  MORACLE_CHECK(one_of(activations, "dynamic", {dynamic}, false));
  return dynamic ? kFp8DynamicTokenSym : kFp8StaticTensorSym;
}

Result<CtScheme> read_scheme(const Config& group) {
  MORACLE_TRY(const Config weights, weights_of(group, "float"));
  CtScheme scheme;
  MORACLE_TRY(scheme.scheme.weight, read_weight(weights));
  MORACLE_TRY(const auto activations, group.object({"input_activations"}));
  if (activations) {
    MORACLE_TRY(scheme.scheme.activation, read_activation(*activations, scheme.scheme.weight));
  }
  return scheme;
}

Result<DescribedLinear> describe(const Tensors& tensors, const std::string& module,
                                 const CtScheme& scheme) {
  MORACLE_CHECK(check_absent(tensors, module + ".weight_zero_point", "symmetric is true"));
  return describe_fp8(tensors, module, {.scheme = scheme.scheme});
}

}  // namespace
}  // namespace ct_float

const CtFormat kCtFloat = {"float-quantized", "{weight,weight_scale}", ct_float::read_scheme,
                           ct_float::describe};

}  // namespace moracle
