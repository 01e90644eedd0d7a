// Tests the operations around the GEMMs on the CPU device with one and three threads, against plain
// computation in double.
#include "kernels/ops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "base/refused_threads.h"
#include "base/scalar.h"
#include "kernels/cpu/device/cpu_device.h"
#include "kernels/cpu_ops_test.h"
#include "kernels/paged.h"
#include "moracle/device.h"
#include "quant/activation.h"

namespace moracle::ops_test {
namespace {

constexpr double kU = 0x1p-24;

class OpsTest : public CpuOpsTest {};

// ---- plan_rows ----

struct Planned {
  std::vector<int32_t> offsets, row_token, slot_row, row_slot;
};
Planned plan(Ops& ops, const std::vector<int32_t>& ids, int64_t top_k, int64_t num_experts) {
  Planned p{std::vector<int32_t>(num_experts + 1, -9), std::vector<int32_t>(ids.size(), -9),
            std::vector<int32_t>(ids.size(), -9), std::vector<int32_t>(ids.size(), -9)};
  EXPECT_TRUE(ops.plan_rows(
      ids.data(), static_cast<int64_t>(ids.size()) / top_k, top_k, num_experts, nullptr,
      num_experts, {p.offsets.data(), p.row_token.data(), p.slot_row.data(), p.row_slot.data()},
      {}));
  return p;
}

void expect_plan(const Planned& p, const std::vector<int32_t>& ids, int64_t top_k,
                 int64_t num_experts) {
  // The definition of a stable sort: expert by expert, token by token.
  int32_t row = 0;
  for (int64_t e = 0; e < num_experts; ++e) {
    ASSERT_EQ(p.offsets[e], row) << "expert " << e;
    for (size_t slot = 0; slot < ids.size(); ++slot) {
      if (ids[slot] != e) continue;
      ASSERT_EQ(p.slot_row[slot], row) << "slot " << slot;
      ASSERT_EQ(p.row_token[row], static_cast<int32_t>(slot) / top_k);
      ASSERT_EQ(p.row_slot[row], static_cast<int32_t>(slot));
      ++row;
    }
  }
  ASSERT_EQ(p.offsets[num_experts], row);
  for (size_t slot = 0; slot < ids.size(); ++slot) {
    if (ids[slot] < 0 || ids[slot] >= num_experts) {
      ASSERT_EQ(p.slot_row[slot], -1) << "slot " << slot;
    }
  }
}

TEST_P(OpsTest, PlanRowsSortsByExpertAndKeepsTheOrderOfTokens) {
  for (auto [num_experts, top_k, tokens] :
       {std::tuple{8, 2, 50}, {1, 1, 5}, {128, 8, 64}, {3, 3, 7}, {64, 4, 1}}) {
    std::vector<int32_t> ids(tokens * top_k);
    for (int32_t& id : ids) id = static_cast<int32_t>(random_() % num_experts);
    expect_plan(plan(ops_, ids, top_k, num_experts), ids, top_k, num_experts);
  }
}

// A rank may have no experts.
TEST_P(OpsTest, PlanRowsGivesNoRowsWithoutLocalExperts) {
  const std::vector<int32_t> ids = {0, 2, -1, 1, 2, 0}, elsewhere(3, -1);
  std::vector<int32_t> offsets(1, -9), row_token(6, -9), slot_row(6, -9), row_slot(6, -9);
  EXPECT_TRUE(ops_.plan_rows(ids.data(), 3, 2, 3, elsewhere.data(), 0,
                             {offsets.data(), row_token.data(), slot_row.data(), row_slot.data()},
                             {}));
  EXPECT_EQ(offsets, std::vector<int32_t>{0});
  EXPECT_EQ(slot_row, std::vector<int32_t>(6, -1));
}

// D33: an invalid id is not counted from the end and not mapped to another expert.
TEST_P(OpsTest, PlanRowsGivesNoRowToInvalidExpertIds) {
  std::vector<int32_t> ids = {-1, 0, 3, 2, -1, -1, 4, 1, 2147483647, -2147483647 - 1, 3, 100};
  const Planned p = plan(ops_, ids, 2, 4);
  expect_plan(p, ids, 2, 4);
  EXPECT_EQ(p.offsets[4], 5);
  const std::vector<int32_t> none(8, -1);
  const Planned q = plan(ops_, none, 2, 4);
  EXPECT_EQ(q.offsets, std::vector<int32_t>(5, 0));
  EXPECT_EQ(q.slot_row, none);
}

TEST_P(OpsTest, PlanRowsAcceptsOneExpertForAllTokens) {
  for (int32_t expert : {0, 6, 7}) {
    const std::vector<int32_t> ids(40, expert);
    const Planned p = plan(ops_, ids, 4, 8);
    expect_plan(p, ids, 4, 8);
    EXPECT_EQ(p.offsets[expert + 1] - p.offsets[expert], 40);
  }
}

TEST_P(OpsTest, PlanRowsOfNoTokensIsEmpty) {
  const Planned p = plan(ops_, {}, 2, 4);
  EXPECT_EQ(p.offsets, std::vector<int32_t>(5, 0));
}

// ---- quantize ----

TEST_P(OpsTest, QuantizeScalesEachRowSeparatelyAndPadsWithZeros) {
  const int64_t rows = 9, cols = 33, padded = 34, stride = 40;
  std::vector<float> x = normal(rows * cols), scales(rows);
  std::fill_n(&x[3 * cols], cols, 0.0f);
  for (int64_t c = 0; c < cols; ++c) x[4 * cols + c] *= 1000;
  std::vector<int8_t> codes(rows * stride, int8_t{77});
  ASSERT_TRUE(ops_.quantize(view(x, rows, cols), kInt8DynamicTokenSym,
                            {{codes.data(), DType::kI8, rows, padded, stride}, scales.data(), 1},
                            {}));
  for (int64_t r = 0; r < rows; ++r) {
    int largest = 0;
    for (int64_t c = 0; c < cols; ++c) {
      const int code = codes[r * stride + c];
      largest = std::max(largest, std::abs(code));
      EXPECT_NEAR(code * double{scales[r]}, x[r * cols + c], 0.5001 * scales[r]);
    }
    EXPECT_EQ(largest, r == 3 ? 0 : 127);
    EXPECT_EQ(codes[r * stride + cols], 0);
    EXPECT_EQ(codes[r * stride + padded], 77) << "past the columns nothing is written";
  }
}

TEST_P(OpsTest, QuantizeRejectsUnknownKeys) {
  std::vector<float> x(4, 1.0f), scales(1);
  std::vector<int8_t> codes(4);
  QuantKey fixed = kInt8DynamicTokenSym, grouped = kInt8DynamicTokenSym;
  fixed.dynamic = false;
  grouped.group.cols = 2;
  for (const QuantKey& key : {fixed, grouped, int4_static_group(32)}) {
    const Status done = ops_.quantize(view(x, 1, 4), key,
                                      {{codes.data(), DType::kI8, 1, 4, 4}, scales.data(), 1}, {});
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().kind, ErrorKind::kUnsupported);
  }
}

TEST_P(OpsTest, QuantizeToFloatsGivesDequantizedValues) {
  const int64_t rows = 5, cols = 70, padded = 72;
  const std::vector<float> x = normal(rows * cols);
  std::vector<float> mutable_x = x;
  for (const QuantKey& key :
       {kInt8DynamicTokenSym, kFp8DynamicTokenSym, fp8_dynamic_group(32), kMxfp8Dynamic}) {
    const int64_t groups = num_groups(key, cols);
    std::vector<uint8_t> codes(rows * padded);
    std::vector<float> decoded(rows * padded, NAN), scales(rows * groups), again(rows * groups);
    ASSERT_TRUE(ops_.quantize(
        view(mutable_x, rows, cols), key,
        {{codes.data(), key.dtype, rows, padded, padded}, scales.data(), groups}, {}));
    ASSERT_TRUE(ops_.quantize(view(mutable_x, rows, cols), key,
                              {view(decoded, rows, padded), again.data(), groups}, {}));
    EXPECT_EQ(scales, again);
    for (int64_t i = 0; i < rows * padded; ++i) {
      const int64_t r = i / padded, c = i % padded;
      const float scale = c < cols ? scales[r * groups + c / group_cols(key, cols)] : 0;
      EXPECT_EQ(decoded[i], c < cols ? decode(key, codes[i]) * scale : 0.0f);
    }
  }
}

TEST_P(OpsTest, StoredScalesFollowExpertOfRow) {
  std::vector<float> x = {1, 2, 3, 1000, -5, 6};
  const float scales[] = {1.0f, 0.5f};
  const int32_t offsets[] = {0, 1, 3}, index[] = {1, 0, 1};
  std::vector<float> out(9, NAN), row_scales(3);
  ASSERT_TRUE(ops_.quantize_static(view(x, 2, 3), index, offsets, 2, scales, kFp8StaticTensorSym,
                                   {view(out, 3, 3), row_scales.data(), 1}, {}));
  EXPECT_THAT(row_scales, ::testing::ElementsAre(1.0f, 0.5f, 0.5f));
  EXPECT_THAT(out, ::testing::ElementsAre(448, -5, 6, 1, 2, 3, 224, -5, 6))
      << "beyond 448 it saturates";
}

// ---- combine ----

TEST_P(OpsTest, CombineAddsWeightedRowsInSlotOrder) {
  const int64_t tokens = 7, top_k = 3, cols = 300;  // more than the stretch that is summed at once
  std::vector<float> y = normal(tokens * top_k * cols), weights = normal(tokens * top_k);
  std::vector<int32_t> slot_row(tokens * top_k);
  std::iota(slot_row.begin(), slot_row.end(), 0);
  std::shuffle(slot_row.begin(), slot_row.end(), random_);
  for (size_t slot = 0; slot < slot_row.size(); slot += 4) slot_row[slot] = -1;
  for (int64_t j = 0; j < top_k; ++j) slot_row[5 * top_k + j] = -1;
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    std::vector<float> floats(tokens * cols, NAN);
    std::vector<uint16_t> halves(tokens * cols, 0x7fff);
    const bool wide = dtype == DType::kF32;
    const Matrix out{wide ? static_cast<void*>(floats.data()) : halves.data(), dtype, tokens, cols,
                     cols};
    ASSERT_TRUE(ops_.combine(view(y, tokens * top_k, cols), slot_row.data(), weights.data(), top_k,
                             out, {}));
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t c = 0; c < cols; ++c) {
        double want = 0, size = 0;
        for (int64_t j = t * top_k; j < (t + 1) * top_k; ++j) {
          if (slot_row[j] < 0) continue;
          const double term = double{weights[j]} * y[slot_row[j] * cols + c];
          want += term;
          size += std::fabs(term);
        }
        const int64_t at = t * cols + c;
        const double got = wide                    ? floats[at]
                           : dtype == DType::kBF16 ? bf16_to_float(halves[at])
                                                   : f16_to_float(halves[at]);
        const double rounding = wide ? 0 : dtype == DType::kBF16 ? 0x1p-8 : 0x1p-11;
        ASSERT_NEAR(got, want,
                    (top_k + 2) * kU * size + rounding * std::fabs(want) * 1.001 + 0x1p-25);
        if (t == 5) {
          ASSERT_EQ(got, 0);
          ASSERT_FALSE(std::signbit(got));
        }
      }
    }
  }
}

