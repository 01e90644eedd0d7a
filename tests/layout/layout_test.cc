// Tests every layout with every format and every awkward shape. Packing loses nothing, overlaps
// nothing and does not depend on old memory.
#include "layout/layout.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/scalar.h"
#include "conformance/conformance.h"
#include "layout/sections.h"
#include "layout/vnni16.h"
#include "quant/codec.h"

namespace moracle::layout_test {
namespace {

struct Case {
  const Layout* layout;
  MatrixShape shape;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.layout->name << " " << name(c.shape.key.dtype) << " [" << c.shape.n << ", " << c.shape.k
       << "]";
}

/// Reads `width` bits from bit `at`, lowest first. They cross a byte boundary only if they fill
/// whole bytes.
uint64_t bits_at(const std::byte* bytes, int64_t at, int width) {
  if (width == 4) return static_cast<uint64_t>(bytes[at / 8] >> (at % 8)) & 15;
  EXPECT_EQ(at % width, 0);
  uint64_t value = 0;
  std::memcpy(&value, bytes + at / 8, width / 8);
  return value;
}

/// One row, one column, odd sizes, just below and above a panel, no common divisors.
std::vector<std::pair<int64_t, int64_t>> sizes() {
  return {{1, 1},  {1, 2},   {2, 1},   {1, 33},  {33, 1},  {15, 17}, {16, 16}, {17, 15},
          {16, 3}, {31, 64}, {32, 65}, {48, 96}, {5, 129}, {100, 7}, {64, 128}};
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Layout* layout : layouts()) {
    for (DType dtype : layout->holds) {
      for (auto [n, k] : sizes()) {
        QuantKey key{dtype};
        if (!key.quantized()) {
          all.push_back({layout, {n, k, key, false, n % 2 == 0}});
          continue;
        }
        for (int64_t group : {GroupShape::kAll, int64_t{32}, int64_t{6}}) {
          key.group = per_group(group);
          all.push_back({layout, {n, k, key, false, n % 2 == 0}});
        }
      }
    }
  }
  // Properties that only the canonical layout keeps: zero points and column order.
  for (auto [n, k] : sizes()) {
    for (DType dtype : {DType::kI4, DType::kI8}) {
      QuantKey key{dtype, per_group(32), false, false};
      all.push_back({&kCanonicalLayout, {n, k, key, true, true}});
      all.push_back({&kCanonicalLayout, {n, k, key, false, false}});
      key.minimums = true;
      for (const Layout* layout : layouts()) {
        if (layout->holds_minimums && holds(*layout, dtype))
          all.push_back({layout, {n, k, key, layout == &kCanonicalLayout, true}});
      }
      key.symmetric = true;
      key.minimums = false;
      all.push_back({&kCanonicalLayout, {n, k, key, true, false}});
    }
  }
  return all;
}

CanonicalMatrix matrix_for(const MatrixShape& shape) {
  CanonicalMatrix m =
      conformance::random_matrix(shape, static_cast<uint64_t>(shape.n * 1000 + shape.k));
  for (int64_t c = 0; shape.group_index && c < shape.k; ++c) {
    m.group_index.push_back(static_cast<int32_t>((c * 7 + 3) % m.scale_cols()));
  }
  return m;
}

std::vector<std::byte> packed(const Case& c, const CanonicalMatrix& m, std::byte before) {
  std::vector<std::byte> bytes(c.layout->sections(c.shape).bytes, before);
  pack(*c.layout, m, bytes.data());
  return bytes;
}

template <class Check>
void for_each_case(Check check) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(::testing::PrintToString(c));
    check(c);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(Layouts, HaveNamesAndHoldAtLeastOneScheme) {
  std::vector<std::string_view> names;
  for (const Layout* layout : layouts()) {
    EXPECT_FALSE(layout->name.empty());
    EXPECT_FALSE(layout->summary.empty());
    EXPECT_FALSE(layout->holds.empty());
    for (std::string_view other : names) EXPECT_NE(other, layout->name);
    names.push_back(layout->name);
  }
  EXPECT_GE(names.size(), 2u);
}

TEST(Layouts, SectionsAreContiguousAndAligned) {
  for_each_case([](const Case& c) {
    const Sections s = c.layout->sections(c.shape);
    const size_t edges[] = {s.codes,       s.scales, s.zero_points, s.minimums,
                            s.group_index, s.bias,   s.bytes};
    EXPECT_EQ(s.codes, 0u);
    for (size_t i = 0; i < std::size(edges); ++i) {
      EXPECT_EQ(edges[i] % kSectionAlignment, 0u) << i;
      EXPECT_LE(edges[i == 0 ? 0 : i - 1], edges[i]) << i;
    }
    EXPECT_GE(static_cast<int64_t>(s.scales) * 8, c.shape.n * c.shape.k * bits(c.shape.key.dtype));
    EXPECT_EQ(s.scales == s.zero_points, !c.shape.key.quantized());
    const bool folds = c.layout != &kCanonicalLayout && c.shape.key.minimums;
    EXPECT_EQ(s.zero_points == s.minimums, c.shape.key.symmetric || folds);
    EXPECT_EQ(s.minimums == s.group_index, !c.shape.key.minimums);
    EXPECT_EQ(s.group_index == s.bias, !c.shape.group_index);
    EXPECT_EQ(s.bias == s.bytes, !c.shape.bias);
  });
}

TEST(Layouts, GiveEveryCodeDistinctBitsWithinCodesSection) {
  for_each_case([](const Case& c) {
    const int width = bits(c.shape.key.dtype);
    const int64_t end = static_cast<int64_t>(c.layout->sections(c.shape).scales) * 8;
    std::vector<bool> taken(end);
    for (int64_t r = 0; r < c.shape.n; ++r) {
      for (int64_t k = 0; k < c.shape.k; ++k) {
        const int64_t at = c.layout->code_bit(c.shape, r, k);
        ASSERT_GE(at, 0);
        ASSERT_LE(at + width, end);
        for (int bit = 0; bit < width; ++bit) {
          ASSERT_FALSE(taken[at + bit]) << "row " << r << " column " << k;
          taken[at + bit] = true;
        }
      }
    }
  });
}

TEST(Layouts, PlaceEveryCodeByIndexFunction) {
  for_each_case([](const Case& c) {
    const CanonicalMatrix m = matrix_for(c.shape);
    const std::vector<std::byte> bytes = packed(c, m, std::byte{0});
    const int width = bits(c.shape.key.dtype);
    const std::byte* codes = bytes.data() + c.layout->sections(c.shape).codes;
    for (int64_t r = 0; r < m.n; ++r) {
      for (int64_t k = 0; k < m.k; ++k) {
        uint64_t want = bits_at(m.codes.data() + r * m.row_bytes(), k * width, width);
        if (c.shape.key.dtype == DType::kI4) want = (want + c.layout->i4_offset) & 15;
        ASSERT_EQ(bits_at(codes, c.layout->code_bit(c.shape, r, k), width), want)
            << "row " << r << " column " << k;
      }
    }
  });
}

// Packing writes the padding and does not inherit it.
TEST(Layouts, PackIgnoresOldBytes) {
  for_each_case([](const Case& c) {
    const CanonicalMatrix m = matrix_for(c.shape);
    const std::vector<std::byte> clean = packed(c, m, std::byte{0});
    ASSERT_EQ(packed(c, m, std::byte{0xff}), clean);
    ASSERT_EQ(packed(c, m, std::byte{0x5a}), clean);
  });
}

// Packing an expert in slices, or shares of a slice's rows in any order, gives the bytes of the
// whole.
TEST(Layouts, PackingInSlicesMatchesPackingWhole) {
  for_each_case([](const Case& c) {
    const CanonicalMatrix m = matrix_for(c.shape);
    const std::vector<std::byte> whole = packed(c, m, std::byte{0});
    const auto rows_of = [&](int64_t first, int64_t count) {
      CanonicalMatrix slice;
      slice.n = count;
      slice.k = m.k;
      slice.key = m.key;
      slice.codes = m.codes.subspan(first * m.row_bytes(), count * m.row_bytes());
      const int64_t groups = m.scale_cols();
      const auto cut = [&](const auto& from, auto& to, int64_t width) {
        if (!from.empty())
          to.assign(from.begin() + first * width, from.begin() + (first + count) * width);
      };
      cut(m.scales, slice.scales, groups);
      cut(m.zero_points, slice.zero_points, groups);
      cut(m.minimums, slice.minimums, groups);
      cut(m.bias, slice.bias, 1);
      slice.group_index = m.group_index;
      return slice;
    };
    const int64_t cut = std::min(m.n, kRowStep);
    std::vector<std::byte> bytes(whole.size(), std::byte{0x5a});
    for (const auto& [first, count] : {std::pair{int64_t{0}, cut}, std::pair{cut, m.n - cut}}) {
      if (count == 0) continue;
      const CanonicalMatrix slice = rows_of(first, count);
      const int64_t half = count / kRowStep / 2 * kRowStep;
      c.layout->pack_codes(c.shape, slice, first, half, count, bytes.data());
      c.layout->pack_codes(c.shape, slice, first, 0, half, bytes.data());
      c.layout->pack_beside(c.shape, slice, first, bytes.data());
    }
    ASSERT_TRUE(bytes == whole);
  });
}

// Two experts are Sections::bytes apart: packing one must not write into the next.
TEST(Layouts, WriteNothingPastEnd) {
  for_each_case([](const Case& c) {
    const CanonicalMatrix m = matrix_for(c.shape);
    const size_t size = c.layout->sections(c.shape).bytes;
    std::vector<std::byte> bytes(size + 256, std::byte{0xa5});
    pack(*c.layout, m, bytes.data());
    for (size_t i = size; i < bytes.size(); ++i) ASSERT_EQ(bytes[i], std::byte{0xa5}) << i - size;
  });
}

TEST(CanonicalLayout, KeepsScalesZeroPointsMinimumsGroupIndexAndBiasUnchanged) {
  for_each_case([](const Case& c) {
    if (c.layout != &kCanonicalLayout) return;
    const CanonicalMatrix m = matrix_for(c.shape);
    const std::vector<std::byte> bytes = packed(c, m, std::byte{0xff});
    const Sections s = c.layout->sections(c.shape);
    const auto same = [&](size_t at, const auto& part) {
      return part.empty() ||
             std::memcmp(bytes.data() + at, part.data(), part.size() * sizeof part[0]) == 0;
    };
    EXPECT_TRUE(same(s.codes, m.codes));
    EXPECT_TRUE(same(s.scales, m.scales));
    EXPECT_TRUE(same(s.zero_points, m.zero_points));
    EXPECT_TRUE(same(s.minimums, m.minimums));
    EXPECT_TRUE(same(s.group_index, m.group_index));
    EXPECT_TRUE(same(s.bias, m.bias));
    EXPECT_EQ(c.layout->read_cols(c.shape), c.shape.k);
  });
}

TEST(Vnni16Layout, KeepsScalesAndBiasBesideTheirPanelAndPadsWithZeros) {
  for_each_case([](const Case& c) {
    if (c.layout != &kVnni16Layout || vnni16::scale_is_exponent(c.shape)) return;
    const CanonicalMatrix m = matrix_for(c.shape);
    const std::vector<std::byte> bytes = packed(c, m, std::byte{0xff});
    const Sections s = c.layout->sections(c.shape);
    const int64_t groups = m.scales.empty() ? 0 : m.scale_cols();
    const auto float_at = [&](size_t section, int64_t i) {
      float value;
      std::memcpy(&value, bytes.data() + section + i * sizeof value, sizeof value);
      return value;
    };
    const int64_t rows = (m.n + 15) / 16 * 16;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t g = 0; g < groups; ++g) {
        ASSERT_EQ(float_at(s.scales, (r / 16 * groups + g) * 16 + r % 16),
                  r < m.n ? m.scales[r * groups + g] : 0.0f);
      }
      if (c.shape.bias) {
        ASSERT_EQ(float_at(s.bias, r), r < m.n ? m.bias[r] : 0.0f);
      }
    }
  });
}

