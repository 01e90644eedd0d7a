// Gated residual streams and rows of n-grams on every device that has them.
#include <numeric>

#include "kernels/kernel_device.h"
#include "kernels/ops/recurrent_step.h"

namespace moracle::gated_streams_test {
namespace {

struct Case {
  int64_t streams, hidden, tokens;
};
constexpr Case kCases[] = {{4, 40, 9}, {2, 6, 3}, {3, 300, 2}};

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

class GatedStreams : public testing::RecurrentOpsTest {
 protected:
  void SetUp() override {
    RecurrentOpsTest::SetUp();
    if (IsSkipped()) return;
    if (device_->platform() == Platform::kOpenCl) GTEST_SKIP() << "OpenCL has no kernels for it";
  }
};

TEST_P(GatedStreams, InjectAddsBranchByWeightOfStream) {
  for (const Case& c : kCases) {
    const int64_t cols = c.streams * c.hidden;
    const std::vector<float> streams = normal(c.tokens * cols),
                             branch = normal(c.tokens * c.hidden),
                             weights = normal(c.tokens * c.streams, 3);
    const Matrix x = matrix(streams, c.tokens, cols);
    expect_done(ops().inject_streams(x, matrix(branch, c.tokens, c.hidden),
                                     matrix(weights, c.tokens, c.streams), {}));
    const std::vector<float> got = floats(x);
    for (int64_t t = 0; t < c.tokens; ++t) {
      for (int64_t i = 0; i < cols; ++i) {
        const double weight =
            2 * sigmoid(weights[t * c.streams + i / c.hidden] / static_cast<double>(c.streams));
        const double want = streams[t * cols + i] + weight * branch[t * c.hidden + i % c.hidden];
        ASSERT_NEAR(got[t * cols + i], want, bound(want, 2e-6)) << "token " << t << ", " << i;
      }
    }
  }
}

double gate_of(double product) {
  const double root = std::sqrt(std::max(std::fabs(product), 1e-6));
  return sigmoid(product > 0 ? root : product < 0 ? -root : 0);
}

TEST_P(GatedStreams, GateScalesValueByProductOfKeyAndQuery) {
  for (const Case& c : kCases) {
    const int64_t cols = c.streams * c.hidden;
    std::vector<float> keys = normal(c.tokens * cols);
    const std::vector<float> queries = normal(c.tokens * cols), value = normal(c.tokens * c.hidden);
    std::fill_n(keys.begin(), c.hidden, 0.0f);  // a product of 0 has a gate of 1 / 2
    const Matrix out = blank(c.tokens, cols);
    expect_done(ops().gate_streams(matrix(keys, c.tokens, cols), matrix(queries, c.tokens, cols),
                                   matrix(value, c.tokens, c.hidden), out, {}));
    const std::vector<float> got = floats(out);
    for (int64_t t = 0; t < c.tokens; ++t) {
      for (int64_t k = 0; k < c.streams; ++k) {
        const int64_t at = t * cols + k * c.hidden;
        double product = 0, magnitude = 0;
        for (int64_t i = 0; i < c.hidden; ++i) {
          const double one = double{keys[at + i]} * queries[at + i];
          product += one, magnitude += std::fabs(one);
        }
        const double root = std::sqrt(static_cast<double>(c.hidden));
        // f32 sums in any order; near 0 the square root enlarges their error. Gates rise.
        const double off = static_cast<double>(c.hidden) * 0x1p-24 * magnitude / root;
        const double gate = gate_of(product / root), low = gate_of(product / root - off),
                     high = gate_of(product / root + off);
        for (int64_t i = 0; i < c.hidden; ++i) {
          const double v = value[t * c.hidden + i], want = gate * v;
          const double most = 2e-6 + std::max(high - gate, gate - low) * std::fabs(v);
          ASSERT_NEAR(got[at + i], want, bound(want, most)) << "token " << t << ", stream " << k;
        }
      }
    }
  }
}

// Texts that end inside a step, and tokens of earlier steps.
TEST_P(GatedStreams, NgramsHashTokensSinceTheBoundary) {
  constexpr int64_t kSize = 4, kHeads = 3, kKept = kSize - 1, kRows = kKept * kHeads;
  constexpr int32_t kBoundary = 5;
  const std::vector<uint64_t> multipliers = {0x9e3779b97f4a7c15u, 3, 0xfedcba9876543211u, 7},
                              sizes = {11, 13, 17, 101, 103, 107, 1009, 1013, 1019},
                              offsets = {0, 11, 24, 41, 142, 245, 352, 1361, 2374};
  NgramShape shape{kSize,     kHeads, upload(multipliers), upload(sizes), upload(offsets),
                   kBoundary, 64};
  const std::vector<std::vector<int32_t>> texts = {{1, 2, 5, 3, 4, 9, 8, 7, 5, 6, 1, 1, 2},
                                                   {30'000, 2, 3, 4, 6, 7, 8, 9}};
  const std::vector<std::vector<int64_t>> steps = {{1, 0}, {1, 5}, {6, 1}, {5, 2}};
  std::byte* states[2][2];
  for (auto& pair : states)
    for (std::byte*& one : pair) one = allocate(64 + kKept * sizeof(int32_t));
  std::vector<int64_t> done = {0, 0};
  for (const std::vector<int64_t>& counts : steps) {
    std::vector<std::byte*> of_step;
    std::vector<int32_t> ids;
    for (size_t s = 0; s < 2; ++s) {
      of_step.push_back(done[s] == 0 ? nullptr : states[s][0]);
      of_step.push_back(states[s][1]);
      ids.insert(ids.end(), texts[s].begin() + done[s], texts[s].begin() + done[s] + counts[s]);
    }
    Batch step = batch(counts, of_step);
    step.ids = upload(ids);
    int32_t* const rows = upload(std::vector<int32_t>(ids.size() * kRows, -1));
    expect_done(ops().hash_ngrams(shape, step, rows, {}));
    const std::vector<int32_t> got = download(rows, std::ssize(ids) * kRows);
    size_t t = 0;
    for (size_t s = 0; s < 2; ++s) {
      for (int64_t i = 0; i < counts[s]; ++i, ++t) {
        uint64_t mixed = 0;
        bool ended = false;
        for (int64_t j = 0; j < kSize; ++j) {
          const int64_t at = done[s] + i - j;
          const int32_t id = at < 0 || ended ? kBoundary : texts[s][at];
          ended = ended || (j > 0 && id == kBoundary);
          mixed ^= static_cast<uint64_t>(id) * multipliers[j];
          for (int64_t h = 0; j > 0 && h < kHeads; ++h) {
            const int64_t head = (j - 1) * kHeads + h;
            ASSERT_EQ(got[t * kRows + head],
                      static_cast<int32_t>(offsets[head] + mixed % sizes[head]))
                << "sequence " << s << ", token " << done[s] + i << ", head " << head;
          }
        }
      }
      done[s] += counts[s];
      if (counts[s] > 0) std::swap(states[s][0], states[s][1]);
    }
  }
}

// Taps lie `dilation` tokens apart, in the step and in the state.
TEST_P(GatedStreams, ConvolutionSkipsTokensBetweenTaps) {
  constexpr int64_t kColumns = 16, kTokens = 40;
  ConvolutionShape shape{3, false, 64};
  shape.dilation = 4;
  const int64_t kept = (shape.kernel - 1) * shape.dilation;
  const std::vector<float> x = normal(kTokens * kColumns), weight = normal(shape.kernel * kColumns);
  const auto bytes = static_cast<size_t>(64 + kept * kColumns * 4);
  std::byte *before = nullptr, *after = allocate(bytes), *other = allocate(bytes);
  int64_t done = 0;
  for (const int64_t count : {3, 1, 1, 20, 15}) {
    const std::vector<float> rows(x.begin() + done * kColumns,
                                  x.begin() + (done + count) * kColumns);
    const Matrix out = blank(count, kColumns);
    expect_done(ops().convolve(matrix(rows, count, kColumns), upload(weight), shape,
                               batch({count}, {before, after}), out, {}));
    const std::vector<float> got = floats(out);
    for (int64_t t = 0; t < count; ++t) {
      for (int64_t c = 0; c < kColumns; ++c) {
        double want = 0;
        for (int64_t j = 0; j < shape.kernel; ++j) {
          const int64_t at = done + t - (shape.kernel - 1 - j) * shape.dilation;
          if (at >= 0) want += double{weight[j * kColumns + c]} * x[at * kColumns + c];
        }
        ASSERT_NEAR(got[t * kColumns + c], want, bound(want, 2e-6)) << "token " << done + t;
      }
    }
    done += count;
    before = after;
    std::swap(after, other);
  }
}

MORACLE_ON_EVERY_DEVICE(GatedStreams);

}  // namespace
}  // namespace moracle::gated_streams_test
