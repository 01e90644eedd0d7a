// Tests packed integers of every width, symmetry and group size, with and without minimums. No
// word, group or tile divides the sizes.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/text.h"
#include "conformance/machine_refuses.h"
#include "oracle/backend.h"
#include "support/sample.h"

namespace moracle::conformance::weight_only_test {
namespace {

std::vector<Scheme> packed_integers() {
  std::vector<Scheme> all;
  for (const bool four_bits : {true, false}) {
    for (const int64_t group : {GroupShape::kAll, int64_t{32}, int64_t{64}, int64_t{128}}) {
      for (const bool symmetric : {true, false}) {
        QuantKey key = four_bits ? int4_static_group(group) : int8_static_group(group);
        key.symmetric = symmetric;
        for (const bool minimums : {false, true}) {
          key.minimums = minimums;
          all.push_back({key, {}});
        }
      }
    }
  }
  return all;
}

/// Compares every row of this machine with the reference in every packed scheme.
void expect_right(const Shape& shape) {
  static const std::shared_ptr<Device> device = *open_device("cpu", 2);
  for (const Backend& row : backends()) {
    if (!row.built() || row.platform != Platform::kCpu) continue;
    testing::Sample sample(str(row.name, name(shape)));
    for (const Scheme& scheme : packed_integers()) {
      for (const int64_t tokens : {1, 7}) {
        for (const char* variant : {"plain", "bias"}) {
          if (!sample.takes()) continue;
          const Case c{row.name, scheme, shape, tokens, Spread::kUniform, variant};
          const Outcome outcome = run(c, device);
          ASSERT_EQ(outcome.kind, served_or_refused(c)) << outcome.message;
        }
      }
    }
  }
}

// Columns that end inside a word of eight codes, inside a group, inside a pair.
TEST(WeightOnly, MatchesReferenceForOddColumnCounts) {
  expect_right({3, 203, 77, 2});
  expect_right({2, 72, 40, 1});    // words, but no multiple of 8 words
  expect_right({2, 129, 127, 2});  // one column beside a group
}

// The smallest size in each dimension.
TEST(WeightOnly, MatchesReferenceForDimensionsOfOne) {
  expect_right({1, 1, 1, 1});
  expect_right({2, 130, 1, 1});
  expect_right({2, 1, 34, 2});
}

// From one expert to more experts than fit a tile, a warp or a byte.
TEST(WeightOnly, MatchesReferenceForAnyExpertCount) {
  for (const Shape& shape : {Shape{1, 40, 24, 1}, {7, 40, 24, 7}, {257, 40, 24, 6}})
    expect_right(shape);
}

}  // namespace
}  // namespace moracle::conformance::weight_only_test
