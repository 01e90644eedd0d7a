// Tests weight packing on a GPU. The GPU packs the same bytes as the host in every layout and
// scheme. Errors leave the device usable. Too large requests are rejected with the free size.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>

#include "bench/bench.h"
#include "kernels/convert_cases.h"
#include "kernels/cuda/cuda_test.h"
#include "kernels/weights/kernel_weights.h"
#include "kernels/weights/uploads.h"
#include "moracle/moe.h"
#include "oracle/backend.h"

namespace moracle::cuda_convert_test {
namespace {

using ::testing::HasSubstr;

class CudaConvertTest : public CudaTest {
 protected:
  std::vector<uint8_t> there(DescribedMatrix matrix, const Layout& layout) {
    const Result<KernelWeights> weights = convert(std::move(matrix), layout, *device_);
    EXPECT_TRUE(weights) << weights.error().to_string();
    return weights ? download<uint8_t>(weights->buffer) : std::vector<uint8_t>();
  }
  static std::vector<uint8_t> here(DescribedMatrix matrix, const Layout& layout) {
    const auto cpu = *open_device("cpu", 2);
    const Result<KernelWeights> weights = convert(std::move(matrix), layout, *cpu);
    EXPECT_TRUE(weights) << weights.error().to_string();
    if (!weights) return {};
    const auto* const bytes = weights->buffer.as<uint8_t>();
    return {bytes, bytes + weights->buffer.bytes()};
  }
};

TEST_F(CudaConvertTest, MatchesHostPackingInEveryLayoutAndScheme) {
  int packed_there = 0;
  for (const Layout* layout : layouts()) {
    for (const Scheme& scheme : conformance::schemes()) {
      if (!holds(*layout, scheme.weight.dtype)) continue;
      MatrixShape shape{.key = scheme.weight, .bias = true};
      if (shape.key.quantized() && shape.key.group == GroupShape{}) shape.key.group = kPerRow;
      const bool blocks = shape.key.group.rows > 1;
      // Covers ragged rows and columns, two pieces, and many rows in a small buffer.
      for (const auto& [n, k] : {std::pair<int64_t, int64_t>{33, 130}, {64, 257}, {1, 34}}) {
        shape.n = n, shape.k = k;
        SCOPED_TRACE(std::string(layout->name) + " " + name(scheme) + " " + std::to_string(n));
        const std::vector<int64_t> rows =
            n == 64 && !blocks ? std::vector<int64_t>{32, 32} : std::vector<int64_t>{n};
        const auto matrix = [&] { return stacked(shape, rows, 5); };
        const std::vector<uint8_t> want = here(matrix(), *layout);
        ASSERT_FALSE(want.empty());
        EXPECT_TRUE(there(matrix(), *layout) == want);
        packed_there += open_uploads(*device_)->packs(*layout, shape);
      }
    }
  }
  EXPECT_GT(packed_there, 0);
}

TEST_F(CudaConvertTest, PacksLargeExpertsThroughSmallBuffers) {
  for (const Layout* layout : layouts()) {
    for (const ConvertCase& c : convert_cases()) {
      if (!holds(*layout, c.shape.key.dtype)) continue;
      SCOPED_TRACE(std::string(layout->name) + " " + std::to_string(c.shape.n));
      const auto matrix = [&] { return stacked(c.shape, c.rows, c.num_experts); };
      EXPECT_TRUE(there(matrix(), *layout) == here(matrix(), *layout));
    }
  }
}

TEST_F(CudaConvertTest, NamesFirstUnreadableExpertAndStopsOnRequest) {
  const MatrixShape shape{256, 512, kBF16Weight};
  for (int again = 0; again < 5; ++again) {
    const auto broken = convert(stacked(shape, {256}, 24, {5, 7, 20}), kCanonicalLayout, *device_);
    ASSERT_FALSE(broken);
    EXPECT_EQ(broken.error().place, "expert 5");
    const auto stopped = convert(stacked(shape, {256}, 24), kCanonicalLayout, *device_,
                                 [](int64_t, int64_t) { return false; });
    ASSERT_FALSE(stopped);
    EXPECT_EQ(stopped.error().kind, ErrorKind::kCancelled);
  }
  const auto matrix = [&] { return stacked(shape, {256}, 24); };
  EXPECT_TRUE(there(matrix(), kMma16Layout) == here(matrix(), kMma16Layout));
}

// Ten trillion bytes of experts: rejected before the first expert is read.
TEST_F(CudaConvertTest, RejectsExpertsThatDoNotFitAndServesALayerAfterwards) {
  int reads = 0;
  const MatrixShape shape{1 << 20, 1 << 20, kBF16Weight};
  DescribedMatrix::Source source;
  source.n = shape.n;
  source.read = [&](ThreadPool&) -> Result<CanonicalMatrix> { return ++reads, CanonicalMatrix(); };
  std::vector<std::vector<DescribedMatrix::Source>> sources(5, {source});
  const auto refused =
      convert(DescribedMatrix(shape, {kBF16Weight, {}}, std::move(sources), nullptr),
              kCanonicalLayout, *device_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kOutOfMemory);
  EXPECT_THAT(refused.error().need, HasSubstr("10995116277760 bytes"));
  EXPECT_THAT(refused.error().fact, HasSubstr("bytes are free"));
  EXPECT_EQ(reads, 0);

  conformance::Case c{.backend = "cuda-reference",
                      .scheme = *parse_scheme("int8-w8a8"),
                      .shape = {8, 64, 32, 2},
                      .num_tokens = 5};
  const conformance::Outcome outcome = conformance::run(c, device_);
  EXPECT_EQ(outcome.kind, conformance::Outcome::kPassed) << outcome.message;
}

// Other allocations hold the memory: the layer fits the GPU, but not next to them.
TEST_F(CudaConvertTest, RejectsLayerWhileMemoryIsTakenAndMakesItAfterwards) {
  size_t free = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  Request request;
  request.layer.name = "layer";
  request.layer.num_experts = 8;
  request.layer.hidden_size = 2048;
  request.layer.intermediate_size = 4096;
  request.layer.top_k = 2;
  request.layer.scheme = *parse_scheme("bf16");
  request.max_num_tokens = 4;
  request.platform = Platform::kCuda;
  const Selection selection = select(request, Machine::here());
  ASSERT_TRUE(selection.plan);
  const auto room = static_cast<size_t>(selection.plan->weight_bytes / 2);
  if (free < 4 * room) GTEST_SKIP() << "too little memory is free";
  const auto make = [&] {
    return FusedMoe::make(bench::random_layer(request.layer, 1), selection, device_);
  };
  {
    const Buffer others = allocate(free - room);
    const auto refused = make();
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().kind, ErrorKind::kOutOfMemory) << refused.error().to_string();
    EXPECT_THAT(refused.error().need, HasSubstr("bytes of memory"));
    EXPECT_THAT(refused.error().fact, HasSubstr("bytes are free"));
  }
  auto layer = make();
  ASSERT_TRUE(layer) << layer.error().to_string();
  const Buffer hidden = allocate(4 * 2048 * 2), output = allocate(4 * 2048 * 4);
  const Buffer ids = upload(std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7});
  const Buffer weights = upload(std::vector<float>(8, 0.5f));
  expect_done(layer->apply(bf16_matrix(hidden, 4, 2048), {ids.as<int32_t>()}, {weights.as<float>()},
                           Matrix::f32(output.as<float>(), 4, 2048)));
  EXPECT_THAT(download<float>(output), ::testing::Each(0));
}

// A plan beyond the machine's memory is rejected before the GPU allocates anything.
TEST_F(CudaConvertTest, RejectsPlanLargerThanGpuMemory) {
  Request request;
  request.layer.name = "giant";
  request.layer.num_experts = 4096;
  request.layer.hidden_size = 1 << 14;
  request.layer.intermediate_size = 1 << 15;
  request.layer.top_k = 2;
  request.layer.scheme = *parse_scheme("bf16");
  request.platform = Platform::kCuda;
  const Selection selection = select(request, Machine::here());
  EXPECT_FALSE(selection.plan);
  const auto chosen = selection.chosen();
  ASSERT_FALSE(chosen);
  bool memory = false;
  for (const Verdict& verdict : selection.considered) {
    for (const Reason& reason : verdict.reasons)
      memory |= verdict.backend->name == "cuda-reference" && reason.rule == "memory";
  }
  EXPECT_TRUE(memory) << chosen.error().to_string();
}

}  // namespace
}  // namespace moracle::cuda_convert_test
