// Compares every GPU operation around the experts with the CPU. Bits must be equal where the
// definition fixes them. With exponentials or sums the bound is bf16 rounding.
#include "kernels/ops.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

#include "base/text.h"
#include "kernels/cuda_test.h"
#include "quant/activation.h"

namespace moracle::cuda_ops_test {
namespace {

using ::testing::HasSubstr;

class CudaOpsTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    cpu_ = *open_device("cpu", 1);
  }
  Ops& gpu() { return device_->ops(); }
  Ops& cpu() { return cpu_->ops(); }

  std::vector<float> normal(int64_t count, float size = 1) {
    std::normal_distribution<float> distribution(0, size);
    std::vector<float> values(count);
    for (float& value : values) value = distribution(random_);
    return rounded_to_bf16(values);
  }
  static Matrix view(std::vector<float>& values, int64_t rows, int64_t cols) {
    return Matrix::f32(values.data(), rows, cols);
  }
  /// Compares bf16 results with f32: the bound is one rounding plus `more` of the value.
  void expect_near(const Buffer& got_bits, const std::vector<float>& want, float more = 1e-5f) {
    const std::vector<float> got = from_bf16(download<uint16_t>(got_bits));
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i)
      ASSERT_NEAR(got[i], want[i], std::fabs(want[i]) * (0x1p-8f + more) + 1e-30f) << i;
  }

  std::shared_ptr<Device> cpu_;
  std::mt19937 random_{42};
};

// ---- rows of experts ----

struct Planned {
  std::vector<int32_t> offsets, row_token, slot_row, row_slot;
  Planned(int64_t experts, int64_t slots)
      : offsets(experts + 1, -9), row_token(slots, -9), slot_row(slots, -9), row_slot(slots, -9) {}
  RowPlan plan() { return {offsets.data(), row_token.data(), slot_row.data(), row_slot.data()}; }
};

class CudaRowsTest : public CudaOpsTest {
 protected:
  template <class Enqueue>
  Planned planned_by_gpu(int64_t experts, int64_t slots, Enqueue enqueue) {
    Planned p(experts, slots);
    const Buffer offsets = upload(p.offsets), row_token = upload(p.row_token),
                 slot_row = upload(p.slot_row), row_slot = upload(p.row_slot);
    expect_done(enqueue(RowPlan{offsets.as<int32_t>(), row_token.as<int32_t>(),
                                slot_row.as<int32_t>(), row_slot.as<int32_t>()}));
    status_ = device_->synchronize();
    p.offsets = download<int32_t>(offsets), p.row_token = download<int32_t>(row_token);
    p.slot_row = download<int32_t>(slot_row), p.row_slot = download<int32_t>(row_slot);
    return p;
  }
  static void expect_same(const Planned& got, const Planned& want) {
    EXPECT_EQ(got.offsets, want.offsets);
    EXPECT_EQ(got.slot_row, want.slot_row);
    const int32_t rows = want.offsets.back();  // what lies past them means nothing
    EXPECT_TRUE(
        std::equal(want.row_token.begin(), want.row_token.begin() + rows, got.row_token.begin()));
    EXPECT_TRUE(
        std::equal(want.row_slot.begin(), want.row_slot.begin() + rows, got.row_slot.begin()));
  }
  Status status_;  // of the last synchronize
};

TEST_F(CudaRowsTest, PlanRowsMatchesCpu) {
  for (auto [num_experts, top_k, tokens] : {std::tuple{8, 2, 50},
                                            {1, 1, 5},
                                            {128, 8, 300},
                                            {3, 3, 7},
                                            {64, 4, 1},
                                            {600, 6, 100},
                                            {4, 2, 0}}) {
    std::vector<int32_t> ids(tokens * top_k);
    for (int32_t& id : ids) id = static_cast<int32_t>(random_() % (num_experts + 1)) - 1;
    // Every third expert is on another rank; the others are local in reverse order.
    std::vector<int32_t> map(num_experts, -1);
    int32_t here = 0;
    for (int e = num_experts - 1; e >= 0; --e)
      if (e % 3 != 1) map[e] = here++;
    for (const bool mapped : {false, true}) {
      const int64_t local = mapped ? here : num_experts, slots = tokens * top_k;
      const Buffer device_ids = upload(ids), device_map = upload(map);
      const Planned got = planned_by_gpu(local, slots, [&](const RowPlan& plan) {
        return gpu().plan_rows(device_ids.as<int32_t>(), tokens, top_k, num_experts,
                               mapped ? device_map.as<int32_t>() : nullptr, local, plan, {});
      });
      expect_done(status_);
      Planned want(local, slots);
      expect_done(cpu().plan_rows(ids.data(), tokens, top_k, num_experts,
                                  mapped ? map.data() : nullptr, local, want.plan(), {}));
      expect_same(got, want);
    }
  }
}

