// Rejects invalid layers before a plan divides by their sizes or multiplies them.
#include <cmath>

#include "base/text.h"
#include "base/try.h"
#include "moracle/layer.h"
#include "quant/code_set.h"

namespace moracle {
namespace {

// Experts x hidden size x intermediate size. A layout stores at most 16 bytes for each weight, with
// its scales and its padding; all matrices of an expert have 3 times as many weights.
constexpr int64_t kMostWeights = int64_t{1} << 52;

Error wrong(const char* field, std::string need, std::string fact) {
  return {ErrorKind::kInvalidArgument, "", field, std::move(need), std::move(fact)};
}

Status check_from_1(const char* field, int64_t value, int64_t most, const char* why = "") {
  if (value >= 1 && value <= most) return {};
  return wrong(field, str("1 to ", most, why), str("it is ", value));
}

Status check_number(const char* field, float value, bool sensible, const char* need) {
  if (std::isfinite(value) && sensible) return {};
  return wrong(field, need, str("it is ", value));
}

Status check_activation(const ActivationSpec& a) {
  const bool needs_limit =
      a.function == Activation::kSwigluOai || a.function == Activation::kSwigluStep;
  MORACLE_CHECK(check_number("alpha", a.alpha, true, "a finite number"));
  MORACLE_CHECK(check_number("beta", a.beta, true, "a finite number"));
  return needs_limit
             ? check_number("limit", a.limit, a.limit > 0, "a finite number above 0")
             : check_number("limit", a.limit, a.limit >= 0, "a finite number of at least 0");
}

Status check_key(const QuantKey& key) {
  for (const int64_t size : {key.group.rows, key.group.cols}) {
    if (size != GroupShape::kAll && size < 1)
      return wrong("scheme", "groups of at least 1 row and 1 column",
                   str("they are ", key.group.rows, " x ", key.group.cols));
  }
  const bool integers = key.dtype == DType::kI4 || key.dtype == DType::kI8;
  const bool scaled = key.group.rows == 1 && key.scale_dtype != DType::kF8E8M0;
  if (key.minimums && !(integers && scaled)) {
    return wrong("scheme",
                 "minimums only beside int4 or int8 codes with scales for each row that are no "
                 "powers of two",
                 "they are beside " + describe(Scheme{key, {}}));
  }
  if (key.codes != CodeSet::kAny && key.dtype != DType::kI8)
    return wrong("scheme", "int8 codes for a set of codes", str("they are ", name(key.dtype)));
  const int64_t unit = code_unit(key.codes);
  if (key.codes != CodeSet::kAny && key.group.cols % unit != 0)
    return wrong("scheme", str("groups of a multiple of ", unit, " columns for these codes"),
                 str("they are ", key.group.cols));
  if (key.scale_dtype == DType::kI8 && !(integers && scaled && kFactorCols % key.group.cols == 0)) {
    return wrong("scheme",
                 str("integer scales only in groups that divide ", kFactorCols, " columns"),
                 "they are beside " + describe(Scheme{key, {}}));
  }
  return {};
}

// Checks that the stored matrices have the sizes of the layer. Only keys and biases may differ.
Status check_stored(const LayerSpec& layer) {
  LayerSpec plain = layer;
  plain.stored.clear();
  const std::vector<MatrixShape> sizes = plain.matrices();
  bool fits = layer.stored.empty() || layer.stored.size() == sizes.size();
  for (size_t i = 0; fits && i < layer.stored.size(); ++i) {
    fits = layer.stored[i].n == sizes[i].n && layer.stored[i].k == sizes[i].k;
    MORACLE_CHECK(check_key(layer.stored[i].key));
  }
  if (fits) return {};
  std::vector<std::string> found;
  for (const MatrixShape& m : layer.stored) found.push_back(str("[", m.n, ", ", m.k, "]"));
  return wrong("stored", "the matrices of the layer", "they are " + join(found));
}

}  // namespace

Status check(const LayerSpec& layer) {
  const int64_t experts = layer.num_experts, h = layer.hidden_size, i = layer.intermediate_size;
  for (const auto& [field, size] :
       {std::pair{"num_experts", experts}, {"hidden_size", h}, {"intermediate_size", i}}) {
    MORACLE_CHECK(check_from_1(field, size, kMaxLayerSize));
  }
  MORACLE_CHECK(check_from_1("top_k", layer.top_k, experts, " (num_experts)"));
  if (experts > kMostWeights / (h * i)) {
    return wrong("num_experts",
                 str("at most ", kMostWeights / (h * i), " of ", h, " x ", i,
                     ", because 64 bits count the bytes of a layer"),
                 str("it is ", experts));
  }
  MORACLE_CHECK(check_activation(layer.activation));
  MORACLE_CHECK(check_key(layer.scheme.weight));
  if (layer.scheme.activation) MORACLE_CHECK(check_key(*layer.scheme.activation));
  return check_stored(layer);
}

}  // namespace moracle
