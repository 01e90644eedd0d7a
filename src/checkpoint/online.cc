// Quantizing while loading: the parts of a described matrix are wrapped, nothing is read.
#include "checkpoint/online.h"

#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/stack.h"
#include "quant/quantize_weight.h"

namespace moracle {

Error already_quantized(std::string file, std::string place, const Scheme& scheme) {
  return {ErrorKind::kUnsupported, std::move(file), std::move(place),
          "unquantized weights for an online scheme", "the file's are " + name(scheme)};
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

// What the part reads, quantized; its weights lie in its first tensor.
void quantize_part(DescribedMatrix::Part& part, const QuantKey& key) {
  std::string tensor = part.tensors.empty() ? "weights" : "tensor '" + part.tensors[0] + "'";
  part.read_rows = {};
  part.read = [read = std::move(part.read), key, file = part.file,
               tensor = std::move(tensor)](ThreadPool& pool) -> Result<CanonicalMatrix> {
    MORACLE_TRY(const CanonicalMatrix floats, read(pool));
    Result<CanonicalMatrix> matrix = quantize_weight(floats, key, pool);
    if (matrix) return matrix;
    Error error = matrix.error();
    error.file = file;
    error.place = tensor;
    return error;
  };
}

}  // namespace

Result<DescribedMatrix> quantize(DescribedMatrix&& floats, const Scheme& scheme) {
  MORACLE_CHECK(check_online(scheme));
  DescribedMatrix matrix = std::move(floats);
  if (matrix.scheme_.weight.quantized()) {
    const bool named =
        !matrix.parts_.empty() && !matrix.parts_[0].empty() && !matrix.parts_[0][0].tensors.empty();
    const auto* first = named ? &matrix.parts_[0][0] : nullptr;
    return already_quantized(first ? first->file : "",
                             first ? "tensor '" + first->tensors[0] + "'" : "weights",
                             matrix.scheme_);
  }
  matrix.scheme_ = scheme;
  MatrixShape shape = matrix.shape_;
  shape.key = scheme.weight;
  if (shape.key.group == GroupShape{}) shape.key.group = kPerRow;  // as canonical form has it
  matrix.shape_ = shape;
  for (std::vector<DescribedMatrix::Part>& expert : matrix.parts_) {
    for (DescribedMatrix::Part& part : expert) quantize_part(part, scheme.weight);
    matrix.shape_ = shape;
    align_blocks(matrix.shape_, expert);
  }
  return matrix;
}

Result<DescribedWeights> quantize(DescribedWeights&& floats, const Scheme& scheme) {
  DescribedWeights weights = std::move(floats);
  MORACLE_TRY(weights.w13, quantize(std::move(weights.w13), scheme));
  MORACLE_TRY(weights.w2, quantize(std::move(weights.w2), scheme));
  weights.spec.scheme = scheme;
  weights.spec.set_matrices({weights.w13.shape(), weights.w2.shape()});
  return weights;
}

}  // namespace moracle
