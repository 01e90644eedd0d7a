// Compares every row of every expert in cuts of real checkpoints with the output of the producer's
// library, bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "checkpoint/golden_cuts.h"
#include "checkpoint/producers/producer.h"
#include "checkpoint/safetensors_image.h"
#include "moracle/checkpoint.h"
#include "paths.h"
#include "quant/codec.h"

namespace moracle::golden_cuts_test {
namespace {

using testing::Cut;
using testing::golden_cuts;
using testing::kCuts;
using testing::last_name;

std::set<std::string> names(const std::vector<std::string>& folders) {
  std::set<std::string> names;
  for (const std::string& folder : folders) names.insert(last_name(folder));
  return names;
}

std::set<std::string> expected_names() {
  std::set<std::string> names;
  for (const Cut& cut : kCuts) names.emplace(cut.folder);
  return names;
}

TEST(GoldenCuts, AllExist) {
  EXPECT_EQ(names(golden_cuts()), expected_names());
}

TEST(GoldenCuts, CoverEveryProducer) {
  std::set<std::string_view> held;
  for (const Cut& cut : kCuts) held.insert(cut.producer);
  EXPECT_TRUE(held.contains("plain"));
  for (const Producer* producer : producers())
    EXPECT_TRUE(held.contains(producer->name)) << "no cut of " << producer->name;
}

TEST(GoldenCuts, CoverEveryFullCheckpoint) {
  const auto full = names(testing::folders_in(testing::checkpoints_dir()));
  if (full.empty()) GTEST_SKIP() << "no full checkpoints beside the clone";
  EXPECT_THAT(expected_names(), ::testing::IsSupersetOf(full));
}

uint32_t crc32(const std::vector<float>& values) {
  uint32_t crc = ~0u;
  for (const std::byte byte : std::as_bytes(std::span(values))) {
    crc ^= static_cast<uint32_t>(byte);
    for (int i = 0; i < 8; ++i) crc = crc >> 1 ^ (0xedb88320u & (0u - (crc & 1u)));
  }
  return ~crc;
}

/// Returns the f32 sums of all rows, [E, rows].
void expect_rows(const DescribedMatrix& described, const TensorView& sums) {
  const int64_t rows = described.shape().n;
  ASSERT_EQ(sums.dtype, DType::kI32);
  ASSERT_EQ(sums.shape, (std::vector<int64_t>{described.num_experts(), rows}));
  std::vector<double> row(described.shape().k);
  for (int64_t e = 0; e < described.num_experts(); ++e) {
    const auto matrix = described.expert(e);
    ASSERT_TRUE(matrix.ok()) << matrix.error().to_string();
    for (int64_t r = 0; r < rows; ++r) {
      dequantize_row(*matrix, r, row.data());
      const auto sum = static_cast<uint32_t>(sums.as<int32_t>()[e * rows + r]);
      ASSERT_EQ(crc32({row.begin(), row.end()}), sum) << "expert " << e << " row " << r;
    }
  }
}

class GoldenCut : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenCut, DequantizesToProducersValues) {
  const auto checkpoint = Checkpoint::open(GetParam());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().to_string();
  const auto layer = checkpoint->moe_layer(1);
  ASSERT_TRUE(layer.ok()) << layer.error().to_string();
  const Cut* cut = std::find_if(std::begin(kCuts), std::end(kCuts),
                                [](const Cut& c) { return c.folder == last_name(GetParam()); });
  ASSERT_NE(cut, std::end(kCuts)) << "golden_cuts.h does not list it";
  EXPECT_EQ(checkpoint->producer(), cut->producer);
  EXPECT_EQ(layer->spec.scheme_name(), cut->scheme);
  const auto reference = testing::SafetensorsImage::open(GetParam() + "/reference.safetensors");
  ASSERT_TRUE(reference.ok()) << reference.error().to_string();
  expect_rows(layer->w13, reference->tensors().at("crc32.w13"));
  expect_rows(layer->w2, reference->tensors().at("crc32.w2"));
}

INSTANTIATE_TEST_SUITE_P(All, GoldenCut, ::testing::ValuesIn(golden_cuts()),
                         [](const auto& i) { return testing::test_name(last_name(i.param)); });

}  // namespace
}  // namespace moracle::golden_cuts_test
