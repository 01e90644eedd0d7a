// Packed codes' companions in a file: zero points, scales and group indices, read and checked.
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/producers/module_tensors.h"
#include "checkpoint/producers/packed.h"
#include "checkpoint/producers/producer.h"

namespace moracle {

Status read_zero_points(const Tensors& tensors, const std::string& name, PackOrder order, int less,
                        const char* says, CanonicalMatrix& matrix) {
  MORACLE_TRY(const TensorData words, tensors.read(name));
  std::vector<int8_t> zeros = unpack_zero_points(order, words.view, matrix, less);
  if (!matrix.key.symmetric) {
    matrix.zero_points = std::move(zeros);
    return {};
  }
  const int64_t groups = matrix.scale_cols();
  const int middle = 1 << (bits(matrix.key.dtype) - 1);
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t c = 0; c < matrix.n; ++c) {
      const int zero = zeros[c * groups + g];
      if (zero == 0) continue;
      return tensors.wrong(
          name, str("the zero point ", middle, " everywhere, because the config says ", says),
          str("group ", g, ", column ", c, " has ", zero + middle));
    }
  }
  return {};
}

Result<std::vector<float>> read_transposed_scales(const Tensors& tensors, const std::string& name,
                                                  int64_t n) {
  MORACLE_TRY(const std::vector<float> stored, read_scales(tensors, name));
  std::vector<float> scales(stored.size());
  const int64_t groups = n == 0 ? 0 : static_cast<int64_t>(stored.size()) / n;
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t c = 0; c < n; ++c) scales[c * groups + g] = stored[g * n + c];
  }
  return scales;
}

Status check_transposed_scales(const Tensors& tensors, const std::string& name, int64_t groups,
                               int64_t n, int64_t size) {
  MORACLE_TRY(const TensorView scales, get_floats(tensors, name));
  if (scales.shape == std::vector<int64_t>{groups, n}) return {};
  return tensors.wrong(name, str("shape [", groups, ", ", n, "] (groups of ", size, ")"),
                       "it is " + to_string(scales));
}

Result<std::vector<int32_t>> read_group_index(const Tensors& tensors, const std::string& name,
                                              int64_t groups) {
  MORACLE_TRY(const TensorData data, tensors.read(name));
  std::vector<int32_t> index(data.view.num_elements());
  for (size_t i = 0; i < index.size(); ++i) {
    index[i] = static_cast<int32_t>(word_at(data.view, static_cast<int64_t>(i)));
    if (index[i] >= 0 && index[i] < groups) continue;
    return tensors.wrong(name, str("groups from 0 to ", groups - 1),
                         str("element ", i, " is ", index[i]));
  }
  return index;
}

}  // namespace moracle
