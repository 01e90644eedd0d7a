// Conversion on its own: from a description to packed weights, and what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "base/text.h"
#include "kernels/kernel_weights.h"
#include "moe/conformance.h"

namespace moracle {
namespace {

DescribedMatrix described(const Scheme& scheme, std::vector<float> input_scales) {
  std::vector<CanonicalMatrix> experts;
  for (int e = 0; e < 3; ++e)
    experts.push_back(conformance::random_matrix({.n = 8, .k = 64, .key = scheme.weight}, e));
  DescribedMatrix matrix = DescribedMatrix::from(scheme, std::move(experts));
  matrix.set_input_scales(std::move(input_scales));
  return matrix;
}

// Stored input scales belong to static schemes, one per expert: MXFP8 has none, and a static scheme
// without them would multiply by nothing.
TEST(Convert, TakesInputScalesWhereTheSchemeHasThemAndOnlyThere) {
  const Scheme fixed{kFp8StaticChannelSym, kFp8StaticTensorSym}, mxfp8{kMxfp8Static, kMxfp8Dynamic},
      weight_only{kMxfp8Static, {}};
  const auto device = *open_device("cpu", 1);
  for (const Layout* layout : layouts()) {
    for (const Scheme& scheme : {fixed, mxfp8, weight_only}) {
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
        EXPECT_THAT(weights.error().fact, ::testing::HasSubstr(str("there are ", count)));
      }
    }
  }
}

}  // namespace
}  // namespace moracle