TEST(Mma16Layout, KeepsScalesOfNvfp4AsE4m3TimesFactorsOfRows) {
  for (auto [n, k] : sizes()) {
    const MatrixShape shape{n, k, kNvfp4Static, false, n % 2 == 0};
    if (k <= 16) continue;  // one group: f32
    SCOPED_TRACE(::testing::Message() << n << " x " << k);
    const CanonicalMatrix m = matrix_for(shape);
    const std::vector<std::byte> bytes = packed({&kMma16Layout, shape}, m, std::byte{0xff});
    const Sections s = kMma16Layout.sections(shape);
    const int64_t groups = m.scale_cols(), rows = (n + 15) / 16 * 16;
    for (int64_t r = 0; r < rows; ++r) {
      float factor;
      std::memcpy(&factor, bytes.data() + s.row_factors + r * sizeof factor, sizeof factor);
      for (int64_t g = 0; g < groups; ++g) {
        const auto code =
            static_cast<uint8_t>(bytes[s.scales + (r / 16 * groups + g) * 16 + r % 16]);
        const float want = r < n ? m.scales[r * groups + g] : 0.0f;
        ASSERT_NEAR(e4m3_to_float(code) * factor, want, want * 0x1p-20f);
      }
    }
  }
}

// Panels hold what kernels subtract from code · scale.
TEST(PanelLayouts, FoldZeroPointsIntoMinimums) {
  for (const Layout* layout : {&kVnni16Layout, &kMma16Layout}) {
    const MatrixShape shape{17, 96, parse_scheme("int4-w4a16-g32-asym-min")->weight};
    const CanonicalMatrix m = matrix_for(shape);
    const std::vector<std::byte> bytes = packed({layout, shape}, m, std::byte{0xff});
    for (int64_t r = 0; r < 32; ++r) {
      for (int64_t g = 0; g < 3; ++g) {
        float minimum;
        std::memcpy(&minimum,
                    bytes.data() + layout->sections(shape).minimums +
                        ((r / 16 * 3 + g) * 16 + r % 16) * sizeof minimum,
                    sizeof minimum);
        if (r >= m.n) {
          ASSERT_EQ(minimum, 0) << layout->name;
          continue;
        }
        const double exact = static_cast<double>(m.zero_points[r * 3 + g]) * m.scales[r * 3 + g] +
                             m.minimums[r * 3 + g];
        ASSERT_EQ(minimum, static_cast<float>(exact)) << layout->name;
      }
    }
  }
}