// A rank may have no experts.
TEST_F(CudaRowsTest, PlanRowsGivesNoRowsWithoutLocalExperts) {
  const std::vector<int32_t> ids = {0, 2, -1, 1, 2, 0}, elsewhere(3, -1);
  const Buffer device_ids = upload(ids), device_map = upload(elsewhere);
  const Planned got = planned_by_gpu(0, 6, [&](const RowPlan& plan) {
    return gpu().plan_rows(device_ids.as<int32_t>(), 3, 2, 3, device_map.as<int32_t>(), 0, plan,
                           {});
  });
  expect_done(status_);
  EXPECT_EQ(got.offsets, std::vector<int32_t>{0});
  EXPECT_EQ(got.slot_row, std::vector<int32_t>(6, -1));
}

TEST_F(CudaRowsTest, InvalidExpertIdsGetNoRowAndAreReportedOnce) {
  const std::vector<int32_t> ids = {-1, 0, 3, 2, -1, -1, 4, 1, 2147483647, -2147483647 - 1, 3, 0};
  const Buffer device_ids = upload(ids);
  const Planned got = planned_by_gpu(4, 12, [&](const RowPlan& plan) {
    return gpu().plan_rows(device_ids.as<int32_t>(), 6, 2, 4, nullptr, 4, plan, {});
  });
  ASSERT_FALSE(status_);
  EXPECT_EQ(status_.error().place, "topk_ids");
  EXPECT_EQ(status_.error().fact, "choice 0 of token 3 is 4");
  expect_done(device_->synchronize());
  Planned want(4, 12);
  expect_done(cpu().plan_rows(ids.data(), 6, 2, 4, nullptr, 4, want.plan(), {}));
  EXPECT_EQ(cpu_->synchronize().error().to_string(), status_.error().to_string());
  expect_same(got, want);
}

TEST_F(CudaRowsTest, PlanBatchedRowsMatchesCpu) {
  const std::vector<int32_t> counts = {3, 0, 700, 1, -5, 701};
  const Buffer device_counts = upload(counts);
  const Planned got = planned_by_gpu(6, 6 * 700, [&](const RowPlan& plan) {
    return gpu().plan_batched_rows(device_counts.as<int32_t>(), 6, 700, plan, {});
  });
  ASSERT_FALSE(status_);
  Planned want(6, 6 * 700);
  expect_done(cpu().plan_batched_rows(counts.data(), 6, 700, want.plan(), {}));
  EXPECT_EQ(cpu_->synchronize().error().to_string(), status_.error().to_string());
  expect_same(got, want);
}

// ---- quantize ----

constexpr float kInf = INFINITY;

