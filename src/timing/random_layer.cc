// Random weights at memory speed.
#include "timing/random_layer.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "base/scalar.h"
#include "timing/random_matrix.h"

namespace moracle::timing {
namespace {

// Rows in the pool: enough that neighbours differ, few enough to make quickly.
constexpr int64_t kRows = 256;

// Picks one of `count`, evenly spread and the same on every machine (the finalizer of splitmix64).
int64_t draw(uint64_t seed, int64_t count) {
  seed += 0x9e3779b97f4a7c15;
  seed = (seed ^ (seed >> 30)) * 0xbf58476d1ce4e5b9;
  seed = (seed ^ (seed >> 27)) * 0x94d049bb133111eb;
  return static_cast<int64_t>((seed ^ (seed >> 31)) % static_cast<uint64_t>(count));
}

template <class Value>
void draw_rows(const std::vector<Value>& from, std::vector<Value>& to, int64_t rows, int64_t cols,
               uint64_t seed) {
  const int64_t there = static_cast<int64_t>(from.size()) / std::max<int64_t>(cols, 1);
  if (there == 0) return;
  to.resize(rows * cols);
  for (int64_t r = 0; r < rows; ++r)
    std::copy_n(from.begin() + draw(seed + r, there) * cols, cols, to.begin() + r * cols);
}

CanonicalMatrix draw_matrix(const CanonicalMatrix& pool, const MatrixShape& shape, uint64_t seed) {
  CanonicalMatrix m;
  m.n = shape.n;
  m.k = shape.k;
  m.key = shape.key;
  const int64_t row_bytes = m.row_bytes();
  m.storage.resize(m.n * row_bytes);
  for (int64_t r = 0; r < m.n; ++r) {
    std::memcpy(m.storage.data() + r * row_bytes,
                pool.codes.data() + draw(seed + r, pool.n) * row_bytes, row_bytes);
  }
  m.codes = m.storage;
  if (!pool.scales.empty()) {
    draw_rows(pool.scales, m.scales, m.scale_rows(), m.scale_cols(), seed);
    draw_rows(pool.zero_points, m.zero_points, m.scale_rows(), m.scale_cols(), seed);
    draw_rows(pool.minimums, m.minimums, m.scale_rows(), m.scale_cols(), seed);
    draw_rows(pool.scale_factors, m.scale_factors, m.scale_rows(), m.factor_cols(), seed);
    draw_rows(pool.minimum_factors, m.minimum_factors, m.scale_rows(), m.factor_cols(), seed);
  }
  draw_rows(pool.bias, m.bias, m.n, 1, seed);
  if (shape.group_index) shuffle_groups(m, seed);
  return m;
}

// The mean of -8 to 7 is not 0, so rows of such codes share a component that outweighs the rest.
// All their products then look alike, and routers send all tokens to the same experts.
void balance_nibbles(CanonicalMatrix& m) {
  for (std::byte& two : m.storage) {
    if ((two & std::byte{0x0f}) == std::byte{0x08}) two &= std::byte{0xf0};
    if ((two & std::byte{0xf0}) == std::byte{0x80}) two &= std::byte{0x0f};
  }
  if (m.key.scale_dtype != DType::kI8)
    std::fill(m.zero_points.begin(), m.zero_points.end(), int8_t{0});
}

// Makes the codes normally distributed, as in a checkpoint. The largest codes reach the end of the
// e4m3 range.
void make_normal(CanonicalMatrix& m, uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal(0, 448 / 4.0f);
  for (std::byte& code : m.storage) code = static_cast<std::byte>(float_to_e4m3(normal(engine)));
}

}  // namespace

DescribedMatrix random_experts(const MatrixShape& shape, const Scheme& scheme, int64_t num_experts,
                               uint64_t seed) {
  MatrixShape sample = shape;
  sample.n = std::min(shape.n, kRows);
  CanonicalMatrix rows = random_matrix(sample, seed);
  if (shape.key.dtype == DType::kF8E4M3) make_normal(rows, seed);
  if (shape.key.dtype == DType::kI4) balance_nibbles(rows);
  const auto pool = std::make_shared<const CanonicalMatrix>(std::move(rows));
  std::vector<std::vector<DescribedMatrix::Source>> sources(num_experts);
  for (int64_t e = 0; e < num_experts; ++e) {
    DescribedMatrix::Source source;
    source.n = shape.n;
    source.read = [pool, shape, seed = (seed << 32) + static_cast<uint64_t>(e * shape.n)](
                      ThreadPool&) -> Result<CanonicalMatrix> {
      return draw_matrix(*pool, shape, seed);
    };
    sources[e].push_back(std::move(source));
  }
  DescribedMatrix matrix(shape, scheme, std::move(sources), pool);
  if (scheme.activation && !scheme.activation->dynamic)
    matrix.set_input_scales(std::vector<float>(num_experts, 0.01f));
  return matrix;
}

DescribedWeights random_layer(const LayerSpec& spec, uint64_t seed) {
  const std::vector<MatrixShape> matrices = spec.matrices();
  return {spec, random_experts(matrices[0], spec.scheme, spec.num_experts, 2 * seed),
          random_experts(matrices[1], spec.scheme, spec.num_experts, 2 * seed + 1)};
}

}  // namespace moracle::timing
