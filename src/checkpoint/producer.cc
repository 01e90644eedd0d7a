#include "checkpoint/producer.h"

#include <cmath>
#include <cstring>

#include "base/text.h"
#include "base/thread_pool.h"
#include "base/transpose.h"
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
  MORACLE_TRY(const TensorView view, get_floats(tensors, name));
  std::vector<float> scales(count);
  visit_codec(view.dtype, [&]<class Codec>() {
    for (int64_t i = 0; i < count; ++i)
      scales[i] = static_cast<float>(Codec::decode(view.data, first + i));
  });
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(scales[i])) {
      return tensors.wrong(name, "finite numbers", str("element ", first + i, " is ", scales[i]));
    }
  }
  return scales;
}

DescribedMatrix::Part part_of(const Tensors& tensors, int64_t n, std::vector<std::string> names) {
  DescribedMatrix::Part part;
  part.n = n;
  part.file = tensors.file_of(names.front());
  for (const std::string& name : names) {
    const TensorView* view = tensors.find(name);
    part.bytes.emplace_back(view->data, view->num_bytes());
  }
  part.tensors = std::move(names);
  return part;
}

Result<float> read_input_scale(const Tensors& tensors, const std::string& name) {
  MORACLE_TRY(const std::vector<float> scale, read_scales(tensors, name));
  if (scale.size() == 1 && scale[0] > 0) return scale[0];
  return tensors.wrong(
      name, "one scale above 0",
      scale.size() == 1 ? str("it is ", scale[0]) : str("it has ", scale.size(), " elements"));
}

Result<DescribedLinear> Reader::describe_expert(const Tensors& tensors, const std::string& module,
                                                int64_t, int64_t) const {
  return Error{ErrorKind::kUnsupported, tensors.file_of(module), "module '" + module + "'",
               "one tensor per expert from this producer", "the file holds all experts in one"};
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
  linear.part.read = [&tensors, view, shape = linear.shape,
                      module](ThreadPool&) -> Result<CanonicalMatrix> {
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

namespace {

// A thread's share of rows, or waking it takes as long.
constexpr int64_t kLeastRows = 64;

// Row-major [k, n] to [n, k].
CanonicalMatrix transposed_matrix(const std::byte* data, const MatrixShape& shape,
                                  ThreadPool& pool) {
  CanonicalMatrix matrix;
  matrix.n = shape.n;
  matrix.k = shape.k;
  matrix.key = shape.key;
  const int64_t size = bits(shape.key.dtype) / 8;
  matrix.storage.resize(shape.n * shape.k * size);
  const auto same = [](auto element) { return element; };
  pool.split(
      shape.n,
      [&](int64_t begin, int64_t end) {
        std::byte* const to = matrix.storage.data();
        if (size == 2)
          transpose<uint16_t>(data, shape.k, shape.n, begin, end, same, to);
        else
          transpose<uint32_t>(data, shape.k, shape.n, begin, end, same, to);
      },
      kLeastRows);
  matrix.codes = matrix.storage;
  return matrix;
}

}  // namespace

Result<DescribedLinear> describe_plain_expert(const Tensors& tensors, const std::string& module,
                                              int64_t e, int64_t num_experts, bool transposed) {
  MORACLE_TRY(const TensorView all, get_floats(tensors, module));
  if (all.shape.size() != 3 || all.shape[0] != num_experts) {
    return tensors.wrong(module, str("[", num_experts, ", rows, columns]"),
                         "it is " + to_string(all));
  }
  DescribedLinear linear;
  linear.scheme.weight = QuantKey{all.dtype};
  linear.shape = {.n = all.shape[transposed ? 2 : 1],
                  .k = all.shape[transposed ? 1 : 2],
                  .key = linear.scheme.weight};
  const size_t bytes = all.num_bytes() / num_experts;
  const std::byte* data = all.data + e * bytes;
  const int64_t n = linear.shape.n;
  linear.part.file = tensors.file_of(module);
  linear.part.tensors = {module};
  MORACLE_TRY(linear.shape.bias,
              add_expert_bias(tensors, module, num_experts, n, linear.part.tensors));
  linear.part.n = n;
  linear.part.bytes = {{data, bytes}};
  linear.part.read = [&tensors, data, bytes, module, e, shape = linear.shape,
                      transposed](ThreadPool& pool) -> Result<CanonicalMatrix> {
    CanonicalMatrix matrix;
    if (transposed) {
      matrix = transposed_matrix(data, shape, pool);
    } else {
      matrix.n = shape.n;
      matrix.k = shape.k;
      matrix.key = shape.key;
      matrix.codes = {data, bytes};
    }
    if (shape.bias) {
      MORACLE_TRY(matrix.bias, read_expert_bias(tensors, module, e, shape.n));
    }
    return matrix;
  };
  return linear;
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