TEST_F(CudaOpsTest, QuantizeMatchesReferenceBits) {
  const int64_t rows = 7, cols = 1300, padded = 1312;
  std::vector<float> x = normal(rows * cols, 3);
  std::fill_n(&x[2 * cols], cols, 0.0f);
  x[3 * cols + 40] = kInf, x[4 * cols + 1299] = NAN, x[5 * cols] = -3e38f, x[6 * cols + 9] = 1e-38f;
  x = rounded_to_bf16(x);
  const Buffer from = upload(to_bf16(x));
  for (const QuantKey& key : {kInt8DynamicTokenSym, kFp8DynamicTokenSym, kFp8Dynamic128Sym,
                              fp8_dynamic_group(48), fp8_dynamic_group(600), kMxfp8Dynamic}) {
    SCOPED_TRACE(str(name(key.dtype), " in groups of ", key.group.cols));
    const int64_t groups = num_groups(key, cols);
    const Buffer codes = upload(std::vector<uint8_t>(rows * padded, 77)),
                 scales = allocate(rows * groups * sizeof(float)),
                 values = allocate(rows * padded * sizeof(float));
    const Rows to{{codes.data(), key.dtype, rows, padded, padded}, scales.as<float>(), groups};
    const Rows decoded{Matrix::f32(values.as<float>(), rows, padded), scales.as<float>(), groups};
    expect_done(gpu().quantize(bf16_matrix(from, rows, cols), key, to, {}));
    expect_done(gpu().quantize(bf16_matrix(from, rows, cols), key, decoded, {}));
    const auto got = download<uint8_t>(codes);
    const auto got_scales = download<uint32_t>(scales);
    const auto got_values = download<float>(values);
    std::vector<uint8_t> want(padded);
    std::vector<float> want_scales(groups);
    for (int64_t r = 0; r < rows; ++r) {
      quantize_row(key, &x[r * cols], cols, want.data(), want_scales.data());
      for (int64_t g = 0; g < groups; ++g) {
        if (std::isnan(want_scales[g])) {
          EXPECT_TRUE(std::isnan(std::bit_cast<float>(got_scales[r * groups + g])));
        } else {
          EXPECT_EQ(got_scales[r * groups + g], std::bit_cast<uint32_t>(want_scales[g])) << r;
        }
      }
      for (int64_t c = 0; c < padded; ++c) {
        const uint8_t code = c < cols ? want[c] : uint8_t{0};
        ASSERT_EQ(got[r * padded + c], code) << r << ", " << c;
        const float scale = c < cols ? want_scales[c / group_cols(key, cols)] : 0.0f;
        const float value = decode(key, code) * scale;
        if (!std::isnan(value)) {
          ASSERT_EQ(got_values[r * padded + c], value) << r << ", " << c;
        }
      }
    }
  }
  EXPECT_FALSE(gpu().quantize(bf16_matrix(from, rows, cols), int4_static_group(32), {}, {}));
}

TEST_F(CudaOpsTest, QuantizeStaticUsesScaleOfExpertOfRow) {
  const int64_t tokens = 4, cols = 300, experts = 5, rows = 7;
  const std::vector<float> x = normal(tokens * cols), scales = {0.01f, 9.0f, 0.002f, 0.5f, 9.0f};
  const std::vector<int32_t> offsets = {0, 2, 2, 5, 6, 6}, row_index = {3, 0, 1, 1, 2, 0, -7};
  const Buffer from = upload(to_bf16(x)), device_scales = upload(scales),
               device_offsets = upload(offsets), index = upload(row_index),
               codes = upload(std::vector<uint8_t>(rows * cols, 77)),
               out_scales = allocate(rows * sizeof(float));
  expect_done(gpu().quantize_static(
      bf16_matrix(from, tokens, cols), index.as<int32_t>(), device_offsets.as<int32_t>(), experts,
      device_scales.as<float>(), kFp8StaticTensorSym,
      {{codes.data(), DType::kF8E4M3, rows, cols, cols}, out_scales.as<float>(), 1}, {}));
  const auto got = download<uint8_t>(codes);
  const auto got_scales = download<float>(out_scales);
  const int64_t expert_of[] = {0, 0, 2, 2, 2, 3};
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const uint8_t want =
          r == 6 ? uint8_t{77} : float_to_e4m3(x[row_index[r] * cols + c] / scales[expert_of[r]]);
      ASSERT_EQ(got[r * cols + c], want) << r << ", " << c;
    }
    if (r < 6) {
      EXPECT_EQ(got_scales[r], scales[expert_of[r]]);
    }
  }
}

// ---- floats ----

TEST_F(CudaOpsTest, ConvertRoundsToNearestAndPadsWithZeros) {
  const int64_t rows = 3, cols = 1500, padded = 1503;
  std::normal_distribution<float> distribution(0, 1);
  std::vector<float> x(rows * cols);
  for (float& value : x) value = distribution(random_);
  const Buffer from = upload(x), to = upload(std::vector<uint16_t>(rows * padded, 0xffff)),
               half = allocate(rows * cols * 2), back = allocate(rows * cols * 4);
  expect_done(
      gpu().convert(Matrix::f32(from.as<float>(), rows, cols), bf16_matrix(to, rows, padded), {}));
  const Matrix f16{half.data(), DType::kF16, rows, cols, cols};
  expect_done(gpu().convert(Matrix::f32(from.as<float>(), rows, cols), f16, {}));
  expect_done(gpu().convert(f16, Matrix::f32(back.as<float>(), rows, cols), {}));
  const auto got = download<uint16_t>(to);
  const auto got_back = download<float>(back);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < padded; ++c)
      ASSERT_EQ(got[r * padded + c], c < cols ? float_to_bf16(x[r * cols + c]) : 0) << r << c;
  }
  for (size_t i = 0; i < x.size(); ++i)
    ASSERT_EQ(got_back[i], f16_to_float(float_to_f16(x[i]))) << i;
  EXPECT_FALSE(gpu().convert({from.data(), DType::kI8, 1, 1, 1}, f16, {}));
}

