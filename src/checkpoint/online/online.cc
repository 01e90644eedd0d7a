// Quantization at load time: wraps the sources of a described matrix; reads nothing.
#include "checkpoint/online/online.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/experts/stack.h"
#include "quant/canonical.h"
#include "quant/cut.h"
#include "quant/quantize_weight.h"

namespace moracle {

Error already_quantized(std::string file, std::string place, const std::string& scheme) {
  return {ErrorKind::kUnsupported, std::move(file), std::move(place),
          "unquantized weights for an online scheme", "the file has " + scheme};
}

namespace {

Status check_online(const Scheme& scheme) {
  const auto known = online_schemes();
  const bool found = std::any_of(known.begin(), known.end(), [&](const OnlineScheme& online) {
    return online.scheme == scheme;
  });
  if (found) return {};
  std::vector<std::string> names;
  for (const OnlineScheme& online : known) names.push_back(name(online.scheme));
  return Error{ErrorKind::kUnsupported, "", "online scheme", "one of " + join(names),
               "it is " + name(scheme)};
}

// Rows of a block in stacked matrices of `rows` rows each, as align_blocks has them.
int64_t block_rows(const QuantKey& key, int64_t rows) {
  return key.group.rows > 1 ? std::gcd(key.group.rows, rows) : key.group.rows;
}

// Quantizes `matrices` matrices of equal height, stacked in `floats`, each separately. If a block
// would span two of them, blocks get fewer rows.
Result<CanonicalMatrix> quantize_each(const CanonicalMatrix& floats, int64_t matrices,
                                      const QuantKey& key, ThreadPool& pool) {
  if (matrices == 1) return quantize_weight(floats, key, pool);
  const int64_t rows = floats.n / matrices;
  CanonicalMatrix whole;
  for (int64_t first = 0; first < floats.n; first += rows) {
    MORACLE_TRY(CanonicalMatrix one,
                quantize_weight(float_rows(floats, first, rows), key, pool, first));
    if (const int64_t block = block_rows(key, rows); block != key.group.rows)
      one = divide_blocks(std::move(one), block);
    if (first == 0) {
      whole.n = floats.n;
      whole.k = floats.k;
      whole.key = one.key;
      whole.storage.resize(whole.n * whole.row_bytes());
      whole.codes = whole.storage;
    }
    stack_rows(whole, first, one);
  }
  return whole;
}

// Wraps the source's read function to quantize its result. The source's weights are in its first
// tensor.
void quantize_source(DescribedMatrix::Source& source, int64_t matrices, const QuantKey& key) {
  std::string tensor = source.tensors.empty() ? "weights" : "tensor '" + source.tensors[0] + "'";
  source.read_rows = {};
  source.read = [read = std::move(source.read), matrices, key, file = source.file,
                 tensor = std::move(tensor)](ThreadPool& pool) -> Result<CanonicalMatrix> {
    MORACLE_TRY(const CanonicalMatrix floats, read(pool));
    Result<CanonicalMatrix> matrix = quantize_each(floats, matrices, key, pool);
    if (matrix) return matrix;
    Error error = matrix.error();
    error.file = file;
    error.place = tensor;
    return error;
  };
}

}  // namespace

// The rows of each expert are `matrices` matrices of equal height: gate and up, in two sources or
// in one.
class OnlineQuantizer {
 public:
  static Result<DescribedMatrix> apply(DescribedMatrix&& floats, int64_t matrices,
                                       const Scheme& scheme) {
    MORACLE_CHECK(check_online(scheme));
    DescribedMatrix matrix = std::move(floats);
    if (matrix.scheme_.weight.quantized()) return refuse(matrix);
    matrix.scheme_ = scheme;
    MatrixShape shape = matrix.shape_;
    shape.key = scheme.weight;
    if (shape.key.group == GroupShape{}) shape.key.group = kPerRow;  // as in canonical form
    matrix.shape_ = shape;
    for (std::vector<DescribedMatrix::Source>& expert : matrix.sources_) {
      const bool in_one = matrices > 1 && expert.size() == 1;
      for (DescribedMatrix::Source& source : expert)
        quantize_source(source, in_one ? matrices : 1, scheme.weight);
      matrix.shape_ = shape;
      if (in_one) matrix.shape_.key.group.rows = block_rows(shape.key, shape.n / matrices);
      align_blocks(matrix.shape_, expert);
    }
    return matrix;
  }

 private:
  static Error refuse(const DescribedMatrix& matrix) {
    const bool named = !matrix.sources_.empty() && !matrix.sources_[0].empty() &&
                       !matrix.sources_[0][0].tensors.empty();
    const auto* first = named ? &matrix.sources_[0][0] : nullptr;
    return already_quantized(first ? first->file : "",
                             first ? "tensor '" + first->tensors[0] + "'" : "weights",
                             name(matrix.scheme_));
  }
};

Result<DescribedMatrix> quantize(DescribedMatrix&& floats, const Scheme& scheme) {
  return OnlineQuantizer::apply(std::move(floats), 1, scheme);
}

Result<DescribedWeights> quantize(DescribedWeights&& floats, const Scheme& scheme) {
  DescribedWeights weights = std::move(floats);
  // One linear layer that holds gate and up has one set of scales in quantized files.
  const bool one_layer = weights.spec.num_experts == 1 && weights.w13.modules().size() == 1;
  const int64_t matrices = is_gated(weights.spec.activation.function) && !one_layer ? 2 : 1;
  MORACLE_TRY(weights.w13, OnlineQuantizer::apply(std::move(weights.w13), matrices, scheme));
  MORACLE_TRY(weights.w2, OnlineQuantizer::apply(std::move(weights.w2), 1, scheme));
  weights.spec.scheme = scheme;
  weights.spec.set_matrices({weights.w13.shape(), weights.w2.shape()});
  return weights;
}

}  // namespace moracle
