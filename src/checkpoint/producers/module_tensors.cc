#include "checkpoint/producers/module_tensors.h"

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
  if (!is_float(view.dtype))
    return tensors.wrong(name, "f32, f16 or bf16", "it is " + to_string(view));
  return view;
}

Result<std::vector<float>> read_scales(const Tensors& tensors, const std::string& name) {
  MORACLE_TRY(const TensorView view, get_floats(tensors, name));
  return read_scales(tensors, name, 0, view.num_elements());
}

Result<std::vector<float>> read_scales(const Tensors& tensors, const std::string& name,
                                       int64_t first, int64_t count) {
  MORACLE_CHECK(get_floats(tensors, name));
  MORACLE_TRY(const TensorData data, tensors.read(name, first, count));
  std::vector<float> scales(count);
  visit_codec(data.view.dtype, [&]<class Codec>() {
    for (int64_t i = 0; i < count; ++i)
      scales[i] = static_cast<float>(Codec::decode(data.view.data, i));
  });
  return scales;
}

CanonicalMatrix matrix_of(const MatrixShape& shape) {
  CanonicalMatrix matrix;
  matrix.n = shape.n;
  matrix.k = shape.k;
  matrix.key = shape.key;
  return matrix;
}

void set_codes(CanonicalMatrix& matrix, TensorData&& data) {
  matrix.codes = {data.view.data, data.view.num_bytes()};
  matrix.memory = std::move(data.memory);
}

DescribedMatrix::Source source_of(const Tensors& tensors, int64_t n,
                                  std::vector<std::string> names) {
  DescribedMatrix::Source source;
  source.n = n;
  source.file = tensors.file_of(names.front());
  for (const std::string& name : names)
    source.source_bytes += static_cast<int64_t>(tensors.find(name)->num_bytes());
  source.tensors = std::move(names);
  return source;
}

Result<float> read_input_scale(const Tensors& tensors, const std::string& name) {
  MORACLE_TRY(const std::vector<float> scale, read_scales(tensors, name));
  if (scale.size() == 1 && scale[0] > 0) return scale[0];
  return tensors.wrong(
      name, "one scale above 0",
      scale.size() == 1 ? str("it is ", scale[0]) : str("it has ", scale.size(), " elements"));
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

Result<bool> add_expert_bias(const Tensors& tensors, const std::string& module, int64_t num_experts,
                             int64_t n, std::vector<std::string>& names) {
  const std::string bias = module + "_bias";
  if (tensors.find(bias) == nullptr) return false;
  MORACLE_TRY(const TensorView view, get_floats(tensors, bias));
  if (view.shape != std::vector<int64_t>{num_experts, n}) {
    return tensors.wrong(bias, str("shape [", num_experts, ", ", n, "]"),
                         "it is " + to_string(view));
  }
  names.push_back(bias);
  return true;
}

Result<std::vector<float>> read_expert_bias(const Tensors& tensors, const std::string& module,
                                            int64_t e, int64_t n) {
  return read_scales(tensors, module + "_bias", e * n, n);
}

}  // namespace moracle
