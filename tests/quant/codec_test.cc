// Tests decoding: every code of every format, and every arrangement of scales.
#include "quant/codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "base/scalar.h"

namespace moracle::codec_test {
namespace {

TEST(Int4Codec, ReadsEveryNibbleOfEveryByteAsTwosComplement) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::byte row[] = {std::byte{0xff}, static_cast<std::byte>(byte)};
    const int low = byte % 16, high = byte / 16;
    EXPECT_EQ(CodecOf<DType::kI4>::decode(row, 2), low < 8 ? low : low - 16) << byte;
    EXPECT_EQ(CodecOf<DType::kI4>::decode(row, 3), high < 8 ? high : high - 16) << byte;
  }
}

TEST(Int8Codec, ReadsEveryByteAsTwosComplement) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::byte row[] = {std::byte{0x55}, static_cast<std::byte>(byte)};
    EXPECT_EQ(CodecOf<DType::kI8>::decode(row, 1), byte < 128 ? byte : byte - 256);
  }
}

TEST(FloatCodecs, ReadFromAnyAddress) {
  std::byte bytes[16] = {};
  const float value = -1.625f;
  const uint16_t half = 0xbe80, brain = 0xbfd0;
  std::memcpy(bytes + 1 + 4, &value, sizeof value);
  EXPECT_EQ(CodecOf<DType::kF32>::decode(bytes + 1, 1), value);
  std::memcpy(bytes + 3 + 2, &half, sizeof half);
  EXPECT_EQ(CodecOf<DType::kF16>::decode(bytes + 3, 1), value);
  std::memcpy(bytes + 7 + 4, &brain, sizeof brain);
  EXPECT_EQ(CodecOf<DType::kBF16>::decode(bytes + 7, 2), value);
}

// The same bytes mean another number in each type.
TEST(Codecs, FoundByType) {
  const std::pair<DType, double> kWant[] = {{DType::kF32, 0x1.888888p9},
                                            {DType::kF16, 4.265625},
                                            {DType::kBF16, 784},
                                            {DType::kI8, 68},
                                            {DType::kI4, 4},
                                            {DType::kF8E4M3, 3},
                                            {DType::kF4E2M1, 2}};
  const std::byte row[] = {std::byte{0x44}, std::byte{0x44}, std::byte{0x44}, std::byte{0x44}};
  for (const auto& [type, want] : kWant) {
    double got = 0;
    EXPECT_TRUE(visit_codec(type, [&]<class Codec>() { got = Codec::decode(row, 0); }));
    EXPECT_EQ(got, want) << name(type);
    EXPECT_EQ(std::count(kCodecTypes.begin(), kCodecTypes.end(), type), 1) << name(type);
  }
}

TEST(Codecs, AbsentForTypesWithoutWeightFormat) {
  for (DType type : {DType::kF64, DType::kI64, DType::kI32, DType::kI16, DType::kU8, DType::kBool,
                     DType::kF8E8M0}) {
    EXPECT_FALSE(visit_codec(type, []<class Codec>() { FAIL(); })) << name(type);
    EXPECT_FALSE(has_codec(type)) << name(type);
  }
}

// A matrix whose codes and values are also plain numbers.
struct Plain {
  CanonicalMatrix matrix;
  std::vector<int> codes;

  Plain(int64_t n, int64_t k, QuantKey key, bool act_order, uint32_t seed) {
    std::mt19937 random(seed);
    CanonicalMatrix& m = matrix;
    m.n = n;
    m.k = k;
    m.key = key;
    m.storage.assign(n * m.row_bytes(), std::byte{0});
    const int width = bits(key.dtype), range = 1 << width;
    for (int64_t r = 0; r < n; ++r) {
      for (int64_t c = 0; c < k; ++c) {
        const int raw = static_cast<int>(random() % range);
        codes.push_back(raw < range / 2 ? raw : raw - range);
        m.storage[r * m.row_bytes() + c * width / 8] |=
            static_cast<std::byte>(raw << (c * width % 8));
      }
    }
    m.codes = m.storage;
    for (int64_t i = 0; i < m.scale_rows() * m.scale_cols(); ++i) {
      m.scales.push_back(std::ldexp(1.0f + static_cast<float>(random() % 1000) / 1000, -7));
      if (!key.symmetric) {
        m.zero_points.push_back(
            static_cast<int8_t>(static_cast<int>(random() % range) - range / 2));
      }
    }
    for (int64_t c = 0; act_order && c < k; ++c) {
      m.group_index.push_back(static_cast<int32_t>(random() % m.scale_cols()));
    }
  }

  /// (code - zero point) · scale, with the group index computed as in the formats' documents.
  double value(int64_t r, int64_t c) const {
    const GroupShape& shape = matrix.key.group;
    const int64_t columns = shape.cols == GroupShape::kAll ? matrix.k : shape.cols;
    const int64_t rows = shape.rows == GroupShape::kAll ? matrix.n : shape.rows;
    const int64_t groups = (matrix.k + columns - 1) / columns;
    const int64_t g = matrix.group_index.empty() ? c / columns : matrix.group_index[c];
    const int64_t at = r / rows * groups + g;
    const double zero = matrix.key.symmetric ? 0 : matrix.zero_points[at];
    return (codes[r * matrix.k + c] - zero) * matrix.scales[at];
  }
};

