// Sparse attention on every device: the indexer's top-k follows its formula, for positions and for
// blocks of them, and tokens attend to the selected ones only.
#include <algorithm>
#include <numeric>

#include "kernels/kernel_device.h"
#include "kernels/ops/device_ops.h"
#include "kernels/ops/paged.h"

namespace moracle::sparse_attend_test {
namespace {

using testing::PagedCaches;
using Tokens = std::vector<PagedCaches::Tokens>;

int64_t count_of(const Tokens& step) {
  int64_t count = 0;
  for (const auto& one : step) count += one.count;
  return count;
}
/// The sequence and position of each token.
std::vector<std::pair<size_t, int64_t>> places_of(const Tokens& step) {
  std::vector<std::pair<size_t, int64_t>> places;
  for (const auto& one : step)
    for (int64_t i = 0; i < one.count; ++i) places.emplace_back(one.sequence, one.position + i);
  return places;
}
std::vector<int64_t> capacities_of(const Tokens& step) {
  std::vector<int64_t> capacities;
  for (const auto& one : step) capacities.push_back(one.position + one.count);
  return capacities;
}

class SparseOps : public testing::DeviceOpsTest {
 protected:
  int64_t page() { return std::min<int64_t>(256, cache_page(device_->platform())); }
};

// ---- the indexer ----

struct IndexRows {
  std::vector<float> q, weights, k;      ///< of the step
  std::vector<std::vector<float>> keys;  ///< of all positions of each sequence
};

class SelectPositions : public SparseOps {
 protected:
  IndexRows draw(const IndexShape& shape, const Tokens& step) {
    const int64_t count = count_of(step), dim = shape.head_dim;
    IndexRows rows{normal(count * shape.num_heads * dim), normal(count * shape.num_heads), {}, {}};
    for (const auto& one : step) {
      const std::vector<float>& keys =
          rows.keys.emplace_back(normal((one.position + one.count) * dim));
      rows.k.insert(rows.k.end(), keys.begin() + one.position * dim, keys.end());
    }
    return rows;
  }
  /// Appends the step's keys, then selects. Rows that are not written hold -1.
  std::vector<int32_t> run(IndexShape shape, const Tokens& step, const IndexRows& rows,
                           bool by_block = false) {
    const int64_t count = count_of(step), dim = shape.head_dim;
    PagedCaches caches(capacities_of(step), dim, 0, dtype(), page());
    for (const auto& one : step)
      for (int64_t i = 0; i < one.position; ++i)
        caches.set(caches.key(one.sequence, i), &rows.keys[one.sequence][i * dim], dim);
    caches.upload(*device_);
    const Batch& batch = caches.batch_there(step, *device_);
    shape.cache.index_keys = caches.layer().keys;
    shape.cache.index_dtype = dtype();
    expect_done(ops().append_index(matrix(rows.k, count, dim), batch, shape.cache, {}));
    std::byte* const scratch = allocate(select_scratch_bytes(dtype()));
    if (by_block) {
      const int64_t entries = count * shape.num_heads * (shape.top_k / shape.block);
      int32_t* const blocks = upload(std::vector<int32_t>(entries, -1));
      expect_done(ops().select_blocks(matrix(rows.q, count, shape.num_heads * dim), batch, shape,
                                      blocks, scratch, {}));
      return download(blocks, entries);
    }
    int32_t* const selected = upload(std::vector<int32_t>(count * shape.top_k, -1));
    expect_done(ops().select_positions(matrix(rows.q, count, shape.num_heads * dim),
                                       matrix(rows.weights, count, shape.num_heads), batch, shape,
                                       selected, scratch, {}));
    return download(selected, count * shape.top_k);
  }
  static std::vector<double> scores(const IndexShape& shape, const float* q, const float* weights,
                                    const std::vector<float>& keys, int64_t count) {
    std::vector<double> all(count);
    for (int64_t j = 0; j < count; ++j) {
      for (int64_t h = 0; h < shape.num_heads; ++h) {
        const float* const query = q + h * shape.head_dim;
        const double product =
            std::inner_product(query, query + shape.head_dim, &keys[j * shape.head_dim], 0.0);
        all[j] += double{weights[h]} * std::max(0.0, product);
      }
      all[j] *= shape.scale;
    }
    return all;
  }
  static IndexShape shape_of(int64_t heads, int64_t dim, int64_t top_k) {
    return {heads, dim, top_k, 1 / std::sqrt(static_cast<float>(heads * dim)), {}};
  }
};

// Positions before the top-k, at it and behind it; several tokens and pages; contexts in which the
// top-k is a small part.
const Tokens kSteps[] = {
    {{0, 0, 40}},
    {{0, 5, 1}, {1, 300, 1}, {2, 31, 3}, {3, 32, 1}},
    {{0, 250, 20}, {1, 700, 9}},
    {{0, 4500, 2}},
};

TEST_P(SelectPositions, FindsTopKOfScoresInOrder) {
  for (const auto& [heads, dim] : {std::pair<int64_t, int64_t>{3, 6}, {8, 20}, {32, 128}}) {
    const IndexShape shape = shape_of(heads, dim, 32);
    for (const Tokens& step : kSteps) {
      const IndexRows rows = draw(shape, step);
      const std::vector<int32_t> selected = run(shape, step, rows);
      const auto places = places_of(step);
      for (size_t t = 0; t < places.size(); ++t) {
        const auto& [sequence, position] = places[t];
        const auto own = selected.begin() + static_cast<int64_t>(t) * shape.top_k;
        const std::vector<int32_t> got(own, own + shape.top_k);
        if (position < shape.top_k) {
          EXPECT_EQ(got, std::vector<int32_t>(shape.top_k, -1)) << "sees all positions";
          continue;
        }
        ASSERT_TRUE(std::is_sorted(got.begin(), got.end(), std::less_equal<>())) << position;
        ASSERT_GE(got.front(), 0);
        ASSERT_LE(got.back(), position);
        std::vector<double> all = scores(shape, &rows.q[t * heads * dim], &rows.weights[t * heads],
                                         rows.keys[sequence], position + 1);
        double chosen = INFINITY, left = -INFINITY;
        for (int32_t j = 0; j <= position; ++j) {
          if (std::binary_search(got.begin(), got.end(), j))
            chosen = std::min(chosen, all[j]);
          else
            left = std::max(left, all[j]);
        }
        EXPECT_GE(chosen, left - 1e-4) << heads << " heads, position " << position;
      }
    }
  }
}

// Weights of 0 make all scores equal.
TEST_P(SelectPositions, LowerPositionsComeFirstAmongEqualScores) {
  IndexShape shape = shape_of(16, 128, 32);
  shape.batch_invariant = true;
  const Tokens step = {{0, 290, 2}, {1, 33, 1}};
  IndexRows rows = draw(shape, step);
  std::fill(rows.weights.begin(), rows.weights.end(), 0.0f);
  std::vector<int32_t> first(shape.top_k);
  std::iota(first.begin(), first.end(), 0);
  const std::vector<int32_t> selected = run(shape, step, rows);
  for (int64_t t = 0; t < 3; ++t) {
    EXPECT_EQ(std::vector<int32_t>(selected.begin() + t * shape.top_k,
                                   selected.begin() + (t + 1) * shape.top_k),
              first);
  }
}

// torch.topk(torch.zeros(n), k), with -inf past the token: n is the length of the sequence after
// the step.
constexpr int32_t kTorchChoice[] = {1, 5, 6, 7, 5, 6, 7, 8, 0, 1, 2, 3};
TEST_P(SelectPositions, CpuChoosesAmongEqualScoresAsTorch) {
  if (!is_cpu()) GTEST_SKIP() << "other devices take the lower positions";
  const IndexShape shape = shape_of(16, 128, 4);
  const Tokens step = {{0, 8, 2}, {1, 299, 1}};
  IndexRows rows = draw(shape, step);
  std::fill(rows.weights.begin(), rows.weights.end(), 0.0f);
  const std::vector<int32_t> selected = run(shape, step, rows);
  EXPECT_EQ(selected, std::vector<int32_t>(std::begin(kTorchChoice), std::end(kTorchChoice)));
}

// A key with a NaN has a score of NaN, which comes before all numbers.
TEST_P(SelectPositions, NanIsSelected) {
  const IndexShape shape = shape_of(16, 128, 32);
  const Tokens step = {{0, 290, 1}};
  IndexRows rows = draw(shape, step);
  rows.keys[0][77 * shape.head_dim + 3] = NAN;
  const std::vector<int32_t> selected = run(shape, step, rows);
  EXPECT_TRUE(std::binary_search(selected.begin(), selected.end(), 77));
}

TEST_P(SelectPositions, DependOnlyOnTheirSequence) {
  const IndexShape shape = shape_of(16, 128, 64);
  const Tokens both = {{0, 610, 9}, {1, 120, 1}};
  const IndexRows rows = draw(shape, both);
  const std::vector<int32_t> together = run(shape, both, rows);
  const IndexRows second{{rows.q.end() - 16 * 128, rows.q.end()},
                         {rows.weights.end() - 16, rows.weights.end()},
                         {rows.k.end() - 128, rows.k.end()},
                         {rows.keys[1]}};
  EXPECT_EQ(run(shape, {{0, 120, 1}}, second),
            std::vector<int32_t>(together.end() - shape.top_k, together.end()));
}

MORACLE_ON_EVERY_DEVICE(SelectPositions);

// ---- the indexer of blocks ----

class SelectBlocks : public SelectPositions {
 protected:
  static IndexShape shape_of(int64_t heads, int64_t dim, int64_t top_k, int64_t block,
                             int64_t local_blocks) {
    IndexShape shape{heads, dim, top_k, 1, {}};
    shape.block = block, shape.local_blocks = local_blocks;
    return shape;
  }
  /// The largest product of each block up to the token's own.
  static std::vector<double> block_scores(const IndexShape& shape, const float* query,
                                          const std::vector<float>& keys, int64_t position) {
    std::vector<double> all(position / shape.block + 1, -INFINITY);
    for (int64_t j = 0; j <= position; ++j) {
      double& most = all[j / shape.block];
      most = std::max(
          most, std::inner_product(query, query + shape.head_dim, &keys[j * shape.head_dim], 0.0));
    }
    const auto count = static_cast<int64_t>(all.size());
    for (int64_t b = std::max<int64_t>(0, count - shape.local_blocks); b < count; ++b)
      all[b] = INFINITY;
    return all;
  }
  void check(const IndexShape& shape, const Tokens& step) {
    const IndexRows rows = draw(shape, step);
    const std::vector<int32_t> selected = run(shape, step, rows, true);
    const auto places = places_of(step);
    const int64_t k = shape.top_k / shape.block;
    for (size_t row = 0; row < places.size() * shape.num_heads; ++row) {
      const auto& [sequence, position] = places[row / shape.num_heads];
      const auto own = selected.begin() + static_cast<int64_t>(row) * k;
      const std::vector<int32_t> got(own, own + k);
      if (position < shape.top_k) {
        EXPECT_EQ(got, std::vector<int32_t>(k, -1)) << "sees all positions";
        continue;
      }
      const std::vector<double> all =
          block_scores(shape, &rows.q[row * shape.head_dim], rows.keys[sequence], position);
      ASSERT_TRUE(std::is_sorted(got.begin(), got.end(), std::less_equal<>())) << position;
      ASSERT_GE(got.front(), 0);
      ASSERT_LT(got.back(), std::ssize(all));
      double chosen = INFINITY, left = -INFINITY;
      for (int32_t b = 0; b < std::ssize(all); ++b) {
        const bool is_chosen = std::binary_search(got.begin(), got.end(), b);
        (is_chosen ? chosen : left) = is_chosen ? std::min(chosen, all[b]) : std::max(left, all[b]);
      }
      EXPECT_GE(chosen, left - 1e-4) << "row " << row << ", position " << position;
    }
  }
};

TEST_P(SelectBlocks, FindsTopKOfEachHeadInOrder) {
  for (const Tokens& step : kSteps) {
    check(shape_of(1, 6, 32, 8, 1), step);
    check(shape_of(2, 20, 32, 16, 0), step);
    check(shape_of(3, 8, 33, 11, 2), step);
    check(shape_of(4, 128, 256, 128, 1), step);
    check(shape_of(2, 16, 30, 1, 3), step);
  }
}

// Queries of 0 make all scores equal.
TEST_P(SelectBlocks, LowerBlocksComeFirstAmongEqualScores) {
  IndexShape shape = shape_of(2, 16, 32, 8, 1);
  shape.batch_invariant = true;
  const Tokens step = {{0, 290, 2}, {1, 33, 1}};
  IndexRows rows = draw(shape, step);
  std::fill(rows.q.begin(), rows.q.end(), 0.0f);
  std::vector<int32_t> want;
  for (const int32_t own : {290 / 8, 291 / 8, 33 / 8})
    for (int head = 0; head < 2; ++head) want.insert(want.end(), {0, 1, 2, own});
  EXPECT_EQ(run(shape, step, rows, true), want);
}

TEST_P(SelectBlocks, NanIsSelected) {
  const IndexShape shape = shape_of(1, 16, 32, 8, 1);
  const Tokens step = {{0, 290, 1}};
  IndexRows rows = draw(shape, step);
  rows.keys[0][77 * shape.head_dim + 3] = NAN;
  const std::vector<int32_t> selected = run(shape, step, rows, true);
  EXPECT_TRUE(std::binary_search(selected.begin(), selected.end(), 77 / 8));
}

MORACLE_ON_EVERY_DEVICE(SelectBlocks);

// ---- attention ----

struct Rows {
  std::vector<float> q;
  std::vector<std::vector<float>> keys, values;  ///< of all positions of each sequence
  std::vector<int32_t> selected;                 ///< ascending; -1 of tokens that see everything
};

class AttendSelected : public SparseOps {
 protected:
  Rows draw(const AttentionShape& shape, const Tokens& step) {
    Rows rows;
    rows.q = normal(count_of(step) * shape.num_heads * shape.head_dim);
    for (const auto& one : step) {
      const int64_t count = one.position + one.count;
      rows.keys.push_back(normal(count * shape.num_kv_heads * shape.head_dim));
      rows.values.push_back(normal(count * shape.num_kv_heads * shape.value_dim));
    }
    const int64_t k = shape.top_k / shape.block;
    for (const auto& [sequence, position] : places_of(step)) {
      for (int64_t s = 0; s < shape.selections; ++s) {
        const int64_t blocks = (position + (shape.pools ? 1 : shape.block)) / shape.block;
        std::vector<int32_t> all(std::max(blocks, k), -1);
        if (position >= shape.first_selecting()) {
          std::iota(all.begin(), all.end(), 0);
          std::shuffle(all.begin(), all.end(), random_);
          std::sort(all.begin(), all.begin() + k);
        }
        rows.selected.insert(rows.selected.end(), all.begin(), all.begin() + k);
      }
    }
    return rows;
  }
  std::vector<float> run(AttentionShape shape, const Tokens& step, const Rows& rows, DType cache) {
    const int64_t count = count_of(step), key_row = shape.num_kv_heads * shape.head_dim,
                  value_row = shape.num_kv_heads * shape.value_dim;
    PagedCaches caches(capacities_of(step), key_row, value_row, cache, page(), shape.num_kv_heads);
    caches.upload(*device_);
    shape.cache = caches.layer();
    // Fills the caches in a step of its own.
    std::vector<float> keys, values;
    Tokens all = step;
    for (auto& one : all) {
      one.count += one.position, one.position = 0;
      const auto& own_keys = rows.keys[one.sequence];
      const auto& own_values = rows.values[one.sequence];
      keys.insert(keys.end(), own_keys.begin(), own_keys.end());
      values.insert(values.end(), own_values.begin(), own_values.end());
    }
    const int64_t positions = count_of(all);
    expect_done(ops().append(matrix(keys, positions, key_row), matrix(values, positions, value_row),
                             caches.batch_there(all, *device_), shape.cache, {}));
    expect_done(device_->synchronize());
    const Batch& batch = caches.batch_there(step, *device_);
    shape.selected = upload(rows.selected);
    if (shape.sinks != nullptr) shape.sinks = upload(sinks_);
    const Matrix out = blank(count, shape.num_heads * shape.value_dim);
    expect_done(ops().attend(matrix(rows.q, count, shape.num_heads * shape.head_dim), batch, shape,
                             out, allocate(attend_scratch_bytes(shape, count, dtype())), {}));
    return floats(out);
  }
  /// The softmax over the visible positions, in double.
  std::vector<double> want(const AttentionShape& shape, const Tokens& step, const Rows& rows,
                           size_t t, int64_t head) const {
    const auto place = places_of(step)[t];
    const size_t sequence = place.first;
    const int64_t position = place.second;
    const int64_t kv = head / (shape.num_heads / shape.num_kv_heads);
    const float* const q = &rows.q[(t * shape.num_heads + head) * shape.head_dim];
    double sum = shape.sinks == nullptr ? 0 : std::exp(double{sinks_[head]});
    std::vector<double> out(shape.value_dim);
    const bool all = position < shape.first_selecting();
    const int64_t behind = shape.pools ? (position + 1) % shape.block : 0;  // the last whole pool
    const int64_t selection =
        static_cast<int64_t>(t) * shape.selections + kv * shape.selections / shape.num_kv_heads;
    const auto position_at = [&](int64_t i) {
      if (all) return i;
      if (i >= shape.top_k) return position + 1 - behind + i - shape.top_k;
      const int64_t entry = selection * (shape.top_k / shape.block) + i / shape.block;
      return rows.selected[entry] * shape.block + i % shape.block;
    };
    for (int64_t i = 0; i < (all ? position + 1 : shape.top_k + behind); ++i) {
      const int64_t j = position_at(i);
      if (j > position) continue;  // the end of the token's own block
      const int64_t row = j * shape.num_kv_heads + kv;
      const double weight = std::exp(
          shape.scale * std::inner_product(q, q + shape.head_dim,
                                           &rows.keys[sequence][row * shape.head_dim], 0.0));
      sum += weight;
      for (int64_t c = 0; c < shape.value_dim; ++c)
        out[c] += weight * rows.values[sequence][row * shape.value_dim + c];
    }
    for (double& value : out) value /= sum;
    return out;
  }
  void check(const AttentionShape& shape, const Tokens& step, DType cache, double error) {
    const Rows rows = draw(shape, step);
    const std::vector<float> got = run(shape, step, rows, cache);
    for (size_t t = 0; t < places_of(step).size(); ++t) {
      for (int64_t head = 0; head < shape.num_heads; ++head) {
        const std::vector<double> all = want(shape, step, rows, t, head);
        for (int64_t c = 0; c < shape.value_dim; ++c) {
          ASSERT_NEAR(got[(t * shape.num_heads + head) * shape.value_dim + c], all[c], error)
              << "token " << t << ", head " << head << ", column " << c;
        }
      }
    }
  }
  static AttentionShape shape_of(int64_t heads, int64_t kv_heads, int64_t head_dim,
                                 int64_t value_dim, int64_t top_k) {
    AttentionShape shape{heads, kv_heads, head_dim, value_dim,
                         1 / std::sqrt(static_cast<float>(head_dim))};
    shape.top_k = top_k;
    return shape;
  }
  /// Results are rounded to the activation dtype; exponentials of devices differ.
  double error() const { return is_cpu() ? 5e-6 : 1e-2; }