// A slot without a row adds exactly zero, even if its weight is NaN.
TEST_P(OpsTest, CombineSkipsWeightOfSlotWithoutRow) {
  std::vector<float> y = {1, 2}, weights = {NAN, 0.5f}, out(2, NAN);
  const int32_t slot_row[] = {-1, 0};
  ASSERT_TRUE(ops_.combine(view(y, 1, 2), slot_row, weights.data(), 2, view(out, 1, 2), {}));
  EXPECT_EQ(out, (std::vector<float>{0.5f, 1}));
}

// D40: a row starts 2^33 bytes after the first. Only the page of that row is touched.
TEST_P(OpsTest, CombineIndexesRowsBeyond32Bits) {
  const int64_t row = (int64_t{1} << 20) + 3, stride = 2048;
  const size_t bytes = static_cast<size_t>((row + 1) * stride) * sizeof(float);
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "no address space of this size";
  const Matrix y{memory, DType::kF32, row + 1, 4, stride};
  const float values[] = {1, 2, 3, 4};
  std::copy_n(values, 4, static_cast<float*>(y.slice(row, 1).data));
  const int32_t slot_row[] = {static_cast<int32_t>(row)};
  const float weight = 2;
  std::vector<float> out(4, NAN);
  EXPECT_TRUE(ops_.combine(y, slot_row, &weight, 1, view(out, 1, 4), {}));
  EXPECT_EQ(out, (std::vector<float>{2, 4, 6, 8}));
  ::munmap(memory, bytes);
}

