#include "checkpoint/producers/producer.h"

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

DescribedMatrix::Part part_of(const Tensors& tensors, int64_t n, std::vector<std::string> names) {
  DescribedMatrix::Part part;
  part.n = n;
  part.file = tensors.file_of(names.front());
  for (const std::string& name : names)
    part.source_bytes += static_cast<int64_t>(tensors.find(name)->num_bytes());
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
               "one tensor per expert from this producer",
               "the file stores all experts in one tensor"};
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

namespace {

// Float matrix number e of a tensor that stores several row-major matrices.
struct FloatRows {
  const Tensors& tensors;
  std::string name, bias;
  int64_t e = 0;
  MatrixShape shape;

  Result<CanonicalMatrix> read(ThreadPool& pool, int64_t first, int64_t count) const {
    CanonicalMatrix matrix = matrix_of(shape);
    matrix.n = count;
    const int64_t row = e * shape.n + first;
    MORACLE_TRY(TensorData data, tensors.read(name, row * shape.k, count * shape.k, pool));
    set_codes(matrix, std::move(data));
    if (shape.bias) {
      MORACLE_TRY(matrix.bias, read_scales(tensors, bias, row, count));
    }
    return matrix;
  }
};

void read_rows_of(const FloatRows& rows, DescribedMatrix::Part& part) {
  part.read = [rows](ThreadPool& pool) { return rows.read(pool, 0, rows.shape.n); };
  part.read_rows = [rows](ThreadPool& pool, int64_t first, int64_t count) {
    return rows.read(pool, first, count);
  };
}

}  // namespace

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
  read_rows_of({tensors, name, module + ".bias", 0, linear.shape}, linear.part);
  return linear;
}

namespace {

// Minimum rows per thread: waking a thread takes as long as processing this many rows.
constexpr int64_t kLeastRows = 64;

// Transposes a row-major matrix [k, n] to [n, k].
CanonicalMatrix transposed_matrix(const std::byte* data, const MatrixShape& shape,
                                  ThreadPool& pool) {
  CanonicalMatrix matrix = matrix_of(shape);
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
  const int64_t n = linear.shape.n;
  linear.part.file = tensors.file_of(module);
  linear.part.tensors = {module};
  MORACLE_TRY(linear.shape.bias,
              add_expert_bias(tensors, module, num_experts, n, linear.part.tensors));
  linear.part.n = n;
  linear.part.source_bytes = static_cast<int64_t>(all.num_bytes()) / num_experts;
  if (!transposed) {
    read_rows_of({tensors, module, module + "_bias", e, linear.shape}, linear.part);
    return linear;
  }
  linear.part.read = [&tensors, module, e,
                      shape = linear.shape](ThreadPool& pool) -> Result<CanonicalMatrix> {
    const int64_t size = shape.n * shape.k;
    MORACLE_TRY(const TensorData data, tensors.read(module, e * size, size, pool));
    CanonicalMatrix matrix = transposed_matrix(data.view.data, shape, pool);
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
