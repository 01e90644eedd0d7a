// Entries of compressed attention on every device that has them: their sums follow the formula in
// double, whatever the steps in which the tokens come.
#include <numeric>

#include "kernels/ops/entry_pages.h"

namespace moracle::compress_ops_test {
namespace {

struct Case {
  int64_t rate, dim;
  bool overlap, normed, index_keys;
  int64_t num_pairs;
  bool interleaved;
};
// A rate beyond the positions of a page, and columns beyond the threads of a block.
constexpr Case kCases[] = {
    {2, 8, true, true, false, 3, true},     {4, 6, true, true, true, 2, false},
    {4, 6, false, false, true, 0, false},   {3, 300, false, true, false, 5, true},
    {100, 16, false, true, false, 4, true}, {70, 10, true, true, false, 1, false}};

// Tokens of each step, of two sequences: single tokens, none, and more than an entry has.
constexpr int64_t kSteps[][2] = {{3, 1}, {1, 0}, {1, 1}, {7, 150}, {200, 2}, {1, 33}};

class CompressOps : public testing::EntryOpsTest {
 protected:
  /// The entry of one sequence in double; `rows` has all its positions.
  static std::vector<double> want(const Case& c, const std::vector<float>& rows,
                                  const std::vector<float>& bias, const std::vector<float>& norm,
                                  const std::vector<float>& frequencies, int64_t entry) {
    const int64_t columns = c.overlap ? 2 * c.dim : c.dim;
    std::vector<double> out(c.dim);
    double squares = 0;
    for (int64_t col = 0; col < c.dim; ++col) {
      double sum = 0, all = 0;
      const auto add = [&](int64_t p, int64_t j, int64_t column) {
        const float* const row = &rows[p * 2 * columns];
        const double weight = std::exp(double{row[columns + column]} + bias[j * columns + column]);
        sum += weight * row[column];
        all += weight;
      };
      const int64_t begin = entry * c.rate;
      for (int64_t j = 0; j < c.rate; ++j) {
        if (c.overlap && entry > 0) add(begin - c.rate + j, j, col);
        add(begin + j, j, c.overlap ? c.dim + col : col);
      }
      out[col] = sum / all;
      squares += out[col] * out[col];
    }
    if (c.normed) {
      const double scale = 1 / std::sqrt(squares / static_cast<double>(c.dim) + kEpsilon);
      for (int64_t col = 0; col < c.dim; ++col) out[col] *= scale * norm[col];
    }
    for (int64_t i = 0; i < c.num_pairs; ++i) {
      const int64_t first = c.dim - 2 * c.num_pairs;
      double& x = out[first + (c.interleaved ? 2 * i : i)];
      double& y = out[first + (c.interleaved ? 2 * i + 1 : i + c.num_pairs)];
      // Devices multiply in f32.
      const double angle = static_cast<float>(entry * c.rate) * frequencies[i];
      const double a = x, b = y;
      x = a * std::cos(angle) - b * std::sin(angle);
      y = b * std::cos(angle) + a * std::sin(angle);
    }
    return out;
  }
  static constexpr float kEpsilon = 1e-6f;
};

TEST_P(CompressOps, EntriesFollowTheFormulaInAnySteps) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(::testing::Message() << "rate " << c.rate << ", " << c.dim << " columns");
    CompressShape shape{.rate = c.rate, .dim = c.dim, .overlap = c.overlap, .epsilon = kEpsilon};
    shape.rotary = {c.dim, c.num_pairs, c.dim - 2 * c.num_pairs, c.interleaved};
    shape.index_keys = c.index_keys;
    shape.state = 64;
    const int64_t columns = shape.columns(), size = 2 * columns;
    int64_t lengths[2] = {0, 0};
    for (const auto& step : kSteps) lengths[0] += step[0], lengths[1] += step[1];
    make_pages({c.rate, c.dim, c.dim}, std::max(lengths[0], lengths[1]), 2);
    upload_pages();
    shape.cache = cache_;
    const std::vector<float> all[] = {normal(lengths[0] * size), normal(lengths[1] * size)};
    const std::vector<float> bias = normal(c.rate * columns), norm = normal(c.dim),
                             frequencies = {1, 0.3f, 0.1f, 0.03f, 0.01f};
    const CompressWeights weights{upload(bias), c.normed ? upload(norm) : nullptr,
                                  upload(frequencies)};
    const auto bytes = static_cast<size_t>(64 + compress_state_bytes(shape));
    std::byte* states[2][2] = {{allocate(bytes), allocate(bytes)},
                               {allocate(bytes), allocate(bytes)}};
    int64_t done[2] = {0, 0};
    for (const auto& step : kSteps) {
      std::vector<float> rows;
      std::vector<Tokens> tokens;
      std::vector<std::byte*> of_step;
      for (int s = 0; s < 2; ++s) {
        tokens.push_back({done[s], step[s]});
        of_step.push_back(done[s] == 0 ? nullptr : states[s][0]);
        of_step.push_back(states[s][1]);
        rows.insert(rows.end(), all[s].begin() + done[s] * size,
                    all[s].begin() + (done[s] + step[s]) * size);
        done[s] += step[s];
        if (step[s] > 0) std::swap(states[s][0], states[s][1]);
      }
      expect_done(ops().compress(matrix(rows, count_of(tokens), size), weights, shape,
                                 batch(tokens, of_step), {}));
      expect_done(device_->synchronize());
    }
    download_pages();
    for (size_t s = 0; s < 2; ++s) {
      for (int64_t e = 0; e < lengths[s] / c.rate; ++e) {
        const std::vector<double> sums = want(c, all[s], bias, norm, frequencies, e);
        const std::vector<float> got =
            get(c.index_keys ? entry_key_row(s, e) : entry_row(s, e), c.dim);
        // Sums in f32 of up to 140 rows, times a norm and a rotation.
        for (int64_t col = 0; col < c.dim; ++col)
          ASSERT_NEAR(got[col], sums[col], bound(sums[col], 2e-5)) << "entry " << e << ", " << col;
      }
    }
  }
}

