// Folds described 4-bit weights into e4m3: wraps their sources; reads nothing.
#include "base/text.h"
#include "base/try.h"
#include "moracle/checkpoint.h"
#include "quant/fold.h"

namespace moracle {
namespace {

// Adds file and tensor to an error of a source.
Result<CanonicalMatrix> folded(Result<CanonicalMatrix>&& packed, const QuantKey& key,
                               ThreadPool& pool, const std::string& file,
                               const std::string& tensor) {
  if (!packed) return std::move(packed);
  Result<CanonicalMatrix> done = fold(*std::move(packed), key, pool);
  if (done || tensor.empty()) return done;
  Error error = done.error();
  error.file = file;
  error.place = str("tensor '", tensor, "', ", error.place);
  return error;
}

Error with_module(Error error, const DescribedMatrix& matrix) {
  const std::vector<std::string> modules = matrix.modules();
  if (!modules.empty()) error.place = str(modules.front(), ", ", error.place);
  return error;
}

}  // namespace

Status DescribedMatrix::fold() {
  const Result<Scheme> scheme = folded_scheme(shape_, scheme_);
  if (!scheme) return with_module(scheme.error(), *this);
  const QuantKey key = scheme->weight;
  for (std::vector<Source>& sources : sources_) {
    for (Source& source : sources) {
      const std::string tensor = source.tensors.empty() ? "" : source.tensors.front();
      source.read = [read = std::move(source.read), key, file = source.file, tensor](
                        ThreadPool& pool) { return folded(read(pool), key, pool, file, tensor); };
      if (!source.read_rows) continue;
      source.read_rows = [read = std::move(source.read_rows), key, file = source.file, tensor](
                             ThreadPool& pool, int64_t first, int64_t count) {
        return folded(read(pool, first, count), key, pool, file, tensor);
      };
    }
  }
  scheme_ = *scheme;
  shape_.key = key;
  return {};
}

Status fold(DescribedWeights& weights) {
  const DescribedMatrix& w2 = weights.w2;
  if (const Result<Scheme> below = folded_scheme(w2.shape(), w2.scheme()); !below)
    return with_module(below.error(), w2);
  MORACLE_CHECK(weights.w13.fold());
  MORACLE_CHECK(weights.w2.fold());
  weights.spec.scheme = weights.w13.scheme();
  weights.spec.set_matrices({weights.w13.shape(), weights.w2.shape()});
  return {};
}

std::string_view name(WeightResidency residency) {
  constexpr std::string_view kNames[] = {"packed", "folded", "auto"};
  return kNames[static_cast<int>(residency)];
}

Result<WeightResidency> parse_weights(std::string_view text) {
  using enum WeightResidency;
  for (const auto residency : {kPacked, kFolded, kAuto})
    if (text == name(residency)) return residency;
  return Error{ErrorKind::kInvalidArgument, "", "weights", "packed, folded or auto",
               str("'", text, "' is unknown")};
}

}  // namespace moracle
