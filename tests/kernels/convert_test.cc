// Tests conversion in isolation: from a description to packed weights, and its errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "base/text.h"
#include "kernels/convert_cases.h"
#include "kernels/weights/kernel_weights.h"

namespace moracle::convert_test {
namespace {

DescribedMatrix described(const Scheme& scheme, std::vector<float> input_scales) {
  std::vector<CanonicalMatrix> experts;
  for (int e = 0; e < 3; ++e)
    experts.push_back(conformance::random_matrix({.n = 8, .k = 64, .key = scheme.weight}, e));
  DescribedMatrix matrix = DescribedMatrix::from(scheme, std::move(experts));
  matrix.set_input_scales(std::move(input_scales));
  return matrix;
}

// Static schemes store one input scale per expert; MXFP8 has none. A static scheme without input
// scales would have no multiplier.
TEST(Convert, RequiresInputScalesOnlyForSchemesWithThem) {
  const Scheme fixed{kFp8StaticChannelSym, kFp8StaticTensorSym}, mxfp8{kMxfp8Static, kMxfp8Dynamic},
      weight_only{kMxfp8Static, {}};
  const auto device = *open_device("cpu", 1);
  for (const Layout* layout : layouts()) {
    for (const Scheme& scheme : {fixed, mxfp8, weight_only}) {
      if (!holds(*layout, scheme.weight.dtype)) continue;
      const size_t right = scheme == fixed ? 3 : 0;
      for (size_t count : {0, 1, 2, 3, 4}) {
        const auto weights =
            convert(described(scheme, std::vector<float>(count, 0.5f)), *layout, *device);
        ASSERT_EQ(weights.ok(), count == right) << name(scheme) << ", " << count;
        if (weights) {
          EXPECT_EQ(weights->input_scales.bytes(), right * sizeof(float));
          continue;
        }
        EXPECT_EQ(weights.error().place, "input scales");
        EXPECT_THAT(weights.error().need, ::testing::HasSubstr(str(right, " for 3 experts")));
        EXPECT_THAT(weights.error().fact, ::testing::HasSubstr(str("it has ", count)));
      }
    }
  }
}

TEST(Convert, RefusesScalesThatNvfp4CannotHold) {
  const Scheme scheme{kNvfp4Static, {}};
  const auto device = *open_device("cpu", 2);
  for (const Layout* layout : layouts()) {
    if (!holds(*layout, scheme.weight.dtype)) continue;
    for (const bool fit : {true, false}) {
      std::vector<CanonicalMatrix> experts;
      for (int e = 0; e < 3; ++e)
        experts.push_back(conformance::random_matrix({.n = 8, .k = 64, .key = scheme.weight}, e));
      if (!fit) experts[1].scales[5 * 4 + 2] *= 1.01f;
      const auto weights =
          convert(DescribedMatrix::from(scheme, std::move(experts)), *layout, *device);
      ASSERT_EQ(weights.ok(), fit) << layout->name;
      if (fit) continue;
      EXPECT_EQ(weights.error().place, "expert 1: scales of row 5");
    }
  }
}

std::vector<std::byte> packed(DescribedMatrix matrix, const Layout& layout, int threads) {
  const auto device = *open_device("cpu", threads);
  const auto weights = convert(std::move(matrix), layout, *device);
  if (!weights) return {};
  const auto* const bytes = weights->buffer.as<std::byte>();
  return {bytes, bytes + weights->buffer.bytes()};
}

// Small experts are distributed over threads; large ones are split by rows. Slices that end inside
// a panel are stacked first.
TEST(Convert, GivesSameBytesForAnyThreadCount) {
  for (const Layout* layout : layouts()) {
    for (const ConvertCase& c : convert_cases()) {
      if (!holds(*layout, c.shape.key.dtype)) continue;
      const auto once = [&](int threads) {
        return packed(stacked(c.shape, c.rows, c.num_experts), *layout, threads);
      };
      const std::vector<std::byte> alone = once(1);
      ASSERT_FALSE(alone.empty());
      for (const int threads : {2, 3, 8}) {
        EXPECT_TRUE(once(threads) == alone)
            << layout->name << " [" << c.shape.n << ", " << c.shape.k << "], " << threads;
      }
    }
  }
}

TEST(Convert, NamesFirstUnreadableExpert) {
  for (const int threads : {1, 2, 4}) {
    for (int again = 0; again < 20; ++again) {
      const auto device = *open_device("cpu", threads);
      const auto weights =
          convert(stacked({32, 64, kBF16Weight}, {32}, 24, {5, 7, 20}), *layouts()[0], *device);
      ASSERT_FALSE(weights.ok());
      EXPECT_EQ(weights.error().place, "expert 5");
    }
  }
}

TEST(Convert, ReportsOnCallerThreadAndStopsOnRequest) {
  for (const int threads : {1, 3}) {
    const auto device = *open_device("cpu", threads);
    const auto caller = std::this_thread::get_id();
    int calls = 0;
    const auto all = convert(stacked({32, 64, kBF16Weight}, {32}, 24), *layouts()[0], *device,
                             [&](int64_t, int64_t) {
                               EXPECT_EQ(std::this_thread::get_id(), caller);
                               return ++calls > 0;
                             });
    EXPECT_TRUE(all.ok());
    EXPECT_GT(calls, 0);
    const auto stopped = convert(stacked({32, 64, kBF16Weight}, {32}, 24), *layouts()[0], *device,
                                 [](int64_t, int64_t) { return false; });
    ASSERT_FALSE(stopped.ok());
    EXPECT_EQ(stopped.error().kind, ErrorKind::kCancelled);
  }
}

}  // namespace
}  // namespace moracle::convert_test
