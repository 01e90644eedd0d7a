// Experts that move between layouts arrive with the bytes of a direct conversion.
#include "layout/unpack.h"

#include <gtest/gtest.h>

#include "conformance/conformance.h"
#include "layout/sorted_columns.h"
#include "quant/codec.h"
#include "support/must.h"

namespace moracle::unpack_test {
namespace {

using testing::must;
using Bytes = std::vector<std::byte>;

struct Case {
  std::string name;
  MatrixShape shape;
  CanonicalMatrix matrix;
};

/// Every scheme on odd sizes, with a bias, and with act-order where the scheme has groups of
/// columns.
std::vector<Case> cases() {
  std::vector<Case> all;
  uint64_t seed = 0;
  for (const Scheme& scheme : conformance::schemes()) {
    for (const auto& [n, k] :
         {std::pair<int64_t, int64_t>{1, 2}, {33, 70}, {48, 320}, {272, 160}}) {
      for (const bool act_order : {false, true}) {
        const QuantKey& key = scheme.weight;
        const bool integers = key.dtype == DType::kI4 || key.dtype == DType::kI8;
        const bool groups = key.group.rows == 1 && key.group.cols != GroupShape::kAll;
        if (act_order && (!integers || !groups || key.codes != CodeSet::kAny)) continue;
        MatrixShape shape{n, k, key, act_order, n % 2 == 1};
        CanonicalMatrix matrix = conformance::random_matrix(shape, ++seed);
        if (act_order) conformance::shuffle_groups(matrix, seed);
        for (float& minimum : matrix.minimums) minimum += 0.0f;  // no -0, which steps cannot keep
        all.push_back({name(scheme) + (act_order ? ", act-order " : " ") + std::to_string(n) + "x" +
                           std::to_string(k),
                       shape, std::move(matrix)});
      }
    }
  }
  return all;
}

Bytes packed(const Layout& layout, const MatrixShape& shape, const CanonicalMatrix& m) {
  Bytes bytes(layout.sections(shape).bytes, std::byte{0x5a});
  const CanonicalMatrix sorted =
      layout.sorts_columns && shape.group_index ? must(sort_columns(m)) : CanonicalMatrix();
  const CanonicalMatrix& from = sorted.n > 0 ? sorted : m;
  layout.pack_codes(shape, from, 0, 0, m.n, bytes.data());
  layout.pack_beside(shape, from, 0, bytes.data());
  return bytes;
}

CanonicalMatrix unpacked(const Layout& layout, const MatrixShape& shape, const Bytes& bytes) {
  ThreadPool pool(2);
  return unpack({&layout, &shape, bytes.data(), 0, shape.n}, pool);
}

TEST(Unpack, GivesMatrixThatPacksToSameBytes) {
  int compared = 0;
  for (const Layout* layout : layouts()) {
    if (!unpacks(*layout)) continue;
    for (const Case& c : cases()) {
      SCOPED_TRACE(c.name + " in " + std::string(layout->name));
      const Bytes bytes = packed(*layout, c.shape, c.matrix);
      const CanonicalMatrix again = unpacked(*layout, c.shape, bytes);
      ASSERT_EQ(packed(*layout, c.shape, again), bytes);
      ++compared;
    }
  }
  EXPECT_GT(compared, 200);
}

TEST(Unpack, KeepsValues) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    // Folding rounds the minimum once more.
    const QuantKey& key = c.shape.key;
    const bool folds = key.minimums && !key.symmetric && key.scale_dtype != DType::kI8;
    const Bytes bytes = packed(kVnni16Layout, c.shape, c.matrix);
    const CanonicalMatrix again = unpacked(kVnni16Layout, c.shape, bytes);
    std::vector<double> want(c.shape.k), got(c.shape.k);
    for (int64_t r = 0; r < c.shape.n; ++r) {
      dequantize_row(c.matrix, r, want.data());
      dequantize_row(again, r, got.data());
      for (int64_t i = 0; i < c.shape.k; ++i) {
        if (folds)
          ASSERT_NEAR(got[i], want[i], 1e-5) << "row " << r << " column " << i;
        else
          ASSERT_EQ(got[i], want[i]) << "row " << r << " column " << i;
      }
    }
    EXPECT_EQ(again.bias, c.matrix.bias);
  }
}

TEST(Repack, GivesBytesOfDirectConversion) {
  ThreadPool pool(2);
  int compared = 0;
  for (const Layout* from : layouts()) {
    if (!unpacks(*from)) continue;
    for (const Case& c : cases()) {
      const Bytes source = packed(*from, c.shape, c.matrix);
      for (const Layout* to : layouts()) {
        const QuantKey& key = c.shape.key;
        if (!holds(*to, key.dtype)) continue;
        // GPU rows store such codes in whole bytes.
        MatrixShape shape = c.shape;
        if (to != &kVnni16Layout) shape.key.codes = CodeSet::kAny;
        if (to == &kCanonicalLayout && key.minimums && !key.symmetric) continue;  // folded
        if (shape.group_index && !to->sorts_columns && to != &kCanonicalLayout) continue;
        if (key.minimums && !to->holds_minimums) continue;
        if (!repacks(*from, c.shape, *to, shape)) {
          EXPECT_TRUE(from == &kCanonicalLayout && key.scale_dtype == DType::kI8);
          continue;
        }
        SCOPED_TRACE(c.name + ", " + std::string(from->name) + " to " + std::string(to->name));
        Bytes got(to->sections(shape).bytes, std::byte{0xa5});
        // In slices, as experts move while a device works.
        const int64_t step = row_step(c.shape);
        for (int64_t row = 0; row < shape.n; row += step) {
          must(repack({from, &c.shape, source.data(), row, std::min(row + step, shape.n)}, *to,
                      shape, pool, got.data()));
        }
        ASSERT_TRUE(got == packed(*to, shape, c.matrix));
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 500);
}

TEST(Repack, RefusesWhatSourceDoesNotKeep) {
  const MatrixShape steps{16, 256, parse_scheme("int4-w4a16-g32-s8")->weight};
  EXPECT_TRUE(repacks(kVnni16Layout, steps, kCanonicalLayout, steps));
  EXPECT_TRUE(repacks(kCanonicalLayout, steps, kCanonicalLayout, steps));
  EXPECT_FALSE(repacks(kCanonicalLayout, steps, kVnni16Layout, steps)) << "no factors";
  EXPECT_FALSE(repacks(kMma16Layout, steps, kVnni16Layout, steps)) << "a GPU's layout";
  MatrixShape other = steps;
  other.k = 512;
  EXPECT_FALSE(repacks(kVnni16Layout, steps, kVnni16Layout, other)) << "other sizes";
}

}  // namespace
}  // namespace moracle::unpack_test