// ---- convert and add ----

TEST_P(OpsTest, ConvertsBetweenAllFloatsAndPadsWithZeros) {
  const int64_t rows = 5, cols = 19, padded = 24, stride = 32;
  std::vector<float> x = normal(rows * cols, 100);
  for (DType from_type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (DType to_type : {DType::kF32, DType::kBF16, DType::kF16}) {
      std::vector<uint16_t> halves(rows * cols);
      for (size_t i = 0; i < x.size(); ++i) {
        halves[i] = from_type == DType::kBF16 ? float_to_bf16(x[i]) : float_to_f16(x[i]);
      }
      const Matrix from{from_type == DType::kF32 ? static_cast<void*>(x.data()) : halves.data(),
                        from_type, rows, cols, cols};
      std::vector<uint32_t> words(rows * stride, 0x7fc17fc1u);
      const Matrix to{words.data(), to_type, rows, padded, stride};
      ASSERT_TRUE(ops_.convert(from, to, {}));
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < padded; ++c) {
          const int64_t i = r * cols + c;
          float want = c >= cols                   ? 0
                       : from_type == DType::kF32  ? x[i]
                       : from_type == DType::kBF16 ? bf16_to_float(halves[i])
                                                   : f16_to_float(halves[i]);
          float got = 0;
          const auto* short_row = static_cast<const uint16_t*>(to.data) + r * stride + c;
          if (to_type == DType::kF32) {
            got = static_cast<const float*>(to.data)[r * stride + c];
          } else if (to_type == DType::kBF16) {
            want = bf16_to_float(float_to_bf16(want));
            got = bf16_to_float(*short_row);
          } else {
            want = f16_to_float(float_to_f16(want));
            got = f16_to_float(*short_row);
          }
          ASSERT_EQ(got, want) << name(from_type) << " to " << name(to_type);
        }
        if (to_type == DType::kF32) {
          EXPECT_EQ(words[r * stride + padded], 0x7fc17fc1u)
              << "past the columns nothing is written";
        }
      }
    }
  }
}

