#include "checkpoint/producer.h"

#include <cmath>

#include "base/text.h"
#include "base/try.h"
#include "quant/codec.h"

namespace moracle {

namespace {
bool is_float(DType type) {
  return type == DType::kF32 || type == DType::kF16 || type == DType::kBF16;
}
}  // namespace

Result<TensorView> get_floats(const Tensors& tensors, const std::string& name) {
  MORACLE_TRY(TensorView view, tensors.get(name));
  if (!is_float(view.dtype)) return tensors.wrong(name, "f32, f16 or bf16", "it is " + to_string(view));
  return view;
}

Result<std::vector<float>> read_scales(const Tensors& tensors, const std::string& name) {
  MORACLE_TRY(const TensorView view, get_floats(tensors, name));
  std::vector<float> scales(view.num_elements());
  visit_codec(view.dtype, [&]<class Codec>() {
    for (size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<float>(Codec::decode(view.data, i));
  });
  for (size_t i = 0; i < scales.size(); ++i) {
    if (!std::isfinite(scales[i])) {
      return tensors.wrong(name, "finite numbers", str("element ", i, " is ", scales[i]));
    }
  }
  return scales;
}

DescribedMatrix::Part part_of(const Tensors& tensors, int64_t n, std::vector<std::string> names) {
  DescribedMatrix::Part part;
  part.n = n;
  for (const std::string& name : names) {
    const TensorView* view = tensors.find(name);
    part.bytes.emplace_back(view->data, view->num_bytes());
  }
  part.tensors = std::move(names);
  return part;
}

Result<bool> add_bias(const Tensors& tensors, const std::string& module, int64_t n,
                      std::vector<std::string>& names) {
  const std::string bias = module + ".bias";
  if (tensors.find(bias) == nullptr) return false;
  MORACLE_TRY(const TensorView view, get_floats(tensors, bias));
  if (view.shape != std::vector<int64_t>{n}) {
    return tensors.wrong(bias, str("shape [", n, "]"), "it is " + to_string(view));
  }
  names.push_back(bias);
  return true;
}

Result<DescribedLinear> describe_plain(const Tensors& tensors, const std::string& module) {
  const std::string name = module + ".weight";
  MORACLE_TRY(const TensorView view, tensors.get(name));
  if (!is_float(view.dtype) || view.shape.size() != 2) {
    return tensors.wrong(name, "bf16, f16 or f32 of two dimensions", "it is " + to_string(view));
  }
  DescribedLinear linear;
  linear.scheme.weight = QuantKey{view.dtype};
  linear.shape = {.n = view.shape[0], .k = view.shape[1], .key = linear.scheme.weight};
  std::vector<std::string> names = {name};
  MORACLE_TRY(linear.shape.bias, add_bias(tensors, module, linear.shape.n, names));
  linear.part = part_of(tensors, linear.shape.n, std::move(names));
  linear.part.read = [&tensors, view, shape = linear.shape, module]() -> Result<CanonicalMatrix> {
    CanonicalMatrix matrix;
    matrix.n = shape.n;
    matrix.k = shape.k;
    matrix.key = shape.key;
    matrix.codes = {view.data, view.num_bytes()};
    if (shape.bias) {
      MORACLE_TRY(matrix.bias, read_scales(tensors, module + ".bias"));
    }
    return matrix;
  };
  return linear;
}

}  // namespace moracle