  std::vector<float> sinks_ = {0.5f, -1, 2, 0.25f};
};

TEST_P(AttendSelected, MatchesSoftmaxOverSelection) {
  for (const Tokens& step : kSteps) {
    check(shape_of(4, 4, 10, 8, 32), step, dtype(), error());
    check(shape_of(4, 2, 16, 24, 32), step, dtype(), error());
  }
}

// Several KV blocks, or splits, of selected positions.
TEST_P(AttendSelected, MatchesSoftmaxOverLongSelection) {
  const Tokens step = {{0, 1500, 3}, {1, 590, 30}, {2, 20, 2}};
  check(shape_of(2, 2, 192, 128, 600), step, dtype(), error());
  check(shape_of(2, 2, 64, 40, 1300), step, dtype(), error());
}

// Each half of the heads of keys, or all of them, have a selection. The last block of some tokens
// is their own, which ends with them.
TEST_P(AttendSelected, MatchesSoftmaxOverSelectedBlocks) {
  for (const Tokens& step : kSteps) {
    for (const int64_t selections : {1, 2, 4}) {
      AttentionShape shape = shape_of(8, 4, 16, 24, 32);
      shape.block = 8, shape.selections = selections;
      check(shape, step, dtype(), error());
    }
  }
  const Tokens step = {{0, 1500, 3}, {1, 590, 80}, {2, 20, 2}};
  AttentionShape shape = shape_of(4, 2, 64, 40, 600);
  shape.block = 100, shape.selections = 2;
  check(shape, step, dtype(), error());
}

// Tokens also see the positions behind the last whole pool.
TEST_P(AttendSelected, MatchesSoftmaxOverSelectedPools) {
  if (device_->platform() == Platform::kOpenCl) GTEST_SKIP() << "OpenCL has no kernels for it";
  const Tokens step = {{0, 1500, 5}, {1, 590, 80}, {2, 31, 6}};
  for (const auto& [block, top_k] : {std::pair<int64_t, int64_t>{4, 32}, {3, 600}, {100, 500}}) {
    AttentionShape shape = shape_of(4, 2, 64, 40, top_k);
    shape.block = block, shape.pools = true;
    check(shape, step, dtype(), error());
    for (const Tokens& other : kSteps) check(shape, other, dtype(), error());
  }
}

TEST_P(AttendSelected, SinksEnterTheSum) {
  AttentionShape shape = shape_of(4, 2, 16, 24, 32);
  shape.sinks = sinks_.data();
  check(shape, kSteps[1], dtype(), error());
}

TEST_P(AttendSelected, ReadsNarrowCaches) {
  for (const DType cache : {DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kI8}) {
    if (cache == DType::kI8 && !is_cpu()) continue;
    if (cache == DType::kF8E4M3 && device_->platform() == Platform::kOpenCl) continue;
    const double rounding = cache == DType::kF8E4M3 ? 0.4 : 0.05;
    check(shape_of(4, 2, 16, 24, 32), kSteps[1], cache, rounding);
  }
}

TEST_P(AttendSelected, TokenBitsDependOnlyOnItsSequence) {
  const AttentionShape shape = shape_of(4, 2, 16, 24, 300);
  const Tokens both = {{0, 290, 30}, {1, 520, 1}};
  const Rows rows = draw(shape, both);
  const std::vector<float> together = run(shape, both, rows, dtype());
  const Rows second{{rows.q.end() - 4 * 16, rows.q.end()},
                    {rows.keys[1]},
                    {rows.values[1]},
                    {rows.selected.end() - 300, rows.selected.end()}};
  EXPECT_EQ(run(shape, {{0, 520, 1}}, second, dtype()),
            std::vector<float>(together.end() - 4 * 24, together.end()));
}

MORACLE_ON_EVERY_DEVICE(AttendSelected);

}  // namespace
}  // namespace moracle::sparse_attend_test