TEST_P(OpsTest, AddAddsInPlace) {
  std::vector<float> x = normal(11 * 23), y = normal(11 * 23), want = x;
  for (size_t i = 0; i < x.size(); ++i) want[i] += y[i];
  ASSERT_TRUE(ops_.add(view(x, 11, 23), view(y, 11, 23), {}));
  EXPECT_EQ(x, want);
}

// ---- around the layers of a model ----

TEST_P(OpsTest, EmbedCopiesRowsOfIds) {
  const int64_t vocab = 7, cols = 12;
  const std::vector<float> values = normal(vocab * cols);
  const std::vector<int32_t> ids = {6, 0, 3, 3};
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    std::vector<uint16_t> halves;
    for (float value : values)
      halves.push_back(dtype == DType::kBF16 ? float_to_bf16(value) : float_to_f16(value));
    const TensorView table{dtype == DType::kF32 ? reinterpret_cast<const std::byte*>(values.data())
                                                : reinterpret_cast<const std::byte*>(halves.data()),
                           dtype,
                           {vocab, cols}};
    std::vector<float> out(4 * cols, NAN);
    ASSERT_TRUE(ops_.embed(table, ids.data(), view(out, 4, cols), {}));
    for (int64_t t = 0; t < 4; ++t) {
      for (int64_t c = 0; c < cols; ++c) {
        const int64_t i = ids[t] * cols + c;
        const float want = dtype == DType::kF32    ? values[i]
                           : dtype == DType::kBF16 ? bf16_to_float(halves[i])
                                                   : f16_to_float(halves[i]);
        EXPECT_EQ(out[t * cols + c], want);
      }
    }
  }
}

TEST_P(OpsTest, EmbedRejectsNonFloatTables) {
  const std::vector<int64_t> table(4);
  const int32_t id = 1;
  std::vector<float> out(2);
  const Status done =
      ops_.embed({reinterpret_cast<const std::byte*>(table.data()), DType::kI64, {2, 2}}, &id,
                 view(out, 1, 2), {});
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().kind, ErrorKind::kUnsupported);
}

TEST_P(OpsTest, RmsNormDividesEachRunByItsRootMeanSquare) {
  const int64_t rows = 6;
  for (auto [cols, size] : {std::pair{48, 48}, {48, 16}, {33, 11}, {8, 1}}) {
    std::vector<float> x = normal(rows * cols, 3), weight = normal(size), out(rows * cols, NAN);
    for (int64_t c = 0; c < cols; ++c) x[2 * cols + c] = 0;
    const float epsilon = 1e-6f;
    ASSERT_TRUE(ops_.rms_norm(view(x, rows, cols), weight.data(), size, epsilon,
                              view(out, rows, cols), {}));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        double squares = 0;
        const int64_t begin = r * cols + c / size * size;
        for (int64_t i = begin; i < begin + size; ++i) squares += double{x[i]} * x[i];
        const double want =
            x[r * cols + c] / std::sqrt(squares / size + epsilon) * weight[c % size];
        ASSERT_NEAR(out[r * cols + c], want, 8 * kU * std::fabs(want));
      }
    }
    std::vector<float> in_place = x;
    ASSERT_TRUE(ops_.rms_norm(view(in_place, rows, cols), weight.data(), size, epsilon,
                              view(in_place, rows, cols), {}));
    EXPECT_EQ(in_place, out) << "input and output may be the same";
  }
}

