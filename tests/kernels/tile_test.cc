// Every tile loop in every table against a scalar sum in double.
#include "kernels/cpu/gemm/tile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/isa_here.h"

namespace moracle::cpu::tile_test {
namespace {

constexpr float kUnwritten = 12345.0f;

struct Table {
  const TileKernels* kernels;
  Isa needs;
};

const Table kTables[] = {
    {&kPortableTiles, Isa::kNone},
#if defined(__x86_64__)
    {&kAvx2Tiles, Isa::kAvx2},
#endif
};

/// The value of an IEEE-like code of 1 sign bit, `exponent_bits`, `mantissa_bits`.
double decode(uint32_t code, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(code >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const uint32_t mantissa = code & ((1u << mantissa_bits) - 1);
  const double sign = (code >> (exponent_bits + mantissa_bits)) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1u << mantissa_bits), exponent - bias - mantissa_bits);
}
double decode_bf16(uint16_t code) {
  return decode(code, 8, 7);
}
double decode_f16(uint16_t code) {
  return decode(code, 5, 10);
}

/// Rows of activations in allocations of exactly their length, so that ASan sees a read past one.
template <class T>
struct Rows {
  std::vector<std::vector<T>> values;
  std::vector<const T*> pointers;

  template <class Draw>
  Rows(int rows, int64_t k, Draw draw) {
    for (int r = 0; r < rows; ++r) {
      std::vector<T> row(static_cast<size_t>(k));
      for (T& x : row) x = draw();
      values.push_back(std::move(row));
    }
    for (const std::vector<T>& row : values) pointers.push_back(row.data());
  }
  double at(int r, int64_t i) const {
    return values[static_cast<size_t>(r)][static_cast<size_t>(i)];
  }
};

class Tile : public ::testing::TestWithParam<Table> {
 protected:
  void SetUp() override {
    if (!has(GetParam().needs)) GTEST_SKIP() << "needs " << names(GetParam().needs);
  }
  const TileKernels& tiles() const { return *GetParam().kernels; }

