// Weights in one tensor: `module`.weight [N, K] as f32, f16, bf16 or blocks of GGUF, or one tensor
// for all experts of a layer. NVFP4 blocks may have a factor in `module`.weight_scale_2.
#include <algorithm>

#include "base/text.h"
#include "base/threads/thread_pool.h"
#include "base/transpose.h"
#include "base/try.h"
#include "checkpoint/producers/module_tensors.h"
#include "checkpoint/producers/producer.h"
#include "quant/blocks/gguf_blocks.h"

namespace moracle {
namespace {

// A plain tensor; blocks of GGUF count as plain.
Result<TensorView> get_plain(const Tensors& tensors, const std::string& name) {
  MORACLE_TRY(const TensorView view, tensors.get(name));
  return is_gguf_block(view.dtype) ? view : get_floats(tensors, name);
}

// How the rows of a matrix are read.
QuantKey plain_key(DType type) {
  return is_gguf_block(type) ? integer_form(type) : QuantKey{type};
}

// Matrix number e of a tensor that stores several row-major matrices.
struct PlainRows {
  const Tensors& tensors;
  std::string name, bias;
  int64_t e = 0;
  MatrixShape shape;  // its key names the tensor's own type, or the integer form of blocks
  float factor = 1;   // of all scales

  Result<CanonicalMatrix> read(ThreadPool& pool, int64_t first, int64_t count) const {
    const int64_t row = e * shape.n + first;
    MORACLE_TRY(TensorData data, tensors.read(name, row * shape.k, count * shape.k, pool));
    CanonicalMatrix matrix = matrix_from(std::move(data), count, pool);
    if (shape.bias) {
      MORACLE_TRY(matrix.bias, read_scales(tensors, bias, row, count));
    }
    return matrix;
  }

 private:
  CanonicalMatrix matrix_from(TensorData&& data, int64_t count, ThreadPool& pool) const {
    const DType type = data.view.dtype;
    if (shape.key.dtype != type) {
      CanonicalMatrix matrix = expand_blocks(type, data.view.data, count, shape.k, pool);
      if (factor != 1)  // rounds each scale once, as for ModelOpt's files
        std::for_each(matrix.scales.begin(), matrix.scales.end(), [&](float& s) { s *= factor; });
      return matrix;
    }
    CanonicalMatrix matrix = matrix_of(shape);
    matrix.n = count;
    set_codes(matrix, std::move(data));
    return matrix;
  }
};

void read_rows_of(const PlainRows& rows, DescribedMatrix::Source& source) {
  source.read = [rows](ThreadPool& pool) { return rows.read(pool, 0, rows.shape.n); };
  source.read_rows = [rows](ThreadPool& pool, int64_t first, int64_t count) {
    return rows.read(pool, first, count);
  };
}

// The factor of a module's scales, and the scale of its activations, which is not used. Adds their
// names.
Result<float> read_factor(const Tensors& tensors, const std::string& module, DType type,
                          std::vector<std::string>& names) {
  const std::string factor = module + ".weight_scale_2", input = module + ".input_scale";
  if (type != DType::kNvfp4Block) return 1;
  if (tensors.find(input) != nullptr) names.push_back(input);
  if (tensors.find(factor) == nullptr) return 1;
  names.push_back(factor);
  return read_input_scale(tensors, factor);
}

}  // namespace

Result<DescribedLinear> describe_plain(const Tensors& tensors, const std::string& module) {
  const std::string name = module + ".weight";
  MORACLE_TRY(const TensorView view, tensors.get(name));
  if (!get_plain(tensors, name) || view.shape.size() != 2) {
    return tensors.wrong(name, "bf16, f16 or f32 of two dimensions", "it is " + to_string(view));
  }
  DescribedLinear linear;
  linear.scheme.weight = plain_key(view.dtype);
  linear.shape = {.n = view.shape[0], .k = view.shape[1], .key = linear.scheme.weight};
  std::vector<std::string> names = {name};
  MORACLE_TRY(linear.shape.bias, add_bias(tensors, module, linear.shape.n, names));
  MORACLE_TRY(const float factor, read_factor(tensors, module, view.dtype, names));
  linear.source = source_of(tensors, linear.shape.n, std::move(names));
  read_rows_of({tensors, name, module + ".bias", 0, linear.shape, factor}, linear.source);
  return linear;
}

Result<DescribedLinear> describe_plain_table(const Tensors& tensors, const std::string& module) {
  MORACLE_TRY(DescribedLinear linear, describe_plain(tensors, module));
  linear.scheme.weight = linear.shape.key = QuantKey{tensors.find(module + ".weight")->dtype};
  read_rows_of({tensors, module + ".weight", module + ".bias", 0, linear.shape}, linear.source);
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
  MORACLE_TRY(const TensorView all, get_plain(tensors, module));
  if (transposed && is_gguf_block(all.dtype)) {
    return tensors.wrong(module, "rows of inputs, because blocks cannot be transposed",
                         "it is " + to_string(all));
  }
  if (all.shape.size() != 3 || all.shape[0] != num_experts) {
    return tensors.wrong(module, str("[", num_experts, ", rows, columns]"),
                         "it is " + to_string(all));
  }
  DescribedLinear linear;
  linear.scheme.weight = plain_key(all.dtype);
  linear.shape = {.n = all.shape[transposed ? 2 : 1],
                  .k = all.shape[transposed ? 1 : 2],
                  .key = linear.scheme.weight};
  const int64_t n = linear.shape.n;
  linear.source.file = tensors.file_of(module);
  linear.source.tensors = {module};
  MORACLE_TRY(linear.shape.bias,
              add_expert_bias(tensors, module, num_experts, n, linear.source.tensors));
  linear.source.n = n;
  linear.source.source_bytes = static_cast<int64_t>(all.num_bytes()) / num_experts;
  if (!transposed) {
    read_rows_of({tensors, module, module + "_bias", e, linear.shape}, linear.source);
    return linear;
  }
  linear.source.read = [&tensors, module, e,
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

}  // namespace moracle
