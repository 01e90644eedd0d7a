// Random matrices: the same seed gives the same matrix on every machine.
#include "timing/random_matrix.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include "base/scalar.h"
#include "quant/code_set.h"
#include "quant/codec.h"

namespace moracle::timing {
namespace {

// Properties of the 256 byte values of a quantized type. A byte holds one 8-bit code or two 4-bit
// codes.
struct Bytes {
  std::array<bool, 256> finite;  // every code in the byte is finite: no NaN, no infinity
  double largest = 0;            // largest magnitude of a finite code
};

Bytes bytes_of(DType type) {
  Bytes bytes;
  bytes.finite.fill(true);
  visit_codec(type, [&]<class Codec>() {
    for (size_t byte = 0; byte < bytes.finite.size(); ++byte) {
      // Sized for the longest element: this code is compiled for every codec, float codecs
      // included.
      const std::array<std::byte, 4> codes = {static_cast<std::byte>(byte)};
      for (int i = 0; i < 8 / bits(type); ++i) {
        const double value = Codec::decode(codes.data(), i);
        bytes.finite[byte] &= std::isfinite(value);
        if (std::isfinite(value)) bytes.largest = std::max(bytes.largest, std::fabs(value));
      }
    }
  });
  return bytes;
}

// What std::uniform_real_distribution<float>(-1, 1) of libstdc++ gives, to the bit. Compiled by
// clang, the distribution computes two long double logarithms for each number: a sixth of the
// sanitized conformance tests.
float uniform(std::mt19937_64& engine) {
  const float from_0_to_1 = static_cast<float>(engine()) * 0x1p-64f;
  return std::min(from_0_to_1, 0x1.fffffep-1f) * 2 - 1;
}

// Rounds values [rows, groups] to integers times f16 factors, which it returns.
std::vector<float> make_steps(const CanonicalMatrix& m, std::vector<float>& values) {
  constexpr float kLargest = 63;
  const int64_t groups = m.scale_cols(), per_factor = kFactorCols / m.group_cols();
  std::vector<float> factors;
  for (int64_t r = 0; r < m.n && !values.empty(); ++r) {
    for (int64_t first = 0; first < groups; first += per_factor) {
      const std::span some(values.data() + r * groups + first,
                           static_cast<size_t>(std::min(per_factor, groups - first)));
      float largest = 0;
      for (const float value : some) largest = std::max(largest, std::fabs(value));
      const float unit = factor_unit(m.key.codes);
      const float factor = unit * f16_to_float(float_to_f16(largest / kLargest / unit));
      for (float& value : some)
        value = std::clamp(std::round(value / factor), -64.0f, 64.0f) * factor;
      factors.push_back(factor);
    }
  }
  return factors;
}

// Rounds to four significant bits, which e4m3 has.
float of_four_bits(float x) {
  int exponent = 0;
  const float fraction = std::frexp(x, &exponent);
  return std::ldexp(std::round(fraction * 16) / 16, exponent);
}

}  // namespace

CanonicalMatrix random_matrix(const MatrixShape& shape, uint64_t seed) {
  std::mt19937_64 engine(seed);
  CanonicalMatrix m;
  m.n = shape.n;
  m.k = shape.k;
  m.key = shape.key;
  m.storage.resize(m.n * m.row_bytes());
  const float size = 1.0f / std::sqrt(static_cast<float>(std::max<int64_t>(shape.k, 1)));
  for (int64_t i = 0; i < (shape.key.quantized() ? 0 : m.n * m.k); ++i) {
    const float value = uniform(engine) * 2 * size;
    auto* at = m.storage.data() + i * bits(m.key.dtype) / 8;
    if (m.key.dtype == DType::kF32)
      *reinterpret_cast<float*>(at) = value;
    else
      *reinterpret_cast<uint16_t*>(at) =
          m.key.dtype == DType::kF16 ? float_to_f16(value) : float_to_bf16(value);
  }
  if (shape.key.quantized()) {
    const Bytes bytes = bytes_of(m.key.dtype);
    uint64_t eight = 0;  // one number of the engine serves eight bytes
    for (size_t i = 0; i < m.storage.size(); ++i, eight >>= 8) {
      if (i % 8 == 0) eight = engine();
      uint8_t byte = static_cast<uint8_t>(eight);
      while (!bytes.finite[byte]) --byte;  // skip NaN and infinity
      if (m.key.codes != CodeSet::kAny)
        byte = static_cast<uint8_t>(code_of(m.key.codes, byte % (1 << code_bits(m.key.codes))));
      m.storage[i] = static_cast<std::byte>(byte);
    }
    const auto range = static_cast<float>(bytes.largest);
    m.scales.resize(m.scale_rows() * m.scale_cols());
    for (float& scale : m.scales) {
      scale = size / range * (1.5f + uniform(engine));
      if (m.key.scale_dtype == DType::kF8E8M0) scale = std::exp2(std::round(std::log2(scale)));
      if (m.key.scale_dtype == DType::kF16) scale = f16_to_float(float_to_f16(scale));
      if (m.key == kNvfp4Static) scale = of_four_bits(scale / size) * size;
    }
    if (!shape.key.symmetric) {
      m.zero_points.resize(m.scales.size());
      for (int8_t& zero : m.zero_points) zero = static_cast<int8_t>(uniform(engine) * range / 2);
    }
    if (shape.key.minimums) {
      // Near the middle of the codes, so that values of both signs are left.
      const float middle =
          m.key.scale_dtype == DType::kI8 && !m.key.symmetric ? -kStepZeroPoint : 0;
      for (const float scale : m.scales)
        m.minimums.push_back((middle + uniform(engine) * range / 2) * scale);
    }
    if (m.key.scale_dtype == DType::kI8) {
      m.scale_factors = make_steps(m, m.scales);
      m.minimum_factors = make_steps(m, m.minimums);
      m.zero_points.assign(m.zero_points.size(), kStepZeroPoint);
    }
  }
  if (shape.bias) {
    m.bias.resize(m.n);
    for (float& b : m.bias) b = uniform(engine);
  }
  m.codes = m.storage;
  return m;
}

void shuffle_groups(CanonicalMatrix& matrix, uint64_t seed) {
  matrix.group_index.resize(matrix.k);
  for (int64_t c = 0; c < matrix.k; ++c)
    matrix.group_index[c] = static_cast<int32_t>(c / matrix.group_cols());
  std::shuffle(matrix.group_index.begin(), matrix.group_index.end(), std::mt19937_64(seed));
}

}  // namespace moracle::timing
