// compressed-tensors, format "int-quantized", b = 4 or 8 bits, one byte per code:
//   weight             i8 [N, K]     two's complement codes
//   weight_scale       [N, K/g]      strategy group
//                      [N, 1] or [N] strategy channel
//                      [1] or []     strategy tensor: the same number for every channel
//   weight_zero_point  i8 [N, K/g]   two's complement; if symmetric is false
//   weight_g_idx       i32 [K]       the group of each column; if actorder is group
//   input_scale        [1] or []     if activations are static
// value = (code - zero) · scale. llm-compressor uses it if activations are quantized too.
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/producers/compressed_tensors/compressed_tensors_integers.h"
#include "checkpoint/producers/module_tensors.h"
#include "checkpoint/producers/packed.h"

namespace moracle {
namespace ct_int {
namespace {

Result<CtScheme> read_scheme(const Config& group) {
  MORACLE_TRY(CtScheme scheme, read_int_scheme(group, {"channel", "group", "tensor"}));
  if (scheme.per_tensor && !scheme.scheme.weight.symmetric) {
    return group.unsupported({"weights"}, "symmetric true with strategy tensor",
                             "symmetric is false");
  }
  return scheme;
}

// Packs two codes per byte, the first in the low bits. Errors: a code outside 4 bits.
Status pack_nibbles(const Tensors& tensors, const std::string& name, const TensorView& view,
                    CanonicalMatrix& matrix) {
  const auto* codes = view.as<int8_t>();
  matrix.storage.resize(matrix.n * matrix.row_bytes());
  for (int64_t r = 0; r < matrix.n; ++r) {
    std::byte* const row = matrix.storage.data() + r * matrix.row_bytes();
    for (int64_t c = 0; c < matrix.k; ++c) {
      const int code = codes[r * matrix.k + c];
      if (code < -8 || code > 7) {
        return tensors.wrong(name, "codes from -8 to 7, because num_bits is 4",
                             str("element [", r, ", ", c, "] is ", code));
      }
      row[c / 2] |= static_cast<std::byte>((code & 15) << (c % 2 * 4));
    }
  }
  matrix.codes = matrix.storage;
  return {};
}

Status read_zeros(const Tensors& tensors, const std::string& name, CanonicalMatrix& matrix) {
  MORACLE_TRY(const TensorData data, tensors.read(name));
  const auto* zeros = data.view.as<int8_t>();
  matrix.zero_points.assign(zeros, zeros + data.view.num_elements());
  const int half = 1 << (bits(matrix.key.dtype) - 1);
  for (size_t i = 0; i < matrix.zero_points.size(); ++i) {
    const int zero = matrix.zero_points[i];
    if (zero >= -half && zero < half) continue;
    return tensors.wrong(name, str("zero points from ", -half, " to ", half - 1),
                         str("element ", i, " is ", zero));
  }
  return {};
}

Result<CanonicalMatrix> read(const Tensors& tensors, const std::string& module,
                             const MatrixShape& shape, ThreadPool& pool) {
  const std::string name = module + ".weight";
  CanonicalMatrix matrix = matrix_of(shape);
  MORACLE_TRY(TensorData codes, tensors.read(name, pool));
  if (shape.key.dtype == DType::kI4) {
    MORACLE_CHECK(pack_nibbles(tensors, name, codes.view, matrix));
  } else {
    set_codes(matrix, std::move(codes));
  }
  MORACLE_TRY(matrix.scales, read_scales(tensors, module + ".weight_scale"));
  if (matrix.scales.size() == 1) matrix.scales.resize(shape.n, matrix.scales[0]);
  if (!shape.key.symmetric)
    MORACLE_CHECK(read_zeros(tensors, module + ".weight_zero_point", matrix));
  if (shape.group_index) {
    MORACLE_TRY(matrix.group_index,
                read_group_index(tensors, module + ".weight_g_idx", matrix.scale_cols()));
  }
  if (shape.bias) {
    MORACLE_TRY(matrix.bias, read_scales(tensors, module + ".bias"));
  }
  return matrix;
}

Result<DescribedLinear> describe(const Tensors& tensors, const std::string& module,
                                 const CtScheme& scheme) {
  std::vector<std::string> names = {module + ".weight"};
  MORACLE_TRY(const TensorView codes, tensors.get(names[0]));
  if (codes.dtype != DType::kI8 || codes.shape.size() != 2) {
    return tensors.wrong(names[0], "i8 of two dimensions", "it is " + to_string(codes));
  }
  DescribedLinear linear;
  linear.scheme = scheme.scheme;
  linear.shape = {.n = codes.shape[0], .k = codes.shape[1], .key = linear.scheme.weight};
  const int64_t n = linear.shape.n;
  MORACLE_CHECK(describe_int_groups(tensors, module, scheme, n, DType::kI8, linear, names));
  MORACLE_TRY(linear.shape.bias, add_bias(tensors, module, n, names));
  linear.source = source_of(tensors, n, std::move(names));
  linear.source.read = [&tensors, module, shape = linear.shape](ThreadPool& pool) {
    return read(tensors, module, shape, pool);
  };
  return linear;
}

}  // namespace
}  // namespace ct_int

const CtFormat kCtInt = {"int-quantized", "{weight,weight_scale}", ct_int::read_scheme,
                         ct_int::describe};

}  // namespace moracle