/// Applies RoPE to `heads` heads and compares every column with a double reference.
void check_rotation(Ops& ops, const RotaryShape& shape, int64_t heads, std::vector<float> x) {
  const int64_t cols = shape.head_dim * heads, turned = 2 * shape.num_pairs;
  std::vector<float> frequencies(shape.num_pairs);
  for (int64_t i = 0; i < shape.num_pairs; ++i) {
    frequencies[i] =
        static_cast<float>(std::pow(1e6, -static_cast<double>(i) / double(shape.num_pairs)));
  }
  const std::vector<int32_t> positions = {0, 1, 2, 77, 4095, 131071};
  const auto rows = static_cast<int64_t>(positions.size());
  x.resize(rows * cols);
  std::vector<float> got = x;
  ASSERT_TRUE(ops.rotate(view(got, rows, cols), shape, frequencies.data(), positions.data(), {}));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const int64_t at = c % shape.head_dim - shape.first, column = r * cols + c;
      if (at < 0 || at >= turned) {
        ASSERT_EQ(got[column], x[column]) << "column " << c << " does not turn";
        continue;
      }
      const int64_t i = shape.interleaved ? at / 2 : at % shape.num_pairs;
      const bool is_first = shape.interleaved ? at % 2 == 0 : at < shape.num_pairs;
      const int64_t partner = shape.interleaved ? 1 : shape.num_pairs;
      // The angle is rounded to f32, as in model training; sine and cosine are not.
      const float angle = static_cast<float>(positions[r]) * frequencies[i];
      const double a = x[is_first ? column : column - partner];
      const double b = x[is_first ? column + partner : column];
      const double cosine = std::cos(double{angle}), sine = std::sin(double{angle});
      const double want = shape.factor * (is_first ? a * cosine - b * sine : b * cosine + a * sine);
      ASSERT_NEAR(got[column], want, 8 * kU * shape.factor * (std::fabs(a) + std::fabs(b)))
          << "position " << positions[r] << " column " << c;
    }
  }
}

TEST_P(OpsTest, RotateAppliesRopeByPosition) {
  check_rotation(ops_, {16, 8}, 3, normal(6 * 48));
  check_rotation(ops_, {2, 1}, 1, normal(6 * 2));
}

TEST_P(OpsTest, RotateSupportsInterleavedPairs) {
  check_rotation(ops_, {16, 8, 0, true}, 3, normal(6 * 48));
}

TEST_P(OpsTest, RotateKeepsUnrotatedPartOfHead) {
  check_rotation(ops_, {20, 4}, 3, normal(6 * 60));
  check_rotation(ops_, {24, 5, 11}, 2, normal(6 * 48));
  check_rotation(ops_, {24, 5, 14, true}, 2, normal(6 * 48));
}

TEST_P(OpsTest, RotateScalesRotatedPartByFactor) {
  check_rotation(ops_, {16, 8, 0, false, 1.3466f}, 2, normal(6 * 32));
  check_rotation(ops_, {18, 4, 6, true, 0.75f}, 2, normal(6 * 36));
}

TEST_P(OpsTest, CopyHeadsCopiesColumnsOfEachHead) {
  const int64_t rows = 5, heads = 3;
  // Keys and values side by side in each head, [4 ‖ 3]; and one key of two columns for all heads.
  std::vector<float> both = normal(rows * heads * 7), shared = normal(rows * 2);
  std::vector<float> keys(rows * heads * 6, NAN), values(rows * heads * 3, NAN);
  const Matrix from = view(both, rows, heads * 7), to = view(keys, rows, heads * 6);
  ASSERT_TRUE(ops_.copy_heads(from, 7, to, 6, heads, 4, {}));
  Matrix behind = to, tail = from;
  behind.data = keys.data() + 4, behind.cols -= 4;
  tail.data = both.data() + 4, tail.cols -= 4;
  ASSERT_TRUE(ops_.copy_heads(view(shared, rows, 2), 0, behind, 6, heads, 2, {}));
  ASSERT_TRUE(ops_.copy_heads(tail, 7, view(values, rows, heads * 3), 3, heads, 3, {}));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t head = 0; head < heads; ++head) {
      const float* source = &both[(r * heads + head) * 7];
      for (int64_t c = 0; c < 4; ++c) EXPECT_EQ(keys[(r * heads + head) * 6 + c], source[c]);
      for (int64_t c = 0; c < 2; ++c)
        EXPECT_EQ(keys[(r * heads + head) * 6 + 4 + c], shared[r * 2 + c]);
      for (int64_t c = 0; c < 3; ++c) EXPECT_EQ(values[(r * heads + head) * 3 + c], source[4 + c]);
    }
  }
}

