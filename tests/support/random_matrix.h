// Random weights in canonical form, and their values.
#pragma once

#include <random>
#include <vector>

#include "quant/codec.h"

namespace moracle::testing {

/// [n, k] weights with random codes, scales from 0.25, and zero points from -8 to
/// `most_zero_point`.
inline CanonicalMatrix random_matrix(const QuantKey& key, int64_t n, int64_t k,
                                     std::mt19937& random, int most_zero_point) {
  CanonicalMatrix m;
  m.n = n;
  m.k = k;
  m.key = key;
  m.storage.resize(n * m.row_bytes());
  for (std::byte& byte : m.storage) byte = static_cast<std::byte>(random());
  m.codes = m.storage;
  m.scales.resize(n * m.scale_cols());
  for (float& scale : m.scales) scale = 0.25f + static_cast<float>(random() % 97);
  if (!key.symmetric) m.zero_points.resize(m.scales.size());
  for (int8_t& zero : m.zero_points)
    zero = static_cast<int8_t>(static_cast<int>(random() % (most_zero_point + 9)) - 8);
  return m;
}

/// The dequantized values, [n, k].
inline std::vector<double> values(const CanonicalMatrix& m) {
  std::vector<double> all(m.n * m.k);
  for (int64_t r = 0; r < m.n; ++r) dequantize_row(m, r, all.data() + r * m.k);
  return all;
}

}  // namespace moracle::testing
