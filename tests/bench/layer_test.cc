// Tests the layer measurements of `moracle bench`: known shapes, formulas for bytes and operations,
// and plausible shares of the limits.
#include "bench/bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/cpu/limits/limits.h"
#include "support/must.h"

namespace moracle::bench::layer_test {
namespace {

using ::testing::HasSubstr;

Scheme scheme(std::string_view name) {
  return testing::must(parse_scheme(name));
}

Request request_of(const LayerShape& shape, std::string_view scheme_name, int64_t tokens = 16) {
  Request request;
  request.layer = layer_of(shape, scheme(scheme_name));
  request.max_num_tokens = tokens;
  request.platform = Platform::kCpu;
  return request;
}

LayerShape shape_of(std::string_view text) {
  return testing::must(find_shape(text));
}

std::shared_ptr<Device> cpu_device() {
  return *open_device("cpu", 2);
}

TEST(BenchShapes, FoundByNameOrSize) {
  for (const LayerShape& known : known_shapes())
    EXPECT_EQ(shape_of(known.name).hidden_size, known.hidden_size);
  const LayerShape qwen = shape_of("qwen3-30b-a3b");
  EXPECT_EQ(qwen.num_experts * 3 * qwen.hidden_size * qwen.intermediate_size, 603'979'776);
  const LayerShape small = shape_of("8x64x32x2");
  EXPECT_EQ(small.name, "8x64x32x2");
  EXPECT_EQ(small.top_k, 2);
  const Result<LayerShape> none = find_shape("8x64x32");
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error().to_string(), HasSubstr("mixtral-8x7b"));
}

TEST(BenchBytes, FollowTheFormula) {
  const LayerShape qwen = shape_of("qwen3-30b-a3b");
  auto bytes = [&](std::string_view name) { return expert_bytes(layer_of(qwen, scheme(name))); };
  const int64_t weights = 3 * 2048 * 768, rows = 2 * 768 + 2048;
  EXPECT_EQ(bytes("bf16"), 2 * weights);
  EXPECT_EQ(bytes("int8-w8a8"), weights + 4 * rows);
  EXPECT_EQ(bytes("int4-w4a16-g128"), weights / 2 + 4 * weights / 128);
  EXPECT_EQ(bytes("int4-w4a16-g128-asym"), weights / 2 + 5 * weights / 128);
  EXPECT_EQ(bytes("mxfp4-w4a16"), weights / 2 + weights / 32);
  EXPECT_EQ(bytes("fp8-w8a8-block128x128"), weights + 4 * weights / (128 * 128));
  const LayerShape oss = shape_of("gpt-oss-120b");
  EXPECT_EQ(expert_bytes(layer_of(oss, scheme("mxfp4-w4a16"))),
            3 * 2880 * 2880 / 2 + 3 * 2880 * 2880 / 32 + 4 * 3 * 2880);
}

/// A matrix whose kernels read this type.
MatrixPlan reads(DType input, std::vector<KernelUse> kernels) {
  MatrixPlan plan;
  plan.input_dtype = input;
  plan.kernels = std::move(kernels);
  return plan;
}

TEST(BenchPeak, UsesPlannedInstructionElseBestForDtype) {
  const std::vector<Peak> peaks = {
      {"f32 avx2", "avx2", Arithmetic::kF32, 1},
      {"int8 avx2", "avx2", Arithmetic::kInt8, 2},
      {"f32 avx512", "avx512", Arithmetic::kF32, 3},
      {"int8 avx512_vnni", "avx512_vnni", Arithmetic::kInt8, 4},
      {"bf16 avx512_bf16", "avx512_bf16", Arithmetic::kBf16, 5},
  };
  auto peak = [&](DType input, std::vector<KernelUse> kernels, int64_t tokens = 1) {
    const Peak* found = peak_for(reads(input, std::move(kernels)), tokens, peaks);
    return found == nullptr ? std::string_view("none") : found->name;
  };
  EXPECT_EQ(peak(DType::kI8, {{"exact i8 x i8 tiles, avx2"}}), "int8 avx2");
  EXPECT_EQ(peak(DType::kF32, {{"f32 tiles, avx2"}}), "f32 avx2");
  EXPECT_EQ(peak(DType::kF32, {{"f32 tiles, avx512"}}), "f32 avx512");
  EXPECT_EQ(peak(DType::kF32, {{"dots of bf16, avx512_bf16"}}), "bf16 avx512_bf16");
  EXPECT_EQ(peak(DType::kI8, {{"portable"}}), "int8 avx512_vnni");
  EXPECT_EQ(peak(DType::kBF16, {{"portable"}}), "bf16 avx512_bf16");
  const std::vector<KernelUse> two = {{"rows, avx2"}, {"tiles, avx512_vnni", {8}}};
  EXPECT_EQ(peak(DType::kI8, two, 7), "int8 avx2");
  EXPECT_EQ(peak(DType::kI8, two, 8), "int8 avx512_vnni");
  EXPECT_EQ(peak_for(reads(DType::kI8, {{"portable"}}), 1, {}), nullptr);
  EXPECT_EQ(peak(DType::kF8E4M3, {{"portable"}}), "f32 avx512");
  EXPECT_EQ(peak(DType::kF16, {{"portable"}}), "f32 avx512");
}

TEST(BenchPeak, GpuPeakFollowsInstructionOfDtype) {
  const std::vector<Peak> peaks = {
      {"f32 simt", "simt", Arithmetic::kF32, 1},   {"bf16 mma", "mma", Arithmetic::kBf16, 2},
      {"fp8 mma", "mma", Arithmetic::kFp8, 3},     {"bf16 wgmma", "wgmma", Arithmetic::kBf16, 4},
      {"fp8 wgmma", "wgmma", Arithmetic::kFp8, 5},
  };
  auto peak = [&](DType input, std::string kernel) {
    return peak_for(reads(input, {{std::move(kernel)}}), 1, peaks)->name;
  };
  EXPECT_EQ(peak(DType::kI8, "tiles, simt, exact i32 sums"), "f32 simt");
  EXPECT_EQ(peak(DType::kBF16, "tiles by mma.sync"), "bf16 mma");
  EXPECT_EQ(peak(DType::kF8E4M3, "tiles by mma.sync"), "fp8 mma");
  EXPECT_EQ(peak(DType::kF8E4M3, "persistent, wgmma"), "fp8 wgmma");
  EXPECT_EQ(peak(DType::kBF16, "tiles"), "bf16 wgmma");
}

/// Limits that do not change from one probe to the next.
class FixedLimits : public LimitsProbe {
 public:
  static constexpr double kBytesPerSecond = 1e9, kOpsPerSecond = 3e9;
  const std::vector<Peak> peaks = {{"f32 first", "first", Arithmetic::kF32, kOpsPerSecond},
                                   {"int8 second", "second", Arithmetic::kInt8, kOpsPerSecond}};