// ---- attention ----

struct Sequence {
  int64_t position, num_tokens;
};

/// Runs a batch of sequences and compares each head with a softmax in double.
void check_attention(Device& device, std::mt19937& random, AttentionShape shape,
                     const std::vector<Sequence>& sequences, float size = 1) {
  std::normal_distribution<float> normal;
  auto fill = [&](std::vector<float>& values, float scale) {
    for (float& value : values) value = normal(random) * scale;
  };
  const int64_t key_row = shape.num_kv_heads * shape.head_dim,
                value_row = shape.num_kv_heads * shape.value_dim;
  const int64_t q_cols = shape.num_heads * shape.head_dim, cols = shape.num_heads * shape.value_dim;
  int64_t tokens = 0;
  for (const Sequence& sequence : sequences) tokens += sequence.num_tokens;
  std::vector<float> q(tokens * q_cols), k(tokens * key_row), v(tokens * value_row);
  std::vector<float> out(tokens * cols, NAN);
  fill(q, size), fill(k, 1), fill(v, 1);
  std::vector<int64_t> capacities;
  for (const Sequence& sequence : sequences)
    capacities.push_back(sequence.position + sequence.num_tokens);
  testing::PagedCaches caches(capacities, key_row, value_row, DType::kF32, 256);
  std::vector<testing::PagedCaches::Tokens> step;
  // Positions past the last token, or before every token's window, must not be read.
  for (size_t s = 0; s < sequences.size(); ++s) {
    const int64_t position = sequences[s].position;
    const int64_t seen = shape.window > 0 ? std::max<int64_t>(0, position + 1 - shape.window) : 0;
    for (int64_t i = seen; i < position; ++i) {
      std::vector<float> row(std::max(key_row, value_row));
      fill(row, 1);
      caches.set(caches.key(s, i), row.data(), key_row);
      fill(row, 1);
      caches.set(caches.value(s, i), row.data(), value_row);
    }
    step.push_back({s, position, sequences[s].num_tokens});
  }
  const Batch& batch = caches.batch(step, device);
  shape.cache = caches.layer();
  ASSERT_TRUE(device.ops().append(view(k, tokens, key_row), view(v, tokens, value_row), batch,
                                  shape.cache, {}));
  ASSERT_TRUE(device.ops().attend(view(q, tokens, q_cols), batch, shape, view(out, tokens, cols),
                                  nullptr, {}));
  for (size_t s = 0; s < sequences.size(); ++s) {
    for (int64_t t = 0; t < sequences[s].num_tokens; ++t) {
      const int64_t token = batch.first_token[s] + t, position = sequences[s].position + t;
      for (int64_t c = 0; c < key_row; ++c) {
        ASSERT_EQ(caches.get(caches.key(s, position), c), k[token * key_row + c])
            << "the cache takes the new keys";
      }
      for (int64_t c = 0; c < value_row; ++c)
        ASSERT_EQ(caches.get(caches.value(s, position), c), v[token * value_row + c]);
      const int64_t begin =
          shape.window > 0 ? std::max<int64_t>(0, position + 1 - shape.window) : 0;
      for (int64_t head = 0; head < shape.num_heads; ++head) {
        const int64_t kv = head / (shape.num_heads / shape.num_kv_heads);
        const float* query = &q[token * q_cols + head * shape.head_dim];
        std::vector<double> scores(position + 1 - begin);
        double largest = shape.sinks != nullptr ? shape.sinks[head] : -INFINITY, doubt = 0;
        for (int64_t i = begin; i <= position; ++i) {
          double magnitude = 0;
          for (int64_t d = 0; d < shape.head_dim; ++d) {
            const double product =
                double{query[d]} * caches.get(caches.key(s, i), kv * shape.head_dim + d);
            scores[i - begin] += product * shape.scale;
            magnitude += std::fabs(product * shape.scale);
          }
          largest = std::max(largest, scores[i - begin]);
          doubt = std::max(doubt, static_cast<double>(shape.head_dim + 4) * kU * magnitude);
        }
        double sum = shape.sinks != nullptr ? std::exp(shape.sinks[head] - largest) : 0;
        for (double& score : scores) sum += score = std::exp(score - largest);
        for (int64_t d = 0; d < shape.value_dim; ++d) {
          double want = 0, magnitude = 0;
          for (int64_t i = begin; i <= position; ++i) {
            const double term =
                scores[i - begin] / sum * caches.get(caches.value(s, i), kv * shape.value_dim + d);
            want += term;
            magnitude += std::fabs(term);
          }
          // Each weight is off by a factor of exp(doubt) above and below the fraction line, and the
          // sums round.
          const double bound =
              (4 * doubt + static_cast<double>(position + 40) * kU * 2) * magnitude;
          ASSERT_NEAR(out[token * cols + head * shape.value_dim + d], want, bound)
              << "sequence " << s << " position " << position << " head " << head;
        }
      }
    }
  }
}