  float normal() { return std::normal_distribution<float>()(random_); }
  int integer(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  float scale() { return std::ldexp(1.0f + 0.01f * static_cast<float>(integer(0, 99)), -6); }

  /// y against Σ x·w, whose sum of sizes is Σ |x·w|: f32 rounds each product and each sum once.
  template <class W>
  void expect_sums(const std::vector<float>& y, const Rows<float>& x, int rows, int64_t k,
                   W weight) {
    const double epsilon = static_cast<double>(k + 4) * 0x1p-24;
    for (int r = 0; r < kMaxRows; ++r) {
      for (int c = 0; c < kPanel; ++c) {
        const float got = y[static_cast<size_t>(r * kPanel + c)];
        if (r >= rows) {
          ASSERT_EQ(got, kUnwritten) << "row " << r << " is not requested";
          continue;
        }
        double sum = 0, size = 0;
        for (int64_t i = 0; i < k; ++i) {
          const double product = x.at(r, i) * weight(c, i);
          sum += product;
          size += std::abs(product);
        }
        ASSERT_NEAR(got, sum, epsilon * size) << "row " << r << " column " << c;
      }
    }
  }

  template <class Weight, class Decode, class Draw>
  void check_float(FloatTile<Weight> tile, Decode value, Draw draw) {
    for (int64_t k : {1, 2, 3, 4, 5, 6, 7, 16, 34, 63, 64, 128, 130, 2048}) {
      std::vector<Weight> panel(static_cast<size_t>(k * kPanel));
      for (Weight& w : panel) w = draw();
      for (int rows = 1; rows <= kMaxRows; ++rows) {
        SCOPED_TRACE(::testing::Message() << "k " << k << " rows " << rows);
        const Rows<float> x(rows, k, [&] { return normal(); });
        std::vector<float> y(kMaxRows * kPanel, kUnwritten);
        tile(x.pointers.data(), rows, panel.data(), k, y.data());
        expect_sums(y, x, rows, k, [&](int c, int64_t i) -> double {
          return value(panel[static_cast<size_t>(i * kPanel + c)]);
        });
        if (HasFatalFailure()) return;
      }
    }
  }

  template <class Weight, class Call, class Decode>
  void check_groups(Call tile, int64_t panel_bytes_per_k2, Decode code) {
    for (int64_t k : {2, 4, 6, 16, 34, 64, 128, 130, 2048}) {
      std::vector<Weight> panel(static_cast<size_t>(k / 2 * panel_bytes_per_k2));
      for (Weight& w : panel) w = static_cast<Weight>(integer(0, 255));
      // The last group may be shorter; one of k or of more is a scale per channel.
      for (int64_t group : {int64_t{2}, int64_t{6}, int64_t{32}, int64_t{64}, int64_t{128}, k,
                            std::numeric_limits<int64_t>::max() - 1}) {
        const int64_t groups = (k - 1) / group + 1;
        std::vector<float> scales(static_cast<size_t>(groups * kPanel));
        for (float& s : scales) s = scale();
        for (int rows = 1; rows <= kMaxRows; ++rows) {
          SCOPED_TRACE(::testing::Message() << "k " << k << " group " << group << " rows " << rows);
          const Rows<float> x(rows, k, [&] { return normal(); });
          std::vector<float> y(kMaxRows * kPanel, kUnwritten);
          tile(x.pointers.data(), rows, panel.data(), scales.data(), k, group, y.data());
          expect_sums(y, x, rows, k, [&](int c, int64_t i) -> double {
            return double{scales[static_cast<size_t>(i / group * kPanel + c)]} * code(panel, c, i);
          });
          if (HasFatalFailure()) return;
        }
      }
    }
  }

  /// Each code alone in a k = 1 tile, multiplied by 1. Σ starts at +0, so -0 may come back as +0.
  void check_codes(FloatTile<uint16_t> tile, double (*value)(uint16_t)) {
    const float one = 1;
    const float* const x[] = {&one, &one, &one, &one};
    for (int rows : {1, kMaxRows}) {
      for (uint32_t first = 0; first < 65536; first += kPanel) {
        uint16_t panel[kPanel];
        for (uint32_t c = 0; c < kPanel; ++c) panel[c] = static_cast<uint16_t>(first + c);
        float y[kMaxRows * kPanel];
        tile(x, rows, panel, 1, y);
        for (int i = 0; i < rows * kPanel; ++i) {
          const double want = value(panel[i % kPanel]);
          if (std::isnan(want)) {
            ASSERT_TRUE(std::isnan(y[i])) << "code " << panel[i % kPanel];
          } else {
            ASSERT_EQ(y[i], want) << "code " << panel[i % kPanel];
          }
        }
      }
    }
  }

 private:
  std::mt19937 random_{20240611};
};

int int4_code(const std::vector<uint8_t>& panel, int c, int64_t k) {
  const int nibble = panel[static_cast<size_t>(k / 2 * kPanel + c)] >> (k % 2 * 4) & 15;
  return nibble < 8 ? nibble : nibble - 16;
}

int int8_code(const std::vector<int8_t>& panel, int c, int64_t k) {
  return panel[static_cast<size_t>(k / 2 * 2 * kPanel + 2 * c + k % 2)];
}

TEST_P(Tile, F32) {
  check_float<float>(
      tiles().f32, [](float w) { return w; }, [&] { return normal(); });
}

TEST_P(Tile, Bf16) {
  check_float<uint16_t>(tiles().bf16, decode_bf16, [&] {
    return static_cast<uint16_t>(std::bit_cast<uint32_t>(normal()) >> 16);
  });
}

TEST_P(Tile, F16) {
  check_float<uint16_t>(tiles().f16, decode_f16, [&] {
    return static_cast<uint16_t>(integer(0, 1) << 15 | integer(0, 0x7bff));  // finite
  });
}

TEST_P(Tile, Int4) {
  check_groups<uint8_t>(tiles().int4, kPanel, int4_code);
}

TEST_P(Tile, Int8) {
  check_groups<int8_t>(tiles().int8, 2 * kPanel, int8_code);
}

TEST_P(Tile, Bf16CodesConvertExactly) {
  check_codes(tiles().bf16, decode_bf16);
}

TEST_P(Tile, F16CodesConvertExactly) {
  check_codes(tiles().f16, decode_f16);
}

// An infinite activation meets a zero code as 0·inf = NaN in its own row only; other rows stay
// finite.
TEST_P(Tile, RowsDoNotMix) {
  const int64_t k = 34;
  const Rows<float> x(kMaxRows, k, [&] { return normal(); });
  std::vector<float> wild(x.values[1]);
  wild[3] = std::numeric_limits<float>::infinity();
  std::vector<const float*> rows = x.pointers;
  rows[1] = wild.data();
  const std::vector<uint8_t> panel4(k / 2 * kPanel);
  const std::vector<int8_t> panel8(k * kPanel);
  const std::vector<float> scales(2 * kPanel, 1.0f);
  std::vector<float> y(kMaxRows * kPanel);
  for (int pass = 0; pass < 2; ++pass) {
    if (pass == 0)
      tiles().int4(rows.data(), kMaxRows, panel4.data(), scales.data(), k, 32, y.data());
    if (pass == 1)
      tiles().int8(rows.data(), kMaxRows, panel8.data(), scales.data(), k, 32, y.data());
    for (int i = 0; i < kMaxRows * kPanel; ++i) {
      const float got = y[static_cast<size_t>(i)];
      if (i / kPanel == 1) {
        EXPECT_TRUE(std::isnan(got));
      } else {
        EXPECT_EQ(got, 0);
      }
    }
  }
}

TEST_P(Tile, EmptySumIsZero) {
  const float x = 0;
  const float* const rows[] = {&x, &x, &x, &x};
  const int8_t code = 0;
  const int8_t* const codes[] = {&code, &code, &code, &code};
  const uint8_t byte = 0;
  const std::vector<float> ones(kPanel, 1.0f);
  const std::vector<float> zeros(kMaxRows * kPanel);
  std::vector<float> y(kMaxRows * kPanel, kUnwritten);
  tiles().f32(rows, kMaxRows, &x, 0, y.data());
  EXPECT_EQ(y, zeros);
  y.assign(y.size(), kUnwritten);
  tiles().int4(rows, kMaxRows, &byte, ones.data(), 0, 32, y.data());
  EXPECT_EQ(y, zeros);
  y.assign(y.size(), kUnwritten);
  tiles().int8_int8(codes, ones.data(), kMaxRows, &code, ones.data(), 0, y.data());
  EXPECT_EQ(y, zeros);
}

TEST_P(Tile, Int8Int8) {
  for (int64_t k : {2, 4, 6, 16, 34, 64, 128, 130, 254, 256, 258, 2048}) {
    // Spread 0: every code is -128, so that -128·-128 meets itself in all sums.
    for (int spread : {0, 1, 255}) {
      const auto draw = [&] {
        if (spread == 1) return static_cast<int8_t>(integer(0, 1) != 0 ? 127 : -128);
        return static_cast<int8_t>(-128 + integer(0, spread));
      };
      std::vector<int8_t> panel(static_cast<size_t>(k * kPanel));
      for (int8_t& w : panel) w = draw();
      std::vector<float> scales(kPanel);
      for (float& s : scales) s = scale();
      for (int rows = 1; rows <= kMaxRows; ++rows) {
        SCOPED_TRACE(::testing::Message() << "k " << k << " rows " << rows << " spread " << spread);
        const Rows<int8_t> x(rows, k, draw);
        std::vector<float> x_scale(static_cast<size_t>(rows));
        for (float& s : x_scale) s = scale();
        std::vector<float> y(kMaxRows * kPanel, kUnwritten);
        tiles().int8_int8(x.pointers.data(), x_scale.data(), rows, panel.data(), scales.data(), k,
                          y.data());
        for (int r = 0; r < kMaxRows; ++r) {
          for (int c = 0; c < kPanel; ++c) {
            const float got = y[static_cast<size_t>(r * kPanel + c)];
            if (r >= rows) {
              ASSERT_EQ(got, kUnwritten);
              continue;
            }
            int64_t sum = 0;
            for (int64_t i = 0; i < k; ++i) {
              sum += int64_t{x.values[static_cast<size_t>(r)][static_cast<size_t>(i)]} *
                     int8_code(panel, c, i);
            }
            const double want = static_cast<double>(sum) * x_scale[static_cast<size_t>(r)] *
                                scales[static_cast<size_t>(c)];
            // Three roundings: the sum to f32, the two scales, their product with the sum.
            ASSERT_NEAR(got, want, 4 * 0x1p-24 * std::abs(want)) << "row " << r << " column " << c;
          }
        }
      }
    }
  }
}

// With scales of 1 and a sum under 2^24 nothing is rounded at all.
TEST_P(Tile, Int8Int8IsExact) {
  const int64_t k = 1022;  // 1022·128·128 < 2^24
  std::vector<int8_t> panel(static_cast<size_t>(k * kPanel));
  for (int8_t& w : panel) w = static_cast<int8_t>(integer(-128, 127));
  const Rows<int8_t> x(kMaxRows, k, [&] { return static_cast<int8_t>(integer(-128, 127)); });
  const std::vector<float> ones(kPanel, 1.0f);
  std::vector<float> y(kMaxRows * kPanel);
  tiles().int8_int8(x.pointers.data(), ones.data(), kMaxRows, panel.data(), ones.data(), k,
                    y.data());
  for (int r = 0; r < kMaxRows; ++r) {
    for (int c = 0; c < kPanel; ++c) {
      int64_t sum = 0;
      for (int64_t i = 0; i < k; ++i) {
        sum += int64_t{x.values[static_cast<size_t>(r)][static_cast<size_t>(i)]} *
               int8_code(panel, c, i);
      }
      EXPECT_EQ(y[static_cast<size_t>(r * kPanel + c)], static_cast<float>(sum));
    }
  }
}

// The longest sum that fits i32 for any codes: 131,070·2^14 = 2^31 - 2^15.
TEST_P(Tile, Int8Int8LongestSum) {
  const int64_t k = 131070;
  const std::vector<int8_t> panel(static_cast<size_t>(k * kPanel), int8_t{-128});
  const std::vector<int8_t> x(static_cast<size_t>(k), int8_t{-128});
  const int8_t* const rows[] = {x.data()};
  const std::vector<float> ones(kPanel, 1.0f);
  std::vector<float> y(kMaxRows * kPanel);
  tiles().int8_int8(rows, ones.data(), 1, panel.data(), ones.data(), k, y.data());
  for (int c = 0; c < kPanel; ++c) EXPECT_EQ(y[static_cast<size_t>(c)], 0x1p31f - 0x1p15f);
}

INSTANTIATE_TEST_SUITE_P(Tables, Tile, ::testing::ValuesIn(kTables),
                         [](const auto& param) { return std::string(param.param.kernels->isa); });

}  // namespace
}  // namespace moracle::cpu::tile_test
