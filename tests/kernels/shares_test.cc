// Tests which thread reads which bytes of the weights, and on which node the bytes lie.
#include "kernels/weights/shares.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "conformance/conformance.h"
#include "kernels/kernel_device.h"

namespace moracle::shares_test {
namespace {

// Two nodes of two CPUs each. The machine may have other nodes.
const std::vector<NumaNode> kTwoNodes = {{0, {0, 1}}, {1, {2, 3}}};

// The shares of all threads are neighbours from the first byte to the scales.
void expect_cover(const Layout& layout, const MatrixShape& shape, int blocks, int threads) {
  std::vector<ByteRange> all;
  for (int t = 0; t < threads; ++t) {
    for (const ByteRange& range : share_of_thread(layout, shape, blocks, t, threads))
      if (range.begin < range.end) all.push_back(range);
  }
  std::sort(all.begin(), all.end(),
            [](const ByteRange& a, const ByteRange& b) { return a.begin < b.begin; });
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(all.front().begin, 0);
  EXPECT_EQ(all.back().end, static_cast<int64_t>(layout.sections(shape).scales));
  for (size_t i = 1; i < all.size(); ++i) EXPECT_EQ(all[i].begin, all[i - 1].end);
}

TEST(Shares, CoverEveryExpertOnce) {
  const struct {
    const char* name;
    int64_t rows;
    int blocks;
  } cases[] = {{"one panel", 16, 1},   {"three panels", 48, 1},
               {"six panels", 96, 1},  {"six panels, gate and up", 96, 2},
               {"96 panels", 1536, 1}, {"96 panels, gate and up", 1536, 2}};
  for (const Layout* layout : layouts()) {
    for (const auto& [name, rows, blocks] : cases) {
      SCOPED_TRACE(::testing::Message() << layout->name << ", " << name);
      for (const int threads : {1, 2, 3, 16})
        expect_cover(*layout, {rows, 256, int4_static_group(128)}, blocks, threads);
    }
  }
}

// A thread has the same rows of gate and up. Both nodes have equally many bytes.
TEST(Shares, EvenBetweenTwoNodes) {
  const MatrixShape shape{1536, 2048, int4_static_group(128)};
  const Layout& layout = *layouts().back();
  const ThreadAffinity affinity = assign_threads(4, {0, 1, 2, 3}, kTwoNodes);
  ASSERT_EQ(affinity.num_nodes, 2);
  for (const int blocks : {1, 2}) {
    std::vector<int64_t> bytes(2);
    for (int t = 0; t < 4; ++t) {
      const std::vector<ByteRange> ranges = share_of_thread(layout, shape, blocks, t, 4);
      ASSERT_EQ(static_cast<int>(ranges.size()), blocks);
      for (const ByteRange& range : ranges) bytes[affinity.nodes[t]] += range.end - range.begin;
    }
    EXPECT_EQ(bytes[0], bytes[1]) << blocks;
  }
}

TEST(Shares, UntouchedOnOneNodeOrWithUnpinnedThreads) {
  const auto device = *open_device("cpu", 2);
  EXPECT_EQ(kernel_device(*device).host_threads().affinity().num_nodes, 1);
  const MatrixShape shape{64, 64, kBF16Weight};
  std::vector<CanonicalMatrix> experts;
  experts.push_back(conformance::random_matrix(shape, 1));
  const auto weights =
      convert(DescribedMatrix::from({kBF16Weight, {}}, std::move(experts)), *layouts()[0], *device);
  ASSERT_TRUE(weights);
  EXPECT_FALSE(touch_near_threads(*weights, 1, kernel_device(*device).host_threads()));
}

// The test pretends to have two nodes. It touches only fresh memory, so no content changes.
TEST(Shares, TouchedMemoryKeepsWeights) {
  ThreadPool two_nodes(4, assign_threads(4, {0, 1, 2, 3}, kTwoNodes));
  const auto device = *open_device("cpu", 1);
  const MatrixShape shape{96, 2048, kBF16Weight};
  KernelWeights weights;
  weights.layout = layouts()[0];
  weights.shape = shape;
  weights.num_experts = 3;
  weights.sections = weights.layout->sections(shape);
  weights.buffer = *device->allocate(weights.sections.bytes * 3);
  EXPECT_TRUE(touch_near_threads(weights, 2, two_nodes));
  const auto* bytes = weights.buffer.as<std::byte>();
  EXPECT_TRUE(std::all_of(bytes, bytes + weights.buffer.bytes(),
                          [](std::byte byte) { return byte == std::byte{0}; }));
}

}  // namespace
}  // namespace moracle::shares_test