template <class Value>
Value value_at(const std::vector<std::byte>& bytes, size_t at) {
  Value value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

TEST(Vnni16Layout, StoresStepsOfScalesAndMinimumsWithTheirFactors) {
  const MatrixShape shape{17, 512, parse_scheme("int4-w4a16-g32-asym-min-s8")->weight};
  const CanonicalMatrix m = matrix_for(shape);
  const std::vector<std::byte> bytes = packed({&kVnni16Layout, shape}, m, std::byte{0xff});
  const Sections s = kVnni16Layout.sections(shape);
  EXPECT_EQ(s.minimums - s.scales, 2u * (2 * 32 + 16 * 16));  // 2 panels, 2 factors, 16 groups
  const auto number = [&](size_t section, int64_t r, int64_t g) {
    const size_t panel = section + r / 16 * (2 * 32 + 16 * 16);
    const auto factor = value_at<uint16_t>(bytes, panel + (g / 8 * 16 + r % 16) * 2);
    return value_at<int8_t>(bytes, panel + 2 * 32 + g * 16 + r % 16) * f16_to_float(factor);
  };
  for (int64_t r = 0; r < 32; ++r) {
    for (int64_t g = 0; g < 16; ++g) {
      ASSERT_EQ(number(s.scales, r, g), r < m.n ? m.scales[r * 16 + g] : 0.0f);
      ASSERT_EQ(number(s.minimums, r, g), r < m.n ? m.minimums[r * 16 + g] : 0.0f);
    }
  }
}

// The number of a code: its low 4 bits as of int4, the others in the last row block of the unit.
TEST(Vnni16Layout, StoresCodesOfSetsInTheirBits) {
  for (const char* scheme :
       {"int8-w8a16-g16-s8-6bit", "int8-w8a16-g32-s16-5bit", "int8-w8a16-g32-min-s8-u5bit",
        "int8-w8a16-g32-s8-iq4", "int8-w8a16-g32-s8-iq3xxs", "int8-w8a16-g16-s8-iq2"}) {
    const MatrixShape shape{17, 96, parse_scheme(scheme)->weight};
    const CanonicalMatrix m = matrix_for(shape);
    const std::vector<std::byte> bytes = packed({&kVnni16Layout, shape}, m, std::byte{0xff});
    const vnni16::Unit unit = vnni16::unit_of(shape);
    const int high = code_bits(shape.key.codes) - 4;
    EXPECT_EQ(vnni16::panel_bytes(shape), 128 * 16 * code_bits(shape.key.codes) / 8);
    for (int64_t r = 0; r < 17; ++r) {
      for (int64_t c = 0; c < 96; ++c) {
        const int64_t in = c % unit.cols, block = in / 4;
        const size_t row = r / 16 * vnni16::panel_bytes(shape) + c / unit.cols * unit.blocks * 64 +
                           r % 16 * 4 + c % 4;
        int number = value_at<uint8_t>(bytes, row + in / 8 * 64) >> (block % 2 * 4) & 15;
        if (high > 0)
          number |= (value_at<uint8_t>(bytes, row + (unit.blocks - 1) * 64) >> (block * high) &
                     ((1 << high) - 1))
                    << 4;
        ASSERT_EQ(code_of(shape.key.codes, number), static_cast<int8_t>(m.codes[r * 96 + c]))
            << scheme << ", row " << r << ", column " << c;
      }
    }
  }
}

TEST(Vnni16Layout, StoresF16ScalesInTwoBytes) {
  const MatrixShape shape{17, 96, parse_scheme("int8-w8a16-g32-s16")->weight};
  const CanonicalMatrix m = matrix_for(shape);
  const std::vector<std::byte> bytes = packed({&kVnni16Layout, shape}, m, std::byte{0xff});
  const size_t scales = kVnni16Layout.sections(shape).scales;
  for (int64_t r = 0; r < 17; ++r) {
    for (int64_t g = 0; g < 3; ++g) {
      const auto half = value_at<uint16_t>(bytes, scales + ((r / 16 * 3 + g) * 16 + r % 16) * 2);
      ASSERT_EQ(f16_to_float(half), m.scales[r * 3 + g]);
    }
  }
}

TEST(Vnni16Layout, StoresSharedScaleOnceAndExponentsAsBytes) {
  const MatrixShape block{40, 96, fp8_static_block(32, 32)};
  CanonicalMatrix m = matrix_for(block);
  std::vector<std::byte> bytes = packed({&kVnni16Layout, block}, m, std::byte{0xff});
  Sections s = kVnni16Layout.sections(block);
  EXPECT_EQ(s.zero_points - s.scales, 64u);  // 3 panels of 3 groups
  for (int64_t panel = 0; panel < 3; ++panel) {
    for (int64_t g = 0; g < 3; ++g) {
      float scale;
      std::memcpy(&scale, bytes.data() + s.scales + (panel * 3 + g) * 4, 4);
      EXPECT_EQ(scale, m.scales[panel / 2 * 3 + g]);
    }
  }
  const MatrixShape powers{17, 96, kMxfp4Static};
  m = matrix_for(powers);
  bytes = packed({&kVnni16Layout, powers}, m, std::byte{0xff});
  s = kVnni16Layout.sections(powers);
  for (int64_t r = 0; r < 17; ++r) {
    for (int64_t g = 0; g < 3; ++g) {
      const auto e = static_cast<int>(bytes[s.scales + (r / 16 * 3 + g) * 16 + r % 16]);
      EXPECT_EQ(std::ldexp(1.0f, e - 127), m.scales[r * 3 + g]);
    }
  }
}

TEST(Rows16Layout, StoresUnsignedNibblesAndPadsThemWithCodeZero) {
  const MatrixShape shape{3, 5, int4_static_group(32)};
  const CanonicalMatrix m = matrix_for(shape);
  const std::vector<std::byte> bytes = packed({&kRows16Layout, shape}, m, std::byte{0xff});
  const Sections s = kRows16Layout.sections(shape);
  EXPECT_EQ(s.scales, 256u);  // 16 rows of 32 columns
  for (int64_t r = 0; r < 16; ++r) {
    double row[5];
    if (r < 3) unpack_row(m, r, row);
    for (int64_t c = 0; c < 32; ++c) {
      const int stored = static_cast<int>(bits_at(bytes.data(), (r * 32 + c) * 4, 4));
      ASSERT_EQ(stored - 8, r < 3 && c < 5 ? row[c] : 0) << "row " << r << " column " << c;
    }
    float scale;
    std::memcpy(&scale, bytes.data() + s.scales + r * 4, 4);
    EXPECT_EQ(scale, r < 3 ? m.scales[r] : 0);
  }
}

// The codes of one column of the matrix are contiguous.
TEST(Columns16Layout, TransposesCodesAndPadsThemWithZero) {
  const MatrixShape shape{5, 40, fp8_static_block(1, 32)};
  const CanonicalMatrix m = matrix_for(shape);
  const std::vector<std::byte> bytes = packed({&kColumns16Layout, shape}, m, std::byte{0xff});
  EXPECT_EQ(kColumns16Layout.sections(shape).scales, 64u * 16u);  // 64 columns of 16 rows
  for (int64_t c = 0; c < 64; ++c) {
    for (int64_t r = 0; r < 16; ++r) {
      const std::byte code = r < 5 && c < 40 ? m.codes[r * m.row_bytes() + c] : std::byte{0};
      ASSERT_EQ(bytes[c * 16 + r], code) << "row " << r << " column " << c;
    }
  }
}

TEST(Columns16Layout, StoresScalesOfOneGroupSideBySide) {
  for (const int64_t block : {1, 32}) {
    const MatrixShape shape{40, 96, fp8_static_block(block, 32)};
    const CanonicalMatrix m = matrix_for(shape);
    const std::vector<std::byte> bytes = packed({&kColumns16Layout, shape}, m, std::byte{0xff});
    const Sections s = kColumns16Layout.sections(shape);
    EXPECT_EQ(s.scales, 48u * 96u);
    const int64_t scales = block == 1 ? 48 : 2;
    for (int64_t r = 0; r < (40 + block - 1) / block; ++r) {
      for (int64_t g = 0; g < 3; ++g) {
        float scale;
        std::memcpy(&scale, bytes.data() + s.scales + (g * scales + r) * 4, 4);
        EXPECT_EQ(scale, m.scales[r * 3 + g]);
      }
    }
  }
}

// Packed bytes depend only on the matrix.
TEST(Layouts, GiveSameBytesForSameMatrix) {
  for_each_case([](const Case& c) {
    ASSERT_EQ(packed(c, matrix_for(c.shape), std::byte{1}),
              packed(c, matrix_for(c.shape), std::byte{2}));
  });
}

// A matrix of 2^32 bits and more. Only the index function is called.
TEST(Layouts, IndexBeyond32Bits) {
  for (const Layout* layout : layouts()) {
    for (DType dtype : layout->holds) {
      const MatrixShape shape{int64_t{1} << 18, int64_t{1} << 16, QuantKey{dtype, kPerRow}};
      const int64_t width = bits(dtype), elements = shape.n * shape.k;
      EXPECT_EQ(layout->code_bit(shape, shape.n - 1, shape.k - 1), (elements - 1) * width)
          << layout->name << " " << name(dtype);
      EXPECT_EQ(layout->sections(shape).scales, static_cast<size_t>(elements / 8 * width));
    }
  }
}

}  // namespace
}  // namespace moracle::layout_test
