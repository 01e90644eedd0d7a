#include "moracle_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/scalar.h"
#include "base/text.h"
#include "base/try.h"
#include "quant/quantize_weight.h"

namespace moracle::peers {
namespace {

// The magnitudes of e2m1, by code.
constexpr float kFp4[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};

uint8_t fp4_code(float value) {
  const float magnitude = std::fabs(value);
  uint8_t best = 0;
  for (uint8_t code = 1; code < 8; ++code) {
    const float here = std::fabs(magnitude - kFp4[code]), there = std::fabs(magnitude - kFp4[best]);
    if (here < there || (here == there && code % 2 == 0)) best = code;
  }
  return best | (std::signbit(value) ? 8 : 0);
}

uint8_t int4_code(float value) {
  return static_cast<uint8_t>(std::clamp(std::lrint(value), -8L, 7L)) & 15;
}

// Groups of 4-bit numbers along K.
CanonicalMatrix quantize_nibbles(std::span<const float> floats, int64_t k, const QuantKey& key) {
  CanonicalMatrix m;
  m.n = static_cast<int64_t>(floats.size()) / k;
  m.k = k;
  m.key = key;
  m.storage.resize(m.n * m.row_bytes());
  m.scales.resize(m.scale_rows() * m.scale_cols());
  const bool fp4 = key.dtype == DType::kF4E2M1;
  for (int64_t r = 0; r < m.n; ++r) {
    for (int64_t first = 0; first < k; first += m.group_cols()) {
      const int64_t end = std::min(first + m.group_cols(), k);
      float largest = 1e-10f;
      for (int64_t c = first; c < end; ++c)
        largest = std::max(largest, std::fabs(floats[r * k + c]));
      const float scale = fp4 ? std::ldexp(1.0f, std::ilogb(largest) - 2) : largest / 7;
      m.scales[r * m.scale_cols() + first / m.group_cols()] = scale;
      for (int64_t c = first; c < end; ++c) {
        const float value = floats[r * k + c] / scale;
        const uint8_t code = fp4 ? fp4_code(value) : int4_code(value);
        m.storage[r * m.row_bytes() + c / 2] |= static_cast<std::byte>(code << (c % 2 * 4));
      }
    }
  }
  m.codes = m.storage;
  return m;
}

CanonicalMatrix plain(std::span<const float> floats, int64_t k, DType type) {
  CanonicalMatrix m;
  m.n = static_cast<int64_t>(floats.size()) / k;
  m.k = k;
  m.key = QuantKey{type};
  m.storage.resize(m.n * m.row_bytes());
  if (type == DType::kF32) {
    std::memcpy(m.storage.data(), floats.data(), m.storage.size());
  } else {
    auto* to = reinterpret_cast<uint16_t*>(m.storage.data());
    std::transform(floats.begin(), floats.end(), to, float_to_bf16);
  }
  m.codes = m.storage;
  return m;
}

CanonicalMatrix draw(const CanonicalMatrix& pool, const MatrixShape& shape,
                     std::span<const int32_t> blocks) {
  CanonicalMatrix m;
  m.n = shape.n;
  m.k = shape.k;
  m.key = shape.key;
  const int64_t bytes = kBlockRows * m.row_bytes();
  m.storage.resize(m.n * m.row_bytes());
  // Scales of a block of rows: one row of scales per matrix row, or one for the block.
  const int64_t scales =
      pool.scales.empty() ? 0 : static_cast<int64_t>(pool.scales.size()) * kBlockRows / pool.n;
  for (size_t b = 0; b < blocks.size(); ++b) {
    std::memcpy(m.storage.data() + b * bytes, pool.codes.data() + blocks[b] * bytes, bytes);
    const auto first = pool.scales.begin() + blocks[b] * scales;
    m.scales.insert(m.scales.end(), first, first + scales);
  }
  m.codes = m.storage;
  return m;
}

}  // namespace

Result<CanonicalMatrix> quantize_pool(std::span<const float> floats, int64_t k,
                                      const QuantKey& key) {
  if (key.dtype == DType::kBF16) return plain(floats, k, DType::kBF16);
  const bool nibbles = key.dtype == DType::kI4 || key.dtype == DType::kF4E2M1;
  if (nibbles && key.symmetric && key.group.rows == 1) return quantize_nibbles(floats, k, key);
  ThreadPool threads;
  return quantize_weight(plain(floats, k, DType::kF32), key, threads);
}

DescribedMatrix experts_of_blocks(std::shared_ptr<const CanonicalMatrix> pool,
                                  const MatrixShape& shape, const Scheme& scheme,
                                  int64_t num_experts, std::span<const int32_t> blocks) {
  const int64_t each = shape.n / kBlockRows;
  std::vector<std::vector<DescribedMatrix::Source>> sources(num_experts);
  for (int64_t e = 0; e < num_experts; ++e) {
    DescribedMatrix::Source source;
    source.n = shape.n;
    source.read = [pool, shape, mine = blocks.subspan(e * each, each)](
                      ThreadPool&) -> Result<CanonicalMatrix> { return draw(*pool, shape, mine); };
    sources[e].push_back(std::move(source));
  }
  return DescribedMatrix(shape, scheme, std::move(sources), pool);
}

}  // namespace moracle::peers
