#include "checkpoint/memory/stored_matrix.h"

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "base/threads/thread_pool.h"
#include "base/try.h"
#include "checkpoint/producers/packed.h"

namespace moracle {
namespace {

using StoredShape = std::vector<int64_t>;

bool holds_floats(DType type) {
  return type == DType::kF32 || type == DType::kF16 || type == DType::kBF16;
}

StoredShape without_ones(StoredShape shape) {
  shape.erase(std::remove(shape.begin(), shape.end(), 1), shape.end());
  return shape;
}

// True if the shapes are equal apart from sizes of 1 behind the first.
bool alike(const StoredShape& a, const StoredShape& b) {
  return !a.empty() && a[0] == b[0] && without_ones(a) == without_ones(b);
}

bool holds_integers(const QuantKey& key) {
  return key.dtype == DType::kI4 || key.dtype == DType::kI8;
}

}  // namespace

Result<int64_t> rows_of(const StoredMatrix& stored, Packing packing) {
  const StoredShape& shape = stored.weight.shape;
  const bool blocks = shape.size() == 4 && stored.weight.dtype == DType::kU8;
  if (stored.weight.data == nullptr || (shape.size() != 3 && !blocks) ||
      std::count(shape.begin(), shape.end(), 0) > 0) {
    return NamedTensor{stored.name, stored.weight, {}}.wrong("[experts, rows, columns]");
  }
  if (packing == Packing::kRows) return shape[1];
  return packing == Packing::kAwq ? shape[2] * 8 : shape[2];
}

Result<MemoryMatrix> MemoryMatrix::open(const StoredMatrix& stored, Packing packing,
                                        const Scheme& scheme, int64_t n, int64_t k,
                                        const ReadMemory& read) {
  MemoryMatrix matrix;
  matrix.weight_ = {stored.name, stored.weight, read};
  matrix.scales_ = {stored.name + "_scale", stored.scales, read};
  matrix.zeros_ = {stored.name + "_zp", stored.zero_points, read};
  matrix.index_ = {stored.name + "_g_idx", stored.group_index, read};
  matrix.bias_ = {stored.name + "_bias", stored.bias, read};
  matrix.input_ = {stored.input_name, stored.input_scales, read};
  matrix.packing_ = packing;
  matrix.scheme_ = scheme;
  matrix.shape_ = {.n = n, .k = k, .key = scheme.weight};
  if (matrix.shape_.key.group == GroupShape{} && scheme.weight.quantized())
    matrix.shape_.key.group = kPerRow;
  MORACLE_CHECK(matrix.check_weight());
  MORACLE_CHECK(matrix.check_scales());
  MORACLE_CHECK(matrix.check_others());
  return matrix;
}

Status MemoryMatrix::check_weight() const {
  const QuantKey& key = scheme_.weight;
  const int64_t experts = num_experts(), n = shape_.n, k = shape_.k;
  if (key.minimums)
    return weight_.wrong(str("codes without minimums; the scheme is ", name(scheme_)));
  if (packing_ != Packing::kRows && !holds_integers(key))
    return weight_.wrong(str("integer codes for this packing; the scheme is ", name(scheme_)));
  if (holds_integers(key)) return check_codes(weight_, packing_, key, experts, n, k);
  const TensorView& view = weight_.view;
  if (key.dtype == DType::kF4E2M1) {
    const bool fits = view.shape == StoredShape{experts, n, k / 2} ||
                      view.shape == StoredShape{experts, n, k / 32, 16};
    if (view.dtype == DType::kU8 && fits && k % 32 == 0) return {};
    return weight_.wrong(str("u8 [", experts, ", ", n, ", ", k / 2, "] with K a multiple of 32"));
  }
  const bool bytes = key.dtype == DType::kF8E4M3 && view.dtype == DType::kU8;
  if ((view.dtype == key.dtype || bytes) && view.shape == StoredShape{experts, n, k}) return {};
  return weight_.wrong(str(name(key.dtype), " [", experts, ", ", n, ", ", k, "]"));
}

Status MemoryMatrix::check_scales() const {
  const QuantKey& key = scheme_.weight;
  if (!key.quantized()) {
    if (!scales_.present()) return {};
    return scales_.wrong(str("no tensor, because the scheme is ", name(scheme_)));
  }
  CanonicalMatrix sizes;
  sizes.n = shape_.n;
  sizes.k = shape_.k;
  sizes.key = key;
  const int64_t rows = key.group == GroupShape{} ? 1 : sizes.scale_rows();
  StoredShape shape = {num_experts(), rows, sizes.scale_cols()};
  if (transposed()) std::swap(shape[1], shape[2]);
  const bool exponents = key.scale_dtype == DType::kF8E8M0;
  const DType type = scales_.view.dtype;
  const bool right_type =
      exponents ? type == DType::kU8 || type == DType::kF8E8M0 : holds_floats(type);
  if (scales_.present() && right_type && alike(scales_.view.shape, shape)) return {};
  return scales_.wrong(
      str(exponents ? "u8 exponents" : "f32, f16 or bf16", " [", join(shape), "]"));
}

Status MemoryMatrix::check_others() {
  const QuantKey& key = scheme_.weight;
  const int64_t experts = num_experts();
  CanonicalMatrix sizes;
  sizes.k = shape_.k;
  sizes.key = key;
  if (zeros_.present() == key.symmetric) {
    return zeros_.wrong(str(key.symmetric ? "no tensor" : "zero points", ", because the scheme is ",
                            name(scheme_)));
  }
  if (zeros_.present()) {
    MORACLE_CHECK(check_zero_points(zeros_, packing_, key, experts, shape_.n, sizes.scale_cols()));
  }
  if (bias_.present() &&
      (!holds_floats(bias_.view.dtype) || bias_.view.shape != StoredShape{experts, shape_.n}))
    return bias_.wrong(str("f32, f16 or bf16 [", experts, ", ", shape_.n, "]"));
  shape_.bias = bias_.present();
  const bool is_static = scheme_.activation && !scheme_.activation->dynamic;
  if (input_.present() != is_static) {
    return input_.wrong(str(is_static ? "one scale per expert" : "no tensor",
                            ", because the scheme is ", name(scheme_)));
  }
  if (!index_.present()) return {};
  if (index_.view.dtype != DType::kI32 || index_.view.shape != StoredShape{experts, shape_.k})
    return index_.wrong(str("i32 [", experts, ", ", shape_.k, "]"));
  for (int64_t e = 0; e < experts; ++e) {
    MORACLE_TRY(const HostTensor index, index_.expert(e));
    shape_.group_index |= !in_order(index.view, sizes.group_cols());
  }
  return {};
}

int64_t MemoryMatrix::expert_bytes() const {
  const size_t bytes = weight_.view.num_bytes() + scales_.view.num_bytes() * scales_.present();
  return static_cast<int64_t>(bytes) / num_experts();
}

std::vector<float> MemoryMatrix::in_rows(std::vector<float> scales) const {
  if (scheme_.weight.group == GroupShape{}) scales.resize(shape_.n, scales.front());
  if (!transposed()) return scales;
  const auto groups = static_cast<int64_t>(scales.size()) / shape_.n;
  std::vector<float> rows(scales.size());
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t n = 0; n < shape_.n; ++n) rows[n * groups + g] = scales[g * shape_.n + n];
  }
  return rows;
}