// Without gates, values alone come and are kept.
TEST_P(CompressOps, AverageIsTheMeanOfValues) {
  constexpr int64_t kRate = 4, kDim = 6, kLength = 23;
  CompressShape shape{.rate = kRate, .dim = kDim, .overlap = false, .epsilon = kEpsilon};
  shape.average = true;
  make_pages({kRate, kDim, kDim}, kLength, 1);
  upload_pages();
  shape.cache = cache_;
  const std::vector<float> all = normal(kLength * kDim), norm = normal(kDim);
  const CompressWeights weights{nullptr, upload(norm), nullptr};
  const auto bytes = static_cast<size_t>(compress_state_bytes(shape));
  std::byte *before = nullptr, *after = allocate(bytes), *other = allocate(bytes);
  int64_t done = 0;
  for (const int64_t count : {3, 1, 1, 2, 16}) {
    const std::vector<float> rows(all.begin() + done * kDim, all.begin() + (done + count) * kDim);
    expect_done(ops().compress(matrix(rows, count, kDim), weights, shape,
                               batch({{done, count}}, {before, after}), {}));
    expect_done(device_->synchronize());
    done += count;
    before = after;
    std::swap(after, other);
  }
  download_pages();
  for (int64_t e = 0; e < kLength / kRate; ++e) {
    std::vector<double> want(kDim);
    double squares = 0;
    for (int64_t c = 0; c < kDim; ++c) {
      for (int64_t j = 0; j < kRate; ++j) want[c] += all[(e * kRate + j) * kDim + c] / 4.0;
      squares += want[c] * want[c];
    }
    const double scale = 1 / std::sqrt(squares / kDim + kEpsilon);
    const std::vector<float> got = get(entry_row(0, e), kDim);
    for (int64_t c = 0; c < kDim; ++c) {
      const double value = want[c] * scale * norm[c];
      ASSERT_NEAR(got[c], value, bound(value, 2e-5)) << "entry " << e;
    }
  }
}

// An entry that is not complete has no row, and the rows of positions stay as they are.
TEST_P(CompressOps, WritesNoOtherRows) {
  CompressShape shape{.rate = 4, .dim = 6, .overlap = false, .epsilon = kEpsilon};
  make_pages({4, 6, 6}, 8, 1);
  upload_pages();
  shape.cache = cache_;
  std::byte* const after = allocate(static_cast<size_t>(compress_state_bytes(shape)));
  const CompressWeights weights{upload(normal(4 * 6)), nullptr, nullptr};
  expect_done(ops().compress(matrix(normal(7 * 12), 7, 12), weights, shape,
                             batch({{0, 7}}, {nullptr, after}), {}));
  expect_done(device_->synchronize());
  download_pages();
  for (const float value : get(entry_row(0, 0), 6)) EXPECT_FALSE(std::isnan(value));
  for (const float value : get(entry_row(0, 1), 6)) EXPECT_TRUE(std::isnan(value));
  for (const float value : get(entry_key_row(0, 0), 6)) EXPECT_TRUE(std::isnan(value));
  for (const float value : get(position_row(0, 0), 6)) EXPECT_TRUE(std::isnan(value));
}

MORACLE_ON_EVERY_DEVICE(CompressOps);

// ---- the indexer ----