TEST_F(CudaOpsTest, ScaleRowsMultipliesEachRowByItsWeight) {
  const int64_t rows = 5, cols = 33;
  std::vector<float> x = normal(rows * cols), weights = {0.5f, -1.25f, 0, 3.3f, 1}, want(x.size());
  const Buffer from = upload(to_bf16(x)), w = upload(weights), to = allocate(x.size() * 2);
  expect_done(gpu().scale_rows(bf16_matrix(from, rows, cols), w.as<float>(),
                               bf16_matrix(to, rows, cols), {}));
  for (int64_t i = 0; i < rows * cols; ++i)
    want[i] = bf16_to_float(float_to_bf16(x[i] * weights[i / cols]));
  EXPECT_EQ(from_bf16(download<uint16_t>(to)), want);
}

TEST_F(CudaOpsTest, ActivateComputesEveryFunction) {
  const int64_t rows = 6, size = 333, padded = 336;
  for (int function = 0; function < 10; ++function) {
    ActivationSpec spec{.function = static_cast<Activation>(function)};
    for (const float limit : {0.0f, 0.9f}) {
      spec.limit = limit;
      SCOPED_TRACE(str(name(spec.function), ", limit ", limit));
      const int64_t cols = is_gated(spec.function) ? 2 * size : size;
      std::vector<float> x = normal(rows * cols, 4), want(rows * padded);
      const Buffer from = upload(to_bf16(x)), to = allocate(rows * padded * 2);
      const Status wanted =
          cpu().activate(spec, size, view(x, rows, cols), view(want, rows, padded), {});
      const Status done = gpu().activate(spec, size, bf16_matrix(from, rows, cols),
                                         bf16_matrix(to, rows, padded), {});
      ASSERT_EQ(done.ok(), wanted.ok());
      if (done.ok()) expect_near(to, want);
    }
  }
}

TEST_F(CudaOpsTest, CombineAddsRowsOfEachToken) {
  const int64_t tokens = 3, top_k = 3, cols = 1030, rows = 6;
  std::vector<float> y = normal(rows * cols), weights(tokens * top_k), want(tokens * cols);
  for (float& weight : weights) weight = 0.1f + static_cast<float>(random_() % 100) / 50;
  std::vector<int32_t> slot_row = {4, 0, 2, -1, -1, -1, 5, -1, 1};
  const Buffer from = upload(to_bf16(y)), w = upload(weights), slots = upload(slot_row),
               out = upload(std::vector<float>(tokens * cols, NAN));
  for (const bool weighed : {true, false}) {
    expect_done(gpu().combine(bf16_matrix(from, rows, cols), slots.as<int32_t>(),
                              weighed ? w.as<float>() : nullptr, top_k,
                              Matrix::f32(out.as<float>(), tokens, cols), {}));
    expect_done(cpu().combine(view(y, rows, cols), slot_row.data(),
                              weighed ? weights.data() : nullptr, top_k, view(want, tokens, cols),
                              {}));
    const auto got = download<float>(out);
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-5) << i;
    for (int64_t c = 0; c < cols; ++c) ASSERT_EQ(got[cols + c], 0) << "a token without rows";
  }
}