Result<CanonicalMatrix> MemoryMatrix::read(int64_t e, ThreadPool& pool) const {
  CanonicalMatrix matrix;
  matrix.n = shape_.n;
  matrix.k = shape_.k;
  matrix.key = shape_.key;
  MORACLE_TRY(HostTensor weight, weight_.expert(e));
  if (holds_integers(matrix.key)) {
    read_codes(weight.view, packing_, matrix, pool);
  } else {
    TensorView typed = weight.view;  // bytes of fp8 have NaN, too
    if (matrix.key.dtype == DType::kF8E4M3) typed.dtype = DType::kF8E4M3;
    MORACLE_CHECK(weight_.check_finite(typed, e, pool));
    matrix.codes = {typed.data, typed.num_bytes()};
  }
  // Codes that are used as they are stay in the copy.
  if (!weight.copy.empty() && matrix.codes.data() == weight.copy.data())
    matrix.storage = std::move(weight.copy);
  if (scales_.present()) {
    MORACLE_TRY(std::vector<float> scales, scales_.floats(e));
    matrix.scales = in_rows(std::move(scales));
  }
  if (zeros_.present()) {
    MORACLE_TRY(const HostTensor zeros, zeros_.expert(e));
    matrix.zero_points = read_zero_points(zeros.view, packing_, matrix);
  }
  if (bias_.present()) {
    MORACLE_TRY(matrix.bias, bias_.floats(e));
  }
  if (!shape_.group_index) return matrix;
  MORACLE_TRY(const HostTensor index, index_.expert(e));
  for (int64_t c = 0; c < shape_.k; ++c) {
    const auto group = static_cast<int32_t>(word_at(index.view, c));
    if (group < 0 || group >= matrix.scale_cols()) {
      return Error{ErrorKind::kInvalidArgument, "", str(index_.name, ", expert ", e),
                   str("groups from 0 to ", matrix.scale_cols() - 1),
                   str("column ", c, " has ", group)};
    }
    matrix.group_index.push_back(group);
  }
  return matrix;
}

Result<std::vector<float>> MemoryMatrix::input_scales() const {
  if (!input_.present()) return std::vector<float>();
  const int64_t count = input_.view.num_elements();
  if (!holds_floats(input_.view.dtype) || (count != 1 && count != num_experts()))
    return input_.wrong(str("f32, f16 or bf16 [", num_experts(), "] or [1]"));
  NamedTensor all = input_;
  all.view.shape = {1, count};
  MORACLE_TRY(std::vector<float> scales, all.floats(0));
  for (const float scale : scales) {
    if (scale <= 0) return input_.wrong(str("scales above 0, not ", scale));
  }
  scales.resize(num_experts(), scales.front());
  return scales;
}

}  // namespace moracle