class SelectEntries : public testing::EntryOpsTest {
 protected:
  struct Rows {
    std::vector<float> q, weights;
    std::vector<std::vector<float>> keys;  // of all entries of each sequence
  };
  Rows draw(const EntryIndexShape& shape, const std::vector<Tokens>& step) {
    const int64_t count = count_of(step);
    Rows rows{
        normal(count * shape.num_heads * shape.head_dim), normal(count * shape.num_heads), {}};
    for (const Tokens& one : step)
      rows.keys.push_back(normal((one.position + one.count) / shape.rate * shape.head_dim));
    return rows;
  }
  std::vector<int32_t> run(EntryIndexShape shape, const std::vector<Tokens>& step,
                           const Rows& rows) {
    const int64_t count = count_of(step);
    int64_t longest = 1;
    for (const Tokens& one : step) longest = std::max(longest, one.position + one.count);
    make_pages({shape.rate, 8, shape.head_dim}, longest, std::ssize(step));
    for (size_t s = 0; s < step.size(); ++s) {
      for (int64_t e = 0; e < std::ssize(rows.keys[s]) / shape.head_dim; ++e)
        set(entry_key_row(s, e), &rows.keys[s][e * shape.head_dim], shape.head_dim);
    }
    upload_pages();
    shape.cache = cache_;
    int32_t* const selected = upload(std::vector<int32_t>(count * shape.top_k, -1));
    expect_done(ops().select_entries(matrix(rows.q, count, shape.num_heads * shape.head_dim),
                                     matrix(rows.weights, count, shape.num_heads), batch(step),
                                     shape, selected, allocate(select_scratch_bytes(dtype())), {}));
    return download(selected, count * shape.top_k);
  }
};

// Tokens that see fewer entries than the top-k, as many, and more; several pages.
TEST_P(SelectEntries, FindsTopKOfScoresInOrder) {
  const std::vector<Tokens> step = {{0, 40}, {700, 9}, {1300, 1}};
  for (const int64_t rate : {2, 4, 70}) {
    for (const auto& [heads, dim] : {std::pair<int64_t, int64_t>{3, 6}, {8, 20}, {16, 128}}) {
      EntryIndexShape shape{.num_heads = heads, .head_dim = dim, .top_k = 10, .rate = rate};
      shape.scale = 1 / std::sqrt(static_cast<float>(heads * dim));
      const Rows rows = draw(shape, step);
      const std::vector<int32_t> selected = run(shape, step, rows);
      size_t t = 0;
      for (size_t s = 0; s < step.size(); ++s) {
        for (int64_t i = 0; i < step[s].count; ++i, ++t) {
          const int64_t seen = (step[s].position + i + 1) / rate;
          const auto own = selected.begin() + static_cast<int64_t>(t) * shape.top_k;
          const std::vector<int32_t> got(own, own + shape.top_k);
          if (seen <= shape.top_k) {
            EXPECT_EQ(got, std::vector<int32_t>(shape.top_k, -1)) << "sees all entries";
            continue;
          }
          ASSERT_TRUE(std::is_sorted(got.begin(), got.end(), std::less_equal<>())) << t;
          ASSERT_GE(got.front(), 0);
          ASSERT_LT(got.back(), seen);
          double chosen = INFINITY, left = -INFINITY;
          for (int32_t e = 0; e < seen; ++e) {
            double score = 0;
            for (int64_t h = 0; h < heads; ++h) {
              const float* const q = &rows.q[(t * heads + h) * dim];
              score += double{rows.weights[t * heads + h]} *
                       std::max(0.0, std::inner_product(q, q + dim, &rows.keys[s][e * dim], 0.0));
            }
            score *= shape.scale;
            const bool is_chosen = std::binary_search(got.begin(), got.end(), e);
            (is_chosen ? chosen : left) =
                is_chosen ? std::min(chosen, score) : std::max(left, score);
          }
          // Products of exact inputs, summed in f32.
          EXPECT_GE(chosen, left - 1e-4) << heads << " heads, token " << t;
        }
      }
    }
  }
}

// Weights of 0 make all scores equal.
TEST_P(SelectEntries, LowerEntriesComeFirstAmongEqualScores) {
  EntryIndexShape shape{.num_heads = 16, .head_dim = 128, .top_k = 8, .rate = 4, .scale = 1};
  shape.batch_invariant = true;
  const std::vector<Tokens> step = {{290, 2}, {37, 1}};
  Rows rows = draw(shape, step);
  std::fill(rows.weights.begin(), rows.weights.end(), 0.0f);
  const std::vector<int32_t> selected = run(shape, step, rows);
  for (size_t i = 0; i < selected.size(); ++i) EXPECT_EQ(selected[i], static_cast<int32_t>(i % 8));
}

MORACLE_ON_EVERY_DEVICE(SelectEntries);

}  // namespace
}  // namespace moracle::compress_ops_test