TEST_P(OpsTest, AttendIsCausal) {
  check_attention(*device_, random_, {2, 2, 8, 8, 0.35f}, {{0, 9}});
}

TEST_P(OpsTest, AttendSharesKeysBetweenGroupedHeads) {
  check_attention(*device_, random_, {8, 2, 16, 16, 0.25f}, {{0, 5}});
  check_attention(*device_, random_, {6, 1, 20, 20, 0.22f}, {{3, 2}});
}

TEST_P(OpsTest, AttendContinuesFromTheCache) {
  check_attention(*device_, random_, {4, 2, 16, 16, 0.25f}, {{37, 1}});
  check_attention(*device_, random_, {4, 2, 16, 16, 0.25f}, {{20, 6}});
}

TEST_P(OpsTest, AttendSeparatesSequencesOfBatch) {
  check_attention(*device_, random_, {4, 2, 16, 16, 0.25f}, {{0, 3}, {50, 1}, {0, 1}, {7, 4}});
}

// Keys are processed in blocks of 64: covers lengths at, before and after the edges, and several
// blocks.
TEST_P(OpsTest, AttendMatchesSoftmaxOverLongContext) {
  for (int64_t position : {62, 63, 64, 127, 128, 300}) {
    check_attention(*device_, random_, {2, 1, 16, 16, 0.25f}, {{position, 2}});
  }
  // Large scores: the maximum moves from block to block.
  check_attention(*device_, random_, {2, 1, 16, 16, 0.25f}, {{250, 3}}, 12);
  check_attention(*device_, random_, {2, 2, 13, 13, 0.3f}, {{0, 130}});
}

TEST_P(OpsTest, AttendAcceptsValuesAndKeysOfDifferentSize) {
  check_attention(*device_, random_, {4, 2, 24, 16, 0.2f}, {{0, 7}, {70, 2}});
  check_attention(*device_, random_, {3, 3, 6, 20, 0.4f}, {{5, 4}});
}

TEST_P(OpsTest, AttendSeesOnlyItsWindow) {
  for (int64_t window : {1, 2, 5, 64, 65, 1000}) {
    AttentionShape shape{4, 2, 16, 16, 0.25f};
    shape.window = window;
    check_attention(*device_, random_, shape, {{0, 9}, {200, 3}, {window - 1, 2}, {window, 1}});
  }
}

TEST_P(OpsTest, AttendCountsSinksInTheDenominatorOnly) {
  // Far below every score, among them, and so far above that nothing else counts.
  const std::vector<float> sinks = {-40, 0.5f, 3, 30};
  AttentionShape shape{4, 2, 16, 12, 0.25f};
  shape.sinks = sinks.data();
  check_attention(*device_, random_, shape, {{0, 5}, {130, 2}}, 3);
  shape.window = 4;
  check_attention(*device_, random_, shape, {{0, 9}, {130, 2}}, 3);
}

TEST_P(OpsTest, AttendOfSingleTokenGivesItsValue) {
  std::vector<float> q = normal(8), k = normal(8), v = normal(8), out(8);
  testing::PagedCaches caches({1}, 8, 8, DType::kF32, 256);
  const Batch& batch = caches.batch({{0, 0, 1}}, *device_);
  AttentionShape shape{1, 1, 8, 8, 0.35f};
  shape.cache = caches.layer();
  ASSERT_TRUE(ops_.append(view(k, 1, 8), view(v, 1, 8), batch, shape.cache, {}));
  ASSERT_TRUE(ops_.attend(view(q, 1, 8), batch, shape, view(out, 1, 8), nullptr, {}));
  EXPECT_EQ(out, v);
}

