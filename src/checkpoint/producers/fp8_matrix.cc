#include "checkpoint/producers/fp8_matrix.h"
#include "checkpoint/producers/module_tensors.h"

#include <algorithm>
#include <cmath>

#include "base/finite.h"
#include "base/scalar.h"
#include "base/text.h"
#include "base/try.h"

namespace moracle {

Result<std::vector<float>> read_exponents(const Tensors& tensors, const std::string& name,
                                          int64_t first, int64_t count) {
  MORACLE_TRY(const TensorData data, tensors.read(name, first, count));
  // Check for NaN here: most files store exponents as u8, in which the read finds none.
  const int64_t bad = first_not_finite(DType::kF8E8M0, data.view.data, count);
  if (bad >= 0) return tensors.not_finite(name, first + bad, DType::kF8E8M0, data.view.data + bad);
  std::vector<float> scales(count);
  std::transform(data.view.as<uint8_t>(), data.view.as<uint8_t>() + count, scales.begin(),
                 e8m0_to_float);
  return scales;
}

bool stores_fp8(const Tensors& tensors, const std::string& module) {
  const TensorView* weight = tensors.find(module + ".weight");
  return tensors.find(module + ".weight_scale") != nullptr ||
         tensors.find(module + ".weight_scale_inv") != nullptr ||
         (weight != nullptr && weight->dtype == DType::kF8E4M3);
}

DType exponents_of(const Tensors& tensors, const std::string& name) {
  const TensorView* found = tensors.find(name);
  return found != nullptr && found->dtype == DType::kF8E8M0 ? DType::kF8E8M0 : DType::kU8;
}

bool names_e4m3(std::string_view text) {
  for (const std::string_view prefix : {"torch.", "float8_", "fp8_"}) {
    if (text.starts_with(prefix)) text.remove_prefix(prefix.size());
  }
  return text == "e4m3" || text == "e4m3fn";
}

namespace {

// The first of the names that the file has, or else the first one.
std::string stored_name(const Tensors& tensors, const std::string& module,
                        std::initializer_list<std::string> names) {
  for (const std::string& name : names) {
    if (tensors.find(module + "." + name) != nullptr) return name;
  }
  return *names.begin();
}

using Shape = std::vector<int64_t>;

// The possible shapes of the scales for one granularity, the most common one first.
std::vector<Shape> scale_shapes(GroupShape group, int64_t n, int64_t k) {
  if (group == GroupShape{}) return {{}, {1}};
  if (group == kPerRow) return {{n, 1}, {n}};
  const int64_t rows = (n + group.rows - 1) / group.rows;
  const int64_t cols = (k + group.cols - 1) / group.cols;
  if (group.rows == 1) return {{rows, cols}};
  // ModelOpt keeps the reduced axes of each block with length 1.
  std::vector<Shape> shapes = {{rows, cols}, {rows, 1, cols, 1}};
  // transformers flattens a single row or column of blocks. Then only one interpretation is
  // possible.
  if (rows == 1 || cols == 1) shapes.push_back({rows * cols});
  return shapes;
}

bool is_among(const Shape& shape, const std::vector<Shape>& shapes) {
  return std::find(shapes.begin(), shapes.end(), shape) != shapes.end();
}

std::string granularity(GroupShape group, int64_t n, int64_t k) {
  if (group == GroupShape{}) return "one scale for the tensor";
  if (group == kPerRow) return str("one scale for each of ", n, " rows");
  return str("blocks of ", group.rows, " x ", group.cols, " of [", n, ", ", k, "]");
}

bool is_exponents(const TensorView& view) {
  return view.dtype == DType::kU8 || view.dtype == DType::kF8E8M0;
}

// Checks the dtype of the scales, which is usually a float type.
Status check_dtype(const Tensors& tensors, const std::string& name, const Fp8Format& format) {
  MORACLE_TRY(const TensorView view, tensors.get(name));
  if (format.scheme.weight.scale_dtype == DType::kF8E8M0) {
    if (is_exponents(view)) return {};
    return tensors.wrong(name, "u8 exponents", "it is " + to_string(view));
  }
  if (view.dtype == DType::kF8E8M0 || (format.powers_of_two && is_exponents(view))) return {};
  MORACLE_CHECK(get_floats(tensors, name));
  return {};
}

// The granularity of the stored scales. Errors: it differs from the config.
Result<GroupShape> find_group(const Tensors& tensors, const std::string& name,
                              const Fp8Format& format, int64_t n, int64_t k) {
  const Shape& shape = tensors.find(name)->shape;
  const GroupShape declared = format.scheme.weight.group;
  std::vector<GroupShape> groups = {declared};
  if (format.tensor_or_channel) groups = {GroupShape{}, kPerRow};
  std::string need;
  for (const GroupShape group : groups) {
    const std::vector<Shape> shapes = scale_shapes(group, n, k);
    if (is_among(shape, shapes)) return group;
    need += str(need.empty() ? "" : ", or ", "shape [", join(shapes.front()), "] (",
                granularity(group, n, k), ")");
  }
  return tensors.wrong(name, need, "it is " + to_string(*tensors.find(name)));
}

Result<CanonicalMatrix> read(const Tensors& tensors, const std::string& module,
                             const Fp8Format& format, const MatrixShape& shape, ThreadPool& pool) {
  const std::string name = module + "." + format.scale;
  const TensorView& view = *tensors.find(name);
  CanonicalMatrix matrix = matrix_of(shape);
  MORACLE_TRY(TensorData codes, tensors.read(module + ".weight", pool));
  set_codes(matrix, std::move(codes));
  if (is_exponents(view)) {
    MORACLE_TRY(matrix.scales, read_exponents(tensors, name, 0, view.num_elements()));
  } else {
    MORACLE_TRY(matrix.scales, read_scales(tensors, name));
  }
  for (size_t i = 0; format.powers_of_two && i < matrix.scales.size(); ++i) {
    int exponent;
    if (std::frexp(matrix.scales[i], &exponent) == 0.5f) continue;
    return tensors.wrong(name, "powers of two, because the config says scale_fmt ue8m0",
                         str("element ", i, " is ", matrix.scales[i]));
  }
  if (format.scheme.weight.group == GroupShape{}) matrix.scales.resize(shape.n, matrix.scales[0]);
  if (shape.bias) {
    MORACLE_TRY(matrix.bias, read_scales(tensors, module + ".bias"));
  }
  return matrix;
}

}  // namespace

Result<DescribedLinear> describe_fp8(const Tensors& tensors, const std::string& module,
                                     const Fp8Format& declared) {
  Fp8Format format = declared;
  format.scale = stored_name(tensors, module, {declared.scale, "weight_scale", "weight_scale_inv"});
  std::vector<std::string> names = {module + ".weight", module + "." + format.scale};
  MORACLE_TRY(const TensorView codes, tensors.get(names[0]));
  const TensorView* const scales = tensors.find(names[1]);
  if (format.scheme.weight.group == kMxfp8Static.group && scales && is_exponents(*scales)) {
    format.scheme.weight = kMxfp8Static;
    if (format.scheme.activation) format.scheme.activation = kMxfp8Dynamic;
  }
  const bool in_groups = format.scheme.weight.scale_dtype == DType::kF8E8M0;
  const int64_t multiple = in_groups ? format.scheme.weight.group.cols : 1;
  if (codes.dtype != DType::kF8E4M3 || codes.shape.size() != 2 || codes.shape[1] % multiple != 0) {
    const std::string of = in_groups ? str(" with K a multiple of ", multiple) : "";
    return tensors.wrong(names[0], "f8_e4m3 [N, K]" + of, "it is " + to_string(codes));
  }
  const int64_t n = codes.shape[0], k = codes.shape[1];
  MORACLE_CHECK(check_dtype(tensors, names[1], format));
  MORACLE_TRY(format.scheme.weight.group, find_group(tensors, names[1], format, n, k));

  DescribedLinear linear;
  linear.scheme = format.scheme;
  linear.shape = {.n = n, .k = k, .key = format.scheme.weight};
  if (linear.shape.key.group == GroupShape{}) linear.shape.key.group = kPerRow;
  const std::string input_scale =
      module + "." + stored_name(tensors, module, {"input_scale", "activation_scale"});
  if (format.scheme.activation && !format.scheme.activation->dynamic) {
    names.push_back(input_scale);
    MORACLE_TRY(linear.input_scale, read_input_scale(tensors, input_scale));
  } else if (!format.scheme.activation && tensors.find(input_scale) != nullptr) {
    names.push_back(input_scale);  // for activations that stay floats
  }
  MORACLE_TRY(linear.shape.bias, add_bias(tensors, module, n, names));
  linear.source = source_of(tensors, n, std::move(names));
  linear.source.read = [&tensors, module, format, shape = linear.shape](ThreadPool& pool) {
    return read(tensors, module, format, shape, pool);
  };
  return linear;
}

}  // namespace moracle
