#include "checkpoint/producers/fp4_matrix.h"

#include <algorithm>
#include <utility>

#include "base/scalar.h"
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/producers/fp8_matrix.h"
#include "checkpoint/producers/module_tensors.h"

namespace moracle {
namespace fp4_matrix {
namespace {

// The scales as f32: e4m3 times or through the global number, rounded once, as the producers do.
Result<std::vector<float>> read_nvfp4_scales(const Tensors& tensors, const std::string& module,
                                             const Fp4Format& format) {
  MORACLE_TRY(const TensorData data, tensors.read(module + "." + format.scales));
  MORACLE_TRY(const float global, read_input_scale(tensors, module + "." + format.global));
  const auto* codes = data.view.as<uint8_t>();
  std::vector<float> scales(data.view.num_elements());
  std::transform(codes, codes + scales.size(), scales.begin(), [&](uint8_t code) {
    const float scale = e4m3_to_float(code);
    return format.divides ? scale / global : scale * global;
  });
  return scales;
}

Result<CanonicalMatrix> read(const Tensors& tensors, const std::string& module,
                             const Fp4Format& format, const MatrixShape& shape, ThreadPool& pool) {
  CanonicalMatrix matrix = matrix_of(shape);
  MORACLE_TRY(TensorData codes, tensors.read(module + "." + format.codes, pool));
  set_codes(matrix, std::move(codes));
  if (format.global.empty()) {
    const int64_t count = shape.n * matrix.scale_cols();
    MORACLE_TRY(matrix.scales, read_exponents(tensors, module + "." + format.scales, 0, count));
  } else {
    MORACLE_TRY(matrix.scales, read_nvfp4_scales(tensors, module, format));
  }
  if (shape.bias) {
    MORACLE_TRY(matrix.bias, read_scales(tensors, module + ".bias"));
  }
  return matrix;
}

}  // namespace
}  // namespace fp4_matrix

Result<DescribedLinear> describe_fp4(const Tensors& tensors, const std::string& module,
                                     const Fp4Format& format) {
  std::vector<std::string> names = {module + "." + format.codes, module + "." + format.scales};
  MORACLE_TRY(const TensorView codes, tensors.get(names[0]));
  const int64_t group = format.weight.group.cols;
  const bool bytes = codes.dtype == DType::kU8 || codes.dtype == DType::kI8;
  if (!bytes || codes.shape.size() != 2 || codes.shape[1] % (group / 2) != 0) {
    return tensors.wrong(names[0], str("u8 [N, K/2] with K a multiple of ", group),
                         "it is " + to_string(codes));
  }
  const int64_t n = codes.shape[0], k = codes.shape[1] * 2;
  const DType scales = format.global.empty() ? exponents_of(tensors, names[1]) : DType::kF8E4M3;
  MORACLE_CHECK(tensors.get(names[1], scales, {n, k / group}));
  if (!format.global.empty()) {
    names.push_back(module + "." + format.global);
    MORACLE_CHECK(read_input_scale(tensors, names.back()));
  }
  if (!format.unused.empty() && tensors.find(module + "." + format.unused) != nullptr)
    names.push_back(module + "." + format.unused);
  DescribedLinear linear;
  linear.scheme.weight = format.weight;
  linear.shape = {.n = n, .k = k, .key = format.weight};
  MORACLE_TRY(linear.shape.bias, add_bias(tensors, module, n, names));
  linear.source = source_of(tensors, n, std::move(names));
  linear.source.read = [&tensors, module, format, shape = linear.shape](ThreadPool& pool) {
    return fp4_matrix::read(tensors, module, format, shape, pool);
  };
  return linear;
}

std::string unused_4bit_activations(std::string_view key) {
  return str("4-bit activations (", key,
             "), with which no backend multiplies; activations keep more bits, as the scheme says");
}

}  // namespace moracle