TEST_P(OpsTest, ZeroRowsDoNothing) {
  const Matrix none{nullptr, DType::kF32, 0, 8, 8};
  EXPECT_TRUE(ops_.convert(none, none, {}));
  EXPECT_TRUE(ops_.quantize(none, kInt8DynamicTokenSym, {none, nullptr, 1}, {}));
  EXPECT_TRUE(ops_.activate({}, 4, none, none, {}));
  EXPECT_TRUE(ops_.combine(none, nullptr, nullptr, 2, none, {}));
  EXPECT_TRUE(ops_.add(none, none, {}));
  EXPECT_TRUE(ops_.rms_norm(none, nullptr, 8, 1e-6f, none, {}));
  EXPECT_TRUE(ops_.rotate(none, {4, 2}, nullptr, nullptr, {}));
  EXPECT_TRUE(ops_.copy_heads(none, 2, none, 4, 2, 2, {}));
  Batch nobody;
  nobody.page = 256;
  EXPECT_TRUE(ops_.append(none, none, nobody, {}, {}));
  EXPECT_TRUE(ops_.attend(none, nobody, {2, 1, 4, 4, 0.5f}, none, nullptr, {}));
}

INSTANTIATE_TEST_SUITE_P(Threads, OpsTest, ::testing::Values(1, 3), [](const auto& param) {
  return "threads_" + std::to_string(param.param);
});

// ---- the device ----

TEST(CpuDevice, GivesZeroedMemoryThatHostCodeMayUse) {
  const auto device = *open_device("cpu", 1);
  EXPECT_EQ(device->name(), "cpu");
  EXPECT_EQ(device->platform(), Platform::kCpu);
  EXPECT_EQ(device->activation_dtype(), DType::kF32);
  EXPECT_TRUE(device->host_visible());
  auto buffer = device->allocate(10000);
  ASSERT_TRUE(buffer);
  EXPECT_EQ(buffer->bytes(), 10000u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 64, 0u);
  EXPECT_TRUE(
      std::all_of(buffer->as<char>(), buffer->as<char>() + 10000, [](char c) { return c == 0; }));
  const char text[] = "there and back";
  char back[sizeof text] = {};
  ASSERT_TRUE(device->upload(buffer->data(), text, sizeof text));
  ASSERT_TRUE(device->download(back, buffer->data(), sizeof text));
  EXPECT_STREQ(back, text);
  EXPECT_TRUE(device->synchronize());
}

TEST(CpuDevice, ZeroBytesAllocateNothing) {
  const auto device = *open_device("cpu", 1);
  auto buffer = device->allocate(0);
  ASSERT_TRUE(buffer);
  EXPECT_EQ(buffer->bytes(), 0u);
  EXPECT_TRUE(device->upload(nullptr, nullptr, 0));
}

TEST(CpuDevice, RejectsMoreThreadsThanSystemStarts) {
  const testing::RefusedThreads none;
  ASSERT_TRUE(none.refuses());
  const auto device = open_device("cpu", 4096);
  ASSERT_FALSE(device);
  EXPECT_EQ(device.error().kind, ErrorKind::kOutOfMemory);
  EXPECT_EQ(device.error().place, "--threads");
  EXPECT_TRUE(open_device("cpu", 1)) << "the caller's own thread is enough";
}

TEST(CpuDevice, KeepsScratchWhenGrowthFails) {
  CpuDevice device(1);
  ASSERT_TRUE(device.reserve_scratch(1000));
  std::byte* const scratch = device.scratch();
  const Status refused = device.reserve_scratch(size_t{1} << 60);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kOutOfMemory);
  EXPECT_EQ(device.scratch(), scratch);
}

TEST(CpuDevice, RejectsImpossibleAllocation) {
  const auto device = *open_device("cpu", 1);
  const auto buffer = device->allocate(size_t{1} << 62);
  ASSERT_FALSE(buffer);
  EXPECT_EQ(buffer.error().kind, ErrorKind::kOutOfMemory);
  EXPECT_NE(buffer.error().need.find("4611686018427387904"), std::string::npos);
}

TEST(OpenDevice, UnknownNameListsKnownDevices) {
  auto refused = [](const char* name, ErrorKind kind) {
    const auto device = open_device(name);
    ASSERT_FALSE(device) << name;
    EXPECT_EQ(device.error().kind, kind) << name;
    EXPECT_NE(device.error().need.find("cpu"), std::string::npos);
  };
  for (const char* unknown : {"", "gpu", "CPU", "cpu:0", "cuda:", "opencl:x"})
    refused(unknown, ErrorKind::kInvalidArgument);
  for (const char* absent : {"cuda:4096", "opencl:1"}) refused(absent, ErrorKind::kUnsupported);
  if (open_device("cuda")) return;  // there is a GPU
  for (const char* absent : {"cuda", "cuda:0"}) refused(absent, ErrorKind::kUnsupported);
}

}  // namespace
}  // namespace moracle::ops_test
