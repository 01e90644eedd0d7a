#include "quant/fold.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "base/first_error.h"
#include "base/scalar.h"
#include "base/text.h"
#include "base/try.h"

namespace moracle {
namespace {

constexpr int kUp = 6;  // 6 * 2^6 is the largest e2m1 that e4m3 holds

Error refuse(std::string need, std::string fact) {
  return {ErrorKind::kUnsupported, "", "weights folded", std::move(need), std::move(fact)};
}

bool has_exponents(const QuantKey& key) {
  return key.dtype == DType::kF4E2M1 && key.scale_dtype == DType::kF8E8M0;
}

unsigned nibble(const std::byte* row, int64_t c) {
  return std::to_integer<unsigned>(row[c / 2]) >> (4 * (c % 2)) & 15u;
}

int signed_code(unsigned nibble) {
  return nibble < 8 ? static_cast<int>(nibble) : static_cast<int>(nibble) - 16;
}

// e4m3 codes of -16 to 16: e4m3 has no larger odd integers.
constexpr int kMostInteger = 16;
constexpr int kMostZeroPoint = 8;  // GPTQ stores 15 for it
std::array<uint8_t, 2 * kMostInteger + 1> integer_codes() {
  std::array<uint8_t, 2 * kMostInteger + 1> codes;
  for (int i = -kMostInteger; i <= kMostInteger; ++i)
    codes[static_cast<size_t>(i + kMostInteger)] = float_to_e4m3(static_cast<float>(i));
  return codes;
}

// e4m3 codes of all e2m1 times 2^up; `exact`: the value did not change.
struct ScaledCodes {
  std::array<uint8_t, 16> codes;
  std::array<bool, 16> exact;
};
ScaledCodes scaled_codes(int up) {
  ScaledCodes scaled;
  for (unsigned q = 0; q < 16; ++q) {
    const float value = std::ldexp(e2m1_to_float(static_cast<uint8_t>(q)), up);
    scaled.codes[q] = float_to_e4m3(value);
    scaled.exact[q] = e4m3_to_float(scaled.codes[q]) == value;
  }
  return scaled;
}
// Below 2^-11 * 2^-kUp no code but zero is exact.
constexpr int kMostDown = 18;

Status fold_integers(const CanonicalMatrix& m, int64_t r, uint8_t* out) {
  static const auto kCodes = integer_codes();
  const std::byte* const row = m.codes.data() + r * m.row_bytes();
  const int64_t groups = m.scale_cols(), cols = m.group_cols();
  for (int64_t g = 0; g < groups; ++g) {
    const int zero = m.zero_points.empty() ? 0 : m.zero_points[static_cast<size_t>(r * groups + g)];
    if (std::abs(zero) > kMostZeroPoint) {
      return refuse("codes minus zero points from -16 to 16, which e4m3 holds exactly",
                    str("row ", r, " has the zero point ", zero, "; keep the weights packed"));
    }
    for (int64_t c = g * cols; c < std::min((g + 1) * cols, m.k); ++c)
      out[c] = kCodes[static_cast<size_t>(signed_code(nibble(row, c)) - zero + kMostInteger)];
  }
  return {};
}

void fold_floats(const CanonicalMatrix& m, int64_t r, uint8_t* out) {
  static const ScaledCodes kCodes = scaled_codes(0);
  const std::byte* const row = m.codes.data() + r * m.row_bytes();
  for (int64_t c = 0; c < m.k; ++c) out[c] = kCodes.codes[nibble(row, c)];
}

bool has_only_zeros(const std::byte* row, int64_t first, int64_t end) {
  for (int64_t c = first; c < end; ++c)
    if ((nibble(row, c) & 7u) != 0) return false;
  return true;
}

Status fold_exponents(const CanonicalMatrix& m, int64_t r, uint8_t* out, float& scale) {
  static const auto kCodes = [] {
    std::array<ScaledCodes, kMostDown + 1> codes;
    for (int down = 0; down <= kMostDown; ++down)
      codes[static_cast<size_t>(down)] = scaled_codes(kUp - down);
    return codes;
  }();
  const std::byte* const row = m.codes.data() + r * m.row_bytes();
  const int64_t groups = m.scale_cols(), cols = m.group_cols();
  const float* const scales = m.scales.data() + r * groups;
  const auto end_of = [&](int64_t g) { return std::min((g + 1) * cols, m.k); };
  int largest = 0;
  bool found = false;
  for (int64_t g = 0; g < groups; ++g) {
    if (!std::isfinite(scales[g])) {
      return refuse("finite scales", str("row ", r, " has a scale of ", scales[g], " at column ",
                                         g * cols, "; keep the weights packed"));
    }
    if (has_only_zeros(row, g * cols, end_of(g))) continue;
    const int exponent = std::ilogb(scales[g]);
    largest = found ? std::max(largest, exponent) : exponent;
    found = true;
  }
  if (!found) {
    for (int64_t c = 0; c < m.k; ++c) out[c] = kCodes[0].codes[nibble(row, c)];
    scale = 1;
    return {};
  }
  for (int64_t g = 0; g < groups; ++g) {
    // A group of zeros may have any exponent.
    const int down = std::clamp(largest - std::ilogb(scales[g]), 0, kMostDown);
    const ScaledCodes& scaled = kCodes[static_cast<size_t>(down)];
    for (int64_t c = g * cols; c < end_of(g); ++c) {
      const unsigned q = nibble(row, c);
      if (!scaled.exact[q]) {
        return refuse("exponents of a row at most 14 apart, which e4m3 holds exactly",
                      str("row ", r, " has 2^", std::ilogb(scales[g]), " at column ", c, " and 2^",
                          largest, " elsewhere; keep the weights packed"));
      }
      out[c] = scaled.codes[q];
    }
  }
  scale = std::ldexp(1.0f, largest - kUp);
  return {};
}

}  // namespace

bool has_residency(const Scheme& scheme) {
  const DType dtype = scheme.weight.dtype;
  return (dtype == DType::kI4 || dtype == DType::kF4E2M1) && scheme.activation &&
         scheme.activation->dtype == DType::kF8E4M3;
}

Result<Scheme> folded_scheme(const MatrixShape& shape, const Scheme& scheme) {
  const QuantKey& key = shape.key;
  if (!has_residency({key, scheme.activation}))
    return refuse("4-bit weights and fp8 activations (activations)", "they are " + name(scheme));
  if (scheme.activation != kFp8DynamicTokenSym)
    return refuse("activation scales that are computed for each token",
                  "those of " + name(scheme) + " are stored");
  if (shape.group_index)
    return refuse("columns in the order of their groups: fp8 kernels do not gather activations",
                  "they are in act-order");
  if (key.minimums)
    return refuse("groups without minimums: e4m3 codes hold none", "they are " + name(scheme));
  if (key.group.rows == 1 && has_exponents(key))
    return Scheme{kFp8StaticChannelSym, scheme.activation};
  const int64_t cols = key.group.cols;
  if (key.group.rows != 1 || (cols != GroupShape::kAll && cols % kFoldedColumns != 0))
    return refuse(str("groups of a multiple of ", kFoldedColumns,
                      " columns, which fp8 kernels add before they scale a sum"),
                  str("they have ", cols));
  QuantKey folded = kFp8StaticChannelSym;
  folded.group.cols = cols;
  return Scheme{folded, scheme.activation};
}

Result<CanonicalMatrix> fold(CanonicalMatrix&& packed, const QuantKey& key, ThreadPool& pool) {
  CanonicalMatrix m = std::move(packed);
  const bool exponents = has_exponents(m.key);
  std::vector<std::byte> codes(static_cast<size_t>(m.n * m.k));
  std::vector<float> scales(exponents ? static_cast<size_t>(m.n) : 0);
  FirstError first_error;
  const auto rows = [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      auto* const out = reinterpret_cast<uint8_t*>(codes.data()) + r * m.k;
      Status done;
      if (exponents)
        done = fold_exponents(m, r, out, scales[static_cast<size_t>(r)]);
      else if (m.key.dtype == DType::kI4)
        done = fold_integers(m, r, out);
      else
        fold_floats(m, r, out);
      if (!done) return first_error.keep(r, done.error());
    }
  };
  constexpr int64_t kLeastCodes = 1 << 16;  // waking a thread takes as long as fewer codes
  pool.split(m.n, rows, kLeastCodes / std::max<int64_t>(m.k, 1) + 1);
  MORACLE_CHECK(std::move(first_error).status());
  m.storage = std::move(codes);
  m.codes = m.storage;
  m.memory.reset();
  if (exponents) m.scales = std::move(scales);
  m.zero_points.clear();
  m.key = key;
  return m;
}

}  // namespace moracle
