// compressed-tensors, format "pack-quantized", b = 4 or 8 bits:
//   weight_packed      i32 [N, ceil(K·b/32)]   packed along K; the last word is padded
//   weight_scale       [N, K/g], or [N, 1] if strategy is channel
//   weight_shape       i64 [2]                 N, K
//   weight_zero_point  i32 [ceil(N·b/32), K/g] packed along N; if symmetric is false
//   weight_g_idx       i32 [K]                 the group of each column; if actorder is group
// value = (code - zero) · scale; code and zero point are unsigned.
#include <cstring>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/producers/compressed_tensors/compressed_tensors_integers.h"
#include "checkpoint/producers/module_tensors.h"
#include "checkpoint/producers/packed.h"

namespace moracle {
namespace ct_pack {
namespace {

Result<CtScheme> read_scheme(const Config& group) {
  return read_int_scheme(group, {"channel", "group"});
}

// Reads N and K. Errors: they do not fit the packed words.
Status read_shape(const Tensors& tensors, const std::string& module, int64_t per_word,
                  MatrixShape& shape) {
  const std::string packed = module + ".weight_packed", name = module + ".weight_shape";
  MORACLE_TRY(const TensorView words, tensors.get(packed));
  if (words.dtype != DType::kI32 || words.shape.size() != 2) {
    return tensors.wrong(packed, str("i32 [N, K/", per_word, "]"), "it is " + to_string(words));
  }
  MORACLE_TRY(const TensorView view, tensors.get(name));
  if ((view.dtype != DType::kI64 && view.dtype != DType::kI32) ||
      view.shape != std::vector<int64_t>{2}) {
    return tensors.wrong(name, "i64 [2]", "it is " + to_string(view));
  }
  MORACLE_TRY(const TensorData stored, tensors.read(name));
  int64_t sizes[2];
  for (int i = 0; i < 2; ++i) {
    if (view.dtype == DType::kI64) {
      std::memcpy(&sizes[i], stored.view.data + 8 * i, sizeof sizes[i]);
    } else {
      sizes[i] = static_cast<int32_t>(word_at(stored.view, i));
    }
  }
  const int64_t width = words.shape[1];
  const int64_t least = width == 0 ? 0 : (width - 1) * per_word + 1, most = width * per_word;
  if (sizes[0] != words.shape[0] || sizes[1] < least || sizes[1] > most) {
    return tensors.wrong(name,
                         str("[", words.shape[0], ", ", least, " to ", most,
                             "], because weight_packed is ", to_string(words)),
                         str("it is [", sizes[0], ", ", sizes[1], "]"));
  }
  shape.n = sizes[0];
  shape.k = sizes[1];
  return {};
}

Result<CanonicalMatrix> read(const Tensors& tensors, const std::string& module,
                             const MatrixShape& shape, ThreadPool& pool) {
  constexpr PackOrder kOrder = PackOrder::kCompressedTensors;
  CanonicalMatrix matrix = matrix_of(shape);
  MORACLE_TRY(const TensorData words, tensors.read(module + ".weight_packed", pool));
  unpack_codes(kOrder, words.view, matrix, pool);
  MORACLE_TRY(matrix.scales, read_scales(tensors, module + ".weight_scale"));
  if (!shape.key.symmetric) {
    MORACLE_TRY(const TensorData zeros, tensors.read(module + ".weight_zero_point"));
    matrix.zero_points = unpack_zero_points(kOrder, zeros.view, matrix, 0);
  }
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
  const int64_t per_word = 32 / bits(scheme.scheme.weight.dtype);
  DescribedLinear linear;
  linear.scheme = scheme.scheme;
  MatrixShape& shape = linear.shape;
  shape.key = scheme.scheme.weight;
  MORACLE_CHECK(read_shape(tensors, module, per_word, shape));
  std::vector<std::string> names = {module + ".weight_packed", module + ".weight_shape"};
  const int64_t zero_rows = (shape.n + per_word - 1) / per_word;
  MORACLE_CHECK(
      describe_int_groups(tensors, module, scheme, zero_rows, DType::kI32, linear, names));
  MORACLE_TRY(shape.bias, add_bias(tensors, module, shape.n, names));
  linear.source = source_of(tensors, shape.n, std::move(names));
  linear.source.read = [&tensors, module, shape](ThreadPool& pool) {
    return read(tensors, module, shape, pool);
  };
  return linear;
}

}  // namespace
}  // namespace ct_pack

const CtFormat kCtPack = {"pack-quantized", "{weight_packed,weight_scale,weight_shape}",
                          ct_pack::read_scheme, ct_pack::describe};

}  // namespace moracle