TEST_F(CudaOpsTest, AddLoraAddsAdapterOfRowAndReportsUnknownIds) {
  const int64_t tokens = 4, k = 70, n = 22, experts = 3, parts = 2, adapters = 2, rows = 6;
  for (const int64_t rank : {5, 600}) {
    SCOPED_TRACE(rank);
    std::vector<float> x = normal(tokens * k), y = normal(rows * n);
    std::vector<float> a = normal(adapters * experts * parts * rank * k, 0.1f);
    std::vector<float> b = normal(adapters * experts * n * rank, 0.1f);
    std::vector<int32_t> offsets = {0, 2, 2, 5}, row_token = {0, 3, 1, 2, 3, 77},
                         lora_ids = {1, -1, 0, 9};
    const Buffer dx = upload(to_bf16(x)), dy = upload(y), da = upload(to_bf16(a)),
                 db = upload(to_bf16(b)), doffsets = upload(offsets), dtoken = upload(row_token),
                 dids = upload(lora_ids);
    const int64_t a_rows = adapters * experts * parts * rank, b_rows = adapters * experts * n;
    expect_done(gpu().add_lora(
        bf16_matrix(dx, tokens, k), dtoken.as<int32_t>(),
        {doffsets.as<int32_t>(), dtoken.as<int32_t>(), nullptr, nullptr}, dids.as<int32_t>(),
        adapters,
        {bf16_matrix(da, a_rows, k), bf16_matrix(db, b_rows, rank), experts, parts, rank, n},
        Matrix::f32(dy.as<float>(), rows, n), {}));
    const Status told = device_->synchronize();
    ASSERT_FALSE(told);
    const std::vector<float> before = y;
    expect_done(cpu().add_lora(view(x, tokens, k), row_token.data(),
                               {offsets.data(), row_token.data(), nullptr, nullptr},
                               lora_ids.data(), adapters,
                               {view(a, a_rows, k), view(b, b_rows, rank), experts, parts, rank, n},
                               view(y, rows, n), {}));
    EXPECT_EQ(told.error().to_string(), cpu_->synchronize().error().to_string());
    const auto got = download<float>(dy);
    for (size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(got[i], y[i], 1e-3) << i;
    EXPECT_NE(got, before);
  }
}

// ---- route ----

TEST_F(CudaOpsTest, RouteMatchesCpu) {
  const int64_t tokens = 40, experts = 96, top_k = 6;
  std::vector<float> bias = normal(experts, 0.1f);
  const Buffer device_bias = upload(bias);
  for (const Score score : {Score::kSoftmax, Score::kSigmoid, Score::kTopkThenSoftmax}) {
    for (const bool biased : {false, true}) {
      for (const int64_t groups : {1, 8}) {
        if (biased && score == Score::kTopkThenSoftmax) continue;
        SCOPED_TRACE(str(name(score), biased, " ", groups));
        Routing routing;
        routing.score = score, routing.correction_bias = biased;
        routing.num_groups = groups, routing.top_groups = groups > 1 ? 3 : 1;
        routing.renormalize = biased, routing.scaling_factor = 2.5f;
        std::vector<float> logits = normal(tokens * experts, 2);
        std::fill_n(logits.begin(), experts, 0.25f);  // equal scores: the lower id first
        const Buffer device_logits = upload(to_bf16(logits)),
                     ids = allocate(tokens * top_k * sizeof(int32_t)),
                     weights = allocate(tokens * top_k * sizeof(float));
        expect_done(gpu().route(bf16_matrix(device_logits, tokens, experts), routing,
                                biased ? device_bias.as<float>() : nullptr, top_k,
                                ids.as<int32_t>(), weights.as<float>(), {}));
        std::vector<int32_t> want_ids(tokens * top_k);
        std::vector<float> want(tokens * top_k);
        expect_done(cpu().route(view(logits, tokens, experts), routing,
                                biased ? bias.data() : nullptr, top_k, want_ids.data(), want.data(),
                                {}));
        const auto got_ids = download<int32_t>(ids);
        const auto got = download<float>(weights);
        int different = 0;
        for (size_t i = 0; i < want.size(); ++i) {
          different += got_ids[i] != want_ids[i];
          if (got_ids[i] != want_ids[i]) continue;
          EXPECT_NEAR(got[i], want[i], 1e-5f * want[i]) << i;
        }
        // Exponentials differ in the last place, so neighbours in rank may swap.
        EXPECT_LE(different, biased ? 2 : 0);
      }
    }
  }
}

TEST_F(CudaOpsTest, RouteOfNanGivesDistinctExperts) {
  const int64_t experts = 20, top_k = 4;
  const Buffer logits = upload(to_bf16(std::vector<float>(experts, NAN))),
               ids = allocate(top_k * sizeof(int32_t)), weights = allocate(top_k * sizeof(float));
  expect_done(gpu().route(bf16_matrix(logits, 1, experts), {}, nullptr, top_k, ids.as<int32_t>(),
                          weights.as<float>(), {}));
  std::vector<int32_t> got = download<int32_t>(ids);
  std::sort(got.begin(), got.end());
  EXPECT_EQ(std::unique(got.begin(), got.end()), got.end());
  EXPECT_GE(got.front(), 0);
  EXPECT_LT(got.back(), experts);
  EXPECT_FALSE(gpu().route(bf16_matrix(logits, 1, experts), {}, nullptr, 21, nullptr, nullptr, {}));
}

// ---- models ----

TEST_F(CudaOpsTest, RmsNormAddAndCopyHeadsMatchCpu) {
  const int64_t rows = 3, cols = 384, run = 128;
  std::vector<float> x = normal(rows * cols), y = normal(rows * cols), weight = normal(run),
                     want(rows * cols);
  const Buffer dx = upload(to_bf16(x)), dy = upload(to_bf16(y)), dweight = upload(weight),
               out = allocate(rows * cols * 2);
  expect_done(gpu().rms_norm(bf16_matrix(dx, rows, cols), dweight.as<float>(), run, 1e-6f,
                             bf16_matrix(out, rows, cols), {}));
  expect_done(
      cpu().rms_norm(view(x, rows, cols), weight.data(), run, 1e-6f, view(want, rows, cols), {}));
  expect_near(out, want);

  expect_done(gpu().copy_heads(bf16_matrix(dx, rows, cols), 0, bf16_matrix(dy, rows, cols), run, 3,
                               100, {}));
  expect_done(cpu().copy_heads(view(x, rows, cols), 0, view(y, rows, cols), run, 3, 100, {}));
  EXPECT_EQ(from_bf16(download<uint16_t>(dy)), y);

  expect_done(gpu().add(bf16_matrix(dx, rows, cols), bf16_matrix(dy, rows, cols), {}));
  expect_done(cpu().add(view(x, rows, cols), view(y, rows, cols), {}));
  expect_near(dx, x);
}

TEST_F(CudaOpsTest, EmbedCopiesRowsOfIds) {
  const int64_t vocab = 50, cols = 70, tokens = 300;
  std::vector<float> table = normal(vocab * cols);
  std::vector<int32_t> ids(tokens);
  for (int32_t& id : ids) id = static_cast<int32_t>(random_() % vocab);
  const Buffer from = upload(to_bf16(table)), dids = upload(ids), out = allocate(tokens * cols * 2);
  const TensorView view{from.as<std::byte>(), DType::kBF16, {vocab, cols}};
  expect_done(gpu().embed(view, dids.as<int32_t>(), bf16_matrix(out, tokens, cols), {}));
  const auto got = from_bf16(download<uint16_t>(out));
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t c = 0; c < cols; ++c)
      ASSERT_EQ(got[t * cols + c], table[ids[t] * cols + c]) << t << ", " << c;
  }
  EXPECT_FALSE(gpu().embed({from.as<std::byte>(), DType::kI8, {vocab, cols}}, dids.as<int32_t>(),
                           bf16_matrix(out, tokens, cols), {}));
}

