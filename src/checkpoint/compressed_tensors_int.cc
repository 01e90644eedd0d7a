// compressed-tensors, format "int-quantized":
//   weight        i8 [N, K]            two's complement codes
//   weight_scale  [N, 1] or [N]        strategy channel
//                 [1] or []            strategy tensor: the same number for every channel
// value = code · scale[n]. Activations: int8 per token, dynamic, or none.
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/compressed_tensors.h"

namespace moracle {
namespace {

Result<CtScheme> read_scheme(const Config& group) {
  MORACLE_TRY(const Config weights, weights_of(group, "int"));
  MORACLE_CHECK(one_of(weights, "num_bits", {8}));
  MORACLE_TRY(const auto strategy, one_of(weights, "strategy", {"channel", "tensor"}));
  MORACLE_CHECK(one_of(weights, "symmetric", {true}, true));
  CtScheme scheme;
  scheme.per_tensor = strategy == "tensor";
  scheme.scheme.weight = kInt8StaticChannelSym;
  MORACLE_TRY(const auto activations, group.object({"input_activations"}));
  if (!activations) return scheme;
  MORACLE_CHECK(one_of(*activations, "num_bits", {8}));
  MORACLE_CHECK(one_of(*activations, "type", {"int"}));
  MORACLE_CHECK(one_of(*activations, "strategy", {"token"}));
  MORACLE_CHECK(one_of(*activations, "symmetric", {true}, true));
  MORACLE_CHECK(one_of(*activations, "dynamic", {true}));
  scheme.scheme.activation = kInt8DynamicTokenSym;
  return scheme;
}

Result<CanonicalMatrix> read(const Tensors& tensors, const std::string& module,
                             const MatrixShape& shape, ThreadPool& pool) {
  CanonicalMatrix matrix = matrix_of(shape);
  MORACLE_TRY(TensorData codes, tensors.read(module + ".weight", pool));
  set_codes(matrix, std::move(codes));
  MORACLE_TRY(matrix.scales, read_scales(tensors, module + ".weight_scale"));
  if (matrix.scales.size() == 1) matrix.scales.resize(shape.n, matrix.scales[0]);
  if (shape.bias) {
    MORACLE_TRY(matrix.bias, read_scales(tensors, module + ".bias"));
  }
  return matrix;
}

Result<DescribedLinear> describe(const Tensors& tensors, const std::string& module,
                                 const CtScheme& scheme) {
  using Shape = std::vector<int64_t>;
  std::vector<std::string> names = {module + ".weight", module + ".weight_scale"};
  MORACLE_TRY(const TensorView codes, tensors.get(names[0]));
  if (codes.dtype != DType::kI8 || codes.shape.size() != 2) {
    return tensors.wrong(names[0], "i8 of two dimensions", "it is " + to_string(codes));
  }
  MORACLE_CHECK(check_absent(tensors, module + ".weight_zero_point", "symmetric is true"));
  DescribedLinear linear;
  linear.scheme = scheme.scheme;
  linear.shape = {.n = codes.shape[0], .k = codes.shape[1], .key = linear.scheme.weight};
  MORACLE_TRY(const TensorView scale, get_floats(tensors, names[1]));
  const int64_t n = linear.shape.n;
  const bool fits = scheme.per_tensor ? scale.shape == Shape{} || scale.shape == Shape{1}
                                      : scale.shape == Shape{n, 1} || scale.shape == Shape{n};
  if (!fits) {
    return tensors.wrong(names[1],
                         scheme.per_tensor ? "shape [1], one scale for the tensor"
                                           : str("shape [", n, ", 1], one scale per channel"),
                         "it is " + to_string(scale));
  }
  MORACLE_TRY(linear.shape.bias, add_bias(tensors, module, n, names));
  linear.part = part_of(tensors, n, std::move(names));
  linear.part.read = [&tensors, module, shape = linear.shape](ThreadPool& pool) {
    return read(tensors, module, shape, pool);
  };
  return linear;
}

}  // namespace

const CtFormat kCtInt = {"int-quantized", "{weight,weight_scale}", read_scheme, describe};

}  // namespace moracle
