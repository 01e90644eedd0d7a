// Compressed attention on every device that has it: a softmax in double over the window and the
// entries.
#include <numeric>

#include "kernels/ops/entry_pages.h"

namespace moracle::attend_compressed_test {
namespace {

struct Case {
  int64_t heads, dim, window, rate, top_k;  // a rate of 0: no entries; a top_k of 0: all entries
};
// Heads in groups that are not whole, columns that are no whole vectors, and rows beyond a page.
constexpr Case kCases[] = {{4, 8, 5, 0, 0},      {3, 10, 16, 2, 0},    {5, 64, 128, 4, 12},
                           {8, 512, 128, 4, 96}, {2, 16, 200, 100, 0}, {6, 24, 1, 4, 7}};

class AttendCompressed : public testing::EntryOpsTest {
 protected:
  struct Rows {
    std::vector<float> q;
    std::vector<std::vector<float>> positions, entries;  // of each sequence
    std::vector<int32_t> selected;                       // ascending; -1 of tokens that see all
  };
  Rows draw(const Case& c, const std::vector<Tokens>& step) {
    Rows rows{normal(count_of(step) * c.heads * c.dim), {}, {}, {}};
    for (const Tokens& one : step) {
      const int64_t length = one.position + one.count;
      rows.positions.push_back(normal(length * c.dim));
      rows.entries.push_back(normal(c.rate == 0 ? 0 : length / c.rate * c.dim));
      for (int64_t i = 0; c.top_k > 0 && i < one.count; ++i) {
        const int64_t seen = (one.position + i + 1) / c.rate;
        std::vector<int32_t> all(std::max(seen, c.top_k), -1);
        if (seen > c.top_k) {
          std::iota(all.begin(), all.end(), 0);
          std::shuffle(all.begin(), all.end(), random_);
          std::sort(all.begin(), all.begin() + c.top_k);
        }
        rows.selected.insert(rows.selected.end(), all.begin(), all.begin() + c.top_k);
      }
    }
    return rows;
  }
  std::vector<float> run(const Case& c, const std::vector<Tokens>& step, const Rows& rows) {
    int64_t longest = 1;
    for (const Tokens& one : step) longest = std::max(longest, one.position + one.count);
    const int64_t rate = std::max<int64_t>(c.rate, 1), count = count_of(step);
    make_pages({rate, c.dim, 8}, longest, std::ssize(step));
    for (size_t s = 0; s < step.size(); ++s) {
      for (int64_t p = 0; p < std::ssize(rows.positions[s]) / c.dim; ++p)
        set(position_row(s, p), &rows.positions[s][p * c.dim], c.dim);
      for (int64_t e = 0; e < std::ssize(rows.entries[s]) / c.dim; ++e)
        set(entry_row(s, e), &rows.entries[s][e * c.dim], c.dim);
    }
    upload_pages();
    CompressedShape shape{.num_heads = c.heads, .head_dim = c.dim, .scale = scale_of(c)};
    shape.window = c.window, shape.rate = c.rate;
    shape.sinks = upload(std::vector<float>(sinks_.begin(), sinks_.begin() + c.heads));
    shape.top_k = c.top_k, shape.cache = cache_;
    if (c.top_k > 0) shape.selected = upload(rows.selected);
    const Matrix out = blank(count, c.heads * c.dim);
    expect_done(ops().attend_compressed(matrix(rows.q, count, c.heads * c.dim), batch(step), shape,
                                        out, {}));
    return floats(out);
  }
  static float scale_of(const Case& c) { return 1 / std::sqrt(static_cast<float>(c.dim)); }

  std::vector<double> want(const Case& c, const Rows& rows, size_t s, int64_t t, int64_t position,
                           int64_t head) const {
    const float* const q = &rows.q[(t * c.heads + head) * c.dim];
    double sum = std::exp(double{sinks_[head]});
    std::vector<double> out(c.dim);
    const auto add = [&](const float* row) {
      const double weight = std::exp(scale_of(c) * std::inner_product(q, q + c.dim, row, 0.0));
      sum += weight;
      for (int64_t i = 0; i < c.dim; ++i) out[i] += weight * row[i];
    };
    for (int64_t p = std::max<int64_t>(0, position - c.window + 1); p <= position; ++p)
      add(&rows.positions[s][p * c.dim]);
    const int64_t seen = c.rate == 0 ? 0 : (position + 1) / c.rate;
    const bool selects = c.top_k > 0 && seen > c.top_k;
    for (int64_t i = 0; i < (selects ? c.top_k : seen); ++i)
      add(&rows.entries[s][(selects ? rows.selected[t * c.top_k + i] : i) * c.dim]);
    for (double& value : out) value /= sum;
    return out;
  }

  std::vector<float> sinks_ = {0.5f, -1, 2, 0.25f, -30, 1, 0, 3};
};

TEST_P(AttendCompressed, MatchesSoftmaxOverWindowAndEntries) {
  const std::vector<Tokens> step = {{0, 9}, {590, 3}, {255, 2}, {399, 1}};
  for (const Case& c : kCases) {
    SCOPED_TRACE(::testing::Message() << c.heads << " heads of " << c.dim << ", rate " << c.rate);
    const Rows rows = draw(c, step);
    const std::vector<float> got = run(c, step, rows);
    int64_t t = 0;
    for (size_t s = 0; s < step.size(); ++s) {
      for (int64_t i = 0; i < step[s].count; ++i, ++t) {
        for (int64_t head = 0; head < c.heads; ++head) {
          const std::vector<double> all = want(c, rows, s, t, step[s].position + i, head);
          // Weights and sums are f32; values are exact.
          for (int64_t d = 0; d < c.dim; ++d) {
            ASSERT_NEAR(got[(t * c.heads + head) * c.dim + d], all[d], bound(all[d], 2e-5))
                << "token " << t << ", head " << head << ", column " << d;
          }
        }
      }
    }
  }
}

TEST_P(AttendCompressed, TokenBitsDependOnlyOnItsSequence) {
  const Case c{5, 64, 128, 4, 12};
  const std::vector<Tokens> step = {{290, 30}, {520, 1}};
  const Rows rows = draw(c, step);
  const std::vector<float> together = run(c, step, rows);
  const Rows second{{rows.q.end() - c.heads * c.dim, rows.q.end()},
                    {rows.positions[1]},
                    {rows.entries[1]},
                    {rows.selected.end() - c.top_k, rows.selected.end()}};
  EXPECT_EQ(run(c, {{520, 1}}, second),
            std::vector<float>(together.end() - c.heads * c.dim, together.end()));
}

MORACLE_ON_EVERY_DEVICE(AttendCompressed);

}  // namespace
}  // namespace moracle::attend_compressed_test