  int64_t buffer_bytes() const override { return 1; }
  int64_t memory_bytes() const override { return 1; }
  Result<Limits> measure(const Progress&) override { return Limits{.peaks = peaks}; }
  Result<double> read_bytes_per_second() override { return kBytesPerSecond; }
  Result<double> ops_per_second(std::string_view) override { return kOpsPerSecond; }
};

TEST(BenchRing, ComparesTimesWithAdjacentLimits) {
  FixedLimits probe;
  for (const char* name :
       {"int8-w8a8", "int4-w4a16-g128", "mxfp4-w4a16", "bf16", "fp8-w8a8-channel-static"}) {
    if (!parse_scheme(name)) continue;
    const Request request = request_of(shape_of("16x256x128x4"), name);
    const Selection selection = select(request, Machine::here());
    auto ring = LayerRing::make(selection, *open_device("cpu", 1), 8 << 20, 1 << 30);
    ASSERT_TRUE(ring) << ring.error().to_string();
    EXPECT_GT(ring->size(), 1);
    for (const int64_t tokens : {1, 16}) {
      const Result<Measurement> measured =
          measure(*ring, tokens, {.seconds = 0.01}, probe, probe.peaks);
      ASSERT_TRUE(measured) << measured.error().to_string();
      const Measurement& m = *measured;
      EXPECT_GE(m.runs, 1);
      EXPECT_LE(m.us_min, m.us_p10);
      EXPECT_LE(m.us_p10, m.us_median);
      EXPECT_LE(m.us_median, m.us_p90);
      EXPECT_GT(m.us_min, 0);
      EXPECT_EQ(m.ops, 2 * 3 * 256 * 128 * 4 * tokens);
      if (tokens == 1) {
        EXPECT_EQ(m.bytes, 4 * expert_bytes(request.layer));
      }
      EXPECT_LE(m.bytes, 16 * expert_bytes(request.layer));
      const double us_memory = static_cast<double>(m.bytes) / FixedLimits::kBytesPerSecond * 1e6;
      const double us_compute = static_cast<double>(m.ops) / FixedLimits::kOpsPerSecond * 1e6;
      EXPECT_NEAR(m.us_memory, us_memory, 1e-6 * us_memory) << name;
      EXPECT_NEAR(m.us_compute, us_compute, 1e-6 * us_compute) << name;
      EXPECT_EQ(m.us_floor(), std::max(m.us_memory, m.us_compute)) << name;
      EXPECT_EQ(m.share_of_limit(), m.us_floor() / m.us_median) << name;
      EXPECT_FALSE(m.peak.empty()) << name;
    }
  }
}

TEST(BenchRing, RejectsLayersThatDoNotFit) {
  const Selection selection = select(request_of(shape_of("8x64x32x2"), "bf16"), Machine::here());
  const auto ring = LayerRing::make(selection, cpu_device(), 1 << 20, 1000);
  ASSERT_FALSE(ring);
  EXPECT_EQ(ring.error().kind, ErrorKind::kOutOfMemory);
}

TEST(BenchRing, StopsOnRequest) {
  auto probe = cpu::LimitsProbe::make(1, 4 << 20);
  ASSERT_TRUE(probe);
  const Selection selection = select(request_of(shape_of("8x64x32x2"), "bf16"), Machine::here());
  auto ring = LayerRing::make(selection, cpu_device(), 0, 1 << 30);
  ASSERT_TRUE(ring) << ring.error().to_string();
  const auto measured =
      measure(*ring, 1, {.seconds = 1e9}, *probe, {}, [](int64_t, int64_t) { return false; });
  ASSERT_FALSE(measured);
  EXPECT_EQ(measured.error().kind, ErrorKind::kCancelled);
}

}  // namespace
}  // namespace moracle::bench::layer_test