void expect_values(const Plain& plain) {
  std::vector<double> row(plain.matrix.k);
  for (int64_t r = 0; r < plain.matrix.n; ++r) {
    dequantize_row(plain.matrix, r, row.data());
    for (int64_t c = 0; c < plain.matrix.k; ++c)
      ASSERT_EQ(row[c], plain.value(r, c)) << "row " << r << " column " << c;
  }
}

// Both widths, with and without zero points, every group size, lengths that nothing divides.
TEST(DequantizeRow, IsCodeMinusZeroTimesScale) {
  const struct {
    const char* name;
    DType dtype;
    bool symmetric, act_order;
  } formats[] = {{"int4", DType::kI4, true, false},
                 {"int4, act-order", DType::kI4, true, true},
                 {"int4, zero points", DType::kI4, false, false},
                 {"int4, zero points, act-order", DType::kI4, false, true},
                 {"int8", DType::kI8, true, false},
                 {"int8, act-order", DType::kI8, true, true},
                 {"int8, zero points", DType::kI8, false, false},
                 {"int8, zero points, act-order", DType::kI8, false, true}};
  uint32_t seed = 1;
  for (const auto& format : formats) {
    for (GroupShape group : {kPerRow, per_group(32), per_group(5), per_group(128), per_group(1),
                             GroupShape{}, GroupShape{2, 16}, GroupShape{128, 128}}) {
      SCOPED_TRACE(::testing::Message()
                   << format.name << ", groups of " << group.rows << " x " << group.cols);
      for (auto [n, k] : {std::pair{1, 1}, {3, 64}, {5, 65}, {2, 33}, {7, 130}, {1, 31}}) {
        SCOPED_TRACE(::testing::Message() << n << " x " << k);
        const QuantKey key{format.dtype, group, false, format.symmetric};
        expect_values(Plain(n, k, key, format.act_order, seed++));
      }
    }
  }
}

TEST(DecodeRow, GivesCodesWithoutScaleOrZeroPoint) {
  const Plain plain(3, 37, QuantKey{DType::kI4, per_group(16), false, false}, true, 99);
  std::vector<double> row(37);
  for (int64_t r = 0; r < 3; ++r) {
    unpack_row(plain.matrix, r, row.data());
    for (int64_t c = 0; c < 37; ++c) EXPECT_EQ(row[c], plain.codes[r * 37 + c]);
  }
}

TEST(DequantizeRow, KeepsFloatsUnchanged) {
  const float values[] = {1.0f, -0.0f, 0.333251953125f, 65504.0f, 0x1p-24f, -2.0f};
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    CanonicalMatrix m;
    m.n = 2;
    m.k = 3;
    m.key = QuantKey{dtype};
    for (float value : values) {
      std::byte bytes[4];
      const uint16_t half = dtype == DType::kF16 ? float_to_f16(value) : float_to_bf16(value);
      std::memcpy(bytes, &value, 4);
      if (dtype != DType::kF32) std::memcpy(bytes, &half, 2);
      m.storage.insert(m.storage.end(), bytes, bytes + bits(dtype) / 8);
    }
    m.codes = m.storage;
    for (int64_t r = 0; r < 2; ++r) {
      double row[3];
      dequantize_row(m, r, row);
      for (int64_t c = 0; c < 3; ++c) {
        const float value = values[r * 3 + c];
        const float want = dtype == DType::kF32   ? value
                           : dtype == DType::kF16 ? f16_to_float(float_to_f16(value))
                                                  : bf16_to_float(float_to_bf16(value));
        EXPECT_EQ(row[c], want) << name(dtype);
      }
    }
  }
}

TEST(CanonicalMatrix, RowsStartOnBytesAndScalesCoverTheLastGroup) {
  CanonicalMatrix m;
  m.n = 5;
  m.k = 33;
  m.key = int4_static_group(32);
  EXPECT_EQ(m.row_bytes(), 17);
  EXPECT_EQ(m.scale_rows(), 5);
  EXPECT_EQ(m.scale_cols(), 2);
  EXPECT_EQ(m.group_cols(), 32);
  m.key = kInt8StaticChannelSym;
  EXPECT_EQ(m.row_bytes(), 33);
  EXPECT_EQ(m.scale_cols(), 1);
  EXPECT_EQ(m.group_cols(), 33);
  m.key.group = {2, 16};
  EXPECT_EQ(m.scale_rows(), 3);
  EXPECT_EQ(m.scale_cols(), 3);
  m.key.group = {};
  EXPECT_EQ(m.scale_rows() * m.scale_cols(), 1);
}

TEST(CanonicalMatrix, WithoutElementsHasNoScales) {
  CanonicalMatrix m;
  m.key = kInt8StaticChannelSym;
  EXPECT_EQ(m.scale_rows() * m.scale_cols(), 0);
  m.key.group = {};
  EXPECT_EQ(m.scale_rows() * m.scale_cols(), 0);
}

}  // namespace
}  // namespace moracle::codec_test
