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

bool stores_fp8_experts(const Tensors& tensors, const std::string& module) {
  const TensorView* const weight = tensors.find(module);
  return tensors.find(module + "_scale") != nullptr ||
         tensors.find(module + "_scale_inv") != nullptr ||
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

// The first of the names that the file has, or else the first one. `prefix` precedes each.
std::string stored_name(const Tensors& tensors, const std::string& prefix,
                        std::initializer_list<std::string> names) {
  for (const std::string& name : names) {
    if (tensors.find(prefix + name) != nullptr) return prefix + name;
  }
  return prefix + *names.begin();
}

using Shape = std::vector<int64_t>;

// The tensors of codes and scales. With num_experts above 0 they hold all experts; the matrix is
// that of expert e.
struct Fp8Tensors {
  std::string codes, scales;
  int64_t e = 0, num_experts = 0;

  Shape shape(Shape of_matrix) const {
    if (num_experts > 0) of_matrix.insert(of_matrix.begin(), num_experts);
    return of_matrix;
  }
  // The elements of the matrix in a tensor of so many.
  int64_t count(const TensorView& view) const {
    return view.num_elements() / std::max<int64_t>(num_experts, 1);
  }
};

// The possible shapes of the scales for one granularity, the most common one first.
std::vector<Shape> scale_shapes(GroupShape group, int64_t n, int64_t k) {
  if (group == GroupShape{}) return {{}, {1}, {1, 1}};
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
Result<GroupShape> find_group(const Tensors& tensors, const Fp8Tensors& stored,
                              const Fp8Format& format, int64_t n, int64_t k) {
  const TensorView& found = *tensors.find(stored.scales);
  const GroupShape declared = format.scheme.weight.group;
  std::vector<GroupShape> groups = {declared};
  if (format.tensor_or_channel) groups = {GroupShape{}, kPerRow};
  std::string need;
  for (const GroupShape group : groups) {
    const std::vector<Shape> shapes = scale_shapes(group, n, k);
    for (const Shape& shape : shapes) {
      if (found.shape == stored.shape(shape)) return group;
    }
    need += str(need.empty() ? "" : ", or ", "shape [", join(stored.shape(shapes.front())), "] (",
                granularity(group, n, k), stored.num_experts > 0 ? ", for each expert)" : ")");
  }
  return tensors.wrong(stored.scales, need, "it is " + to_string(found));
}

Result<CanonicalMatrix> read(const Tensors& tensors, const Fp8Tensors& stored,
                             const Fp8Format& format, const MatrixShape& shape, ThreadPool& pool) {
  const std::string& name = stored.scales;
  const TensorView& view = *tensors.find(name);
  CanonicalMatrix matrix = matrix_of(shape);
  const int64_t size = shape.n * shape.k, count = stored.count(view), first = stored.e * count;
  MORACLE_TRY(TensorData codes, tensors.read(stored.codes, stored.e * size, size, pool));
  set_codes(matrix, std::move(codes));
  if (is_exponents(view)) {
    MORACLE_TRY(matrix.scales, read_exponents(tensors, name, first, count));
  } else {
    MORACLE_TRY(matrix.scales, read_scales(tensors, name, first, count));
  }
  for (size_t i = 0; format.powers_of_two && i < matrix.scales.size(); ++i) {
    int exponent;
    if (std::frexp(matrix.scales[i], &exponent) == 0.5f) continue;
    return tensors.wrong(
        name, "powers of two, because the config says scale_fmt ue8m0",
        str("element ", first + static_cast<int64_t>(i), " is ", matrix.scales[i]));
  }
  if (format.scheme.weight.group == GroupShape{}) matrix.scales.resize(shape.n, matrix.scales[0]);
  return matrix;
}

// Sets the format to that of the stored scales. The source holds no bias and no input scale.
Result<DescribedLinear> describe_stored(const Tensors& tensors, const Fp8Tensors& stored,
                                        Fp8Format format) {
  MORACLE_TRY(const TensorView codes, tensors.get(stored.codes));
  const TensorView* const scales = tensors.find(stored.scales);
  if (format.scheme.weight.group == kMxfp8Static.group && scales && is_exponents(*scales)) {
    format.scheme.weight = kMxfp8Static;
    if (format.scheme.activation) format.scheme.activation = kMxfp8Dynamic;
  }
  const bool in_groups = format.scheme.weight.scale_dtype == DType::kF8E8M0;
  const int64_t multiple = in_groups ? format.scheme.weight.group.cols : 1;
  const size_t axes = stored.num_experts > 0 ? 3 : 2;
  if (codes.dtype != DType::kF8E4M3 || codes.shape.size() != axes ||
      codes.shape.back() % multiple != 0 || (axes == 3 && codes.shape[0] != stored.num_experts)) {
    const std::string of = in_groups ? str(" with K a multiple of ", multiple) : "";
    const std::string experts = axes == 3 ? str(stored.num_experts, ", ") : "";
    return tensors.wrong(stored.codes, str("f8_e4m3 [", experts, "N, K]", of),
                         "it is " + to_string(codes));
  }
  const int64_t n = codes.shape[axes - 2], k = codes.shape.back();
  MORACLE_CHECK(check_dtype(tensors, stored.scales, format));
  MORACLE_TRY(format.scheme.weight.group, find_group(tensors, stored, format, n, k));

  DescribedLinear linear;
  linear.scheme = format.scheme;
  linear.shape = {.n = n, .k = k, .key = format.scheme.weight};
  if (linear.shape.key.group == GroupShape{}) linear.shape.key.group = kPerRow;
  linear.source = source_of(tensors, n, {stored.codes, stored.scales});
  linear.source.source_bytes /= std::max<int64_t>(stored.num_experts, 1);
  linear.source.read = [&tensors, stored, format, shape = linear.shape](ThreadPool& pool) {
    return read(tensors, stored, format, shape, pool);
  };
  return linear;
}

}  // namespace

Result<DescribedLinear> describe_fp8(const Tensors& tensors, const std::string& module,
                                     const Fp8Format& format) {
  const std::string prefix = module + ".";
  const Fp8Tensors stored{
      prefix + "weight",
      stored_name(tensors, prefix, {format.scale, "weight_scale", "weight_scale_inv"})};
  MORACLE_TRY(DescribedLinear linear, describe_stored(tensors, stored, format));
  std::vector<std::string> names = linear.source.tensors;
  const std::string input_scale = stored_name(tensors, prefix, {"input_scale", "activation_scale"});
  const std::optional<QuantKey>& activation = linear.scheme.activation;
  if (activation && !activation->dynamic) {
    names.push_back(input_scale);
    MORACLE_TRY(linear.input_scale, read_input_scale(tensors, input_scale));
  } else if (!activation && tensors.find(input_scale) != nullptr) {
    names.push_back(input_scale);  // for activations that stay floats
  }
  MORACLE_TRY(linear.shape.bias, add_bias(tensors, module, linear.shape.n, names));
  auto read_matrix = std::move(linear.source.read);
  linear.source = source_of(tensors, linear.shape.n, std::move(names));
  linear.source.read = [&tensors, module, biased = linear.shape.bias,
                        read_matrix =
                            std::move(read_matrix)](ThreadPool& pool) -> Result<CanonicalMatrix> {
    MORACLE_TRY(CanonicalMatrix matrix, read_matrix(pool));
    if (biased) {
      MORACLE_TRY(matrix.bias, read_scales(tensors, module + ".bias"));
    }
    return matrix;
  };
  return linear;
}

Result<DescribedLinear> describe_fp8_expert(const Tensors& tensors, const std::string& module,
                                            const Fp8Format& format, int64_t e,
                                            int64_t num_experts) {
  if (format.scheme.activation && !format.scheme.activation->dynamic) {
    return Error{ErrorKind::kUnsupported, tensors.file_of(module), "module '" + module + "'",
                 "dynamic activations, because all experts are in one tensor", "they are static"};
  }
  const Fp8Tensors stored{module, stored_name(tensors, module, {"_scale_inv", "_scale"}), e,
                          num_experts};
  return describe_stored(tensors, stored, format);
}

}  // namespace moracle
