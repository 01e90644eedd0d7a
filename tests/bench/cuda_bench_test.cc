// Tests the layer measurements of `moracle bench --device cuda`: graph replays and calls, next to
// the GPU's limits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/bench.h"
#include "kernels/cuda/cuda_test.h"
#include "oracle/backend.h"

namespace moracle::bench::cuda_bench_test {
namespace {

class CudaBenchTest : public CudaTest {
 protected:
  static Selection selection_of(std::string_view shape, std::string_view scheme, int64_t tokens) {
    Request request;
    request.layer = layer_of(*find_shape(shape), *parse_scheme(scheme));
    request.max_num_tokens = tokens;
    request.platform = Platform::kCuda;
    request.device_index = 0;
    return select(request, Machine::here());
  }
};

TEST_F(CudaBenchTest, MeasuresReplaysAndCallsOfEveryServingRow) {
  const auto probe = open_limits(device_, 0, 256 << 20);
  ASSERT_TRUE(probe) << probe.error().to_string();
  const Result<Limits> limits = (*probe)->measure();
  ASSERT_TRUE(limits) << limits.error().to_string();
  for (const char* scheme : {"bf16", "int8-w8a8", "int4-w4a16-g128", "fp8-w8a8-block128x128"}) {
    Selection selection = selection_of("16x256x128x4", scheme, 300);
    for (const Verdict& verdict : selection.considered) {
      if (!verdict.accepted()) continue;
      SCOPED_TRACE(std::string(scheme) + " " + std::string(verdict.backend->name));
      selection.request.backend = verdict.backend->name;
      auto ring = LayerRing::make(select(selection.request, Machine::here()), device_, 64 << 20,
                                  int64_t{1} << 30);
      ASSERT_TRUE(ring) << ring.error().to_string();
      for (const int64_t tokens : {1, 16, 300}) {
        const Result<Measurement> m =
            measure(*ring, tokens, {.seconds = 0.05}, **probe, limits->peaks);
        ASSERT_TRUE(m) << m.error().to_string();
        EXPECT_GE(m->runs, 3);
        EXPECT_GT(m->us_min, 0);
        EXPECT_LE(m->us_min, m->us_p10);
        EXPECT_LE(m->us_p10, m->us_median);
        EXPECT_LE(m->us_median, m->us_p90);
        EXPECT_GT(m->us_host, 0);
        EXPECT_GE(m->us_eager, m->us_host);
        EXPECT_GT(m->us_eager, 0.5 * m->us_median);
        EXPECT_FALSE(m->peak.empty());
        EXPECT_GT(m->bytes, 0);
        EXPECT_GT(m->share_of_limit(), 0);
      }
    }
  }
}

TEST_F(CudaBenchTest, RejectsLayersThatDoNotFitAndStopsOnRequest) {
  const Selection selection = selection_of("8x64x32x2", "bf16", 16);
  const auto none = LayerRing::make(selection, device_, 1 << 20, 1000);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().kind, ErrorKind::kOutOfMemory);
  auto ring = LayerRing::make(selection, device_, 0, 1 << 30);
  ASSERT_TRUE(ring) << ring.error().to_string();
  const auto stopped = ring->time(16, 1e9, [](int64_t, int64_t) { return false; });
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().kind, ErrorKind::kCancelled);
  EXPECT_TRUE(ring->time(16, 0.01));
}

}  // namespace
}  // namespace moracle::bench::cuda_bench_test