TEST_F(CudaOpsTest, RotateAppliesRopeByPosition) {
  const int64_t rows = 270, heads = 3;
  for (const bool interleaved : {false, true}) {
    SCOPED_TRACE(interleaved);
    RotaryShape shape{.head_dim = 20, .num_pairs = 7, .first = 4, .interleaved = interleaved};
    shape.factor = 1.25f;
    const int64_t cols = heads * shape.head_dim;
    std::vector<float> x = normal(rows * cols), frequencies(shape.num_pairs);
    for (int64_t i = 0; i < shape.num_pairs; ++i)
      frequencies[i] = std::pow(0.1f, static_cast<float>(i));
    std::vector<int32_t> positions(rows);
    for (int64_t r = 0; r < rows; ++r) positions[r] = static_cast<int32_t>(r * 37 % 1000);
    const Buffer dx = upload(x), dfrequencies = upload(frequencies), dpositions = upload(positions);
    expect_done(gpu().rotate(Matrix::f32(dx.as<float>(), rows, cols), shape,
                             dfrequencies.as<float>(), dpositions.as<int32_t>(), {}));
    expect_done(cpu().rotate(view(x, rows, cols), shape, frequencies.data(), positions.data(), {}));
    const auto got = download<float>(dx);
    for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(got[i], x[i], 1e-5) << i;
  }
}

}  // namespace
}  // namespace moracle::cuda_ops_test
