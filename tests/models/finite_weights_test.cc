// Tests that NaN or infinity in a checkpoint is a load error that names tensor and element.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/text.h"
#include "golden_model.h"
#include "support/model_words.h"
#include "support/sample.h"

namespace moracle::finite_weights_test {
namespace {

using ::testing::HasSubstr;
using testing::SyntheticCheckpoint;

// The bit pattern of a NaN; empty for integer types.
std::optional<uint32_t> nan_of(DType type) {
  switch (type) {
    case DType::kF32:
      return 0x7fc00000;
    case DType::kF16:
      return 0xfe00;
    case DType::kBF16:
      return 0xffc0;
    case DType::kF8E4M3:
      return 0xff;
    default:
      return {};
  }
}

std::string index_of(const std::vector<int64_t>& shape, int64_t element) {
  if (shape.size() < 2) return str("element ", element);
  std::vector<int64_t> index(shape.size());
  for (size_t d = shape.size(); d-- > 0; element /= shape[d]) index[d] = element % shape[d];
  return "element [" + join(index) + "]";
}

// Puts a NaN at the last element of each float tensor in turn.
void expect_each_named(const SyntheticCheckpoint& good, testing::Sample sample,
                       const std::string& quantization = "") {
  int spoiled = 0;
  for (const auto& [name, tensor] : good.tensors) {
    const auto pattern = nan_of(tensor.dtype);
    // Indexers are not read up to index_topk tokens.
    if (!pattern || name.find(".indexer.") != name.npos || !sample.takes()) continue;
    SyntheticCheckpoint bad = good;
    const auto size = static_cast<size_t>(bits(tensor.dtype) / 8);
    const size_t element = tensor.bytes.size() / size - 1;
    std::memcpy(bad.at(name).bytes.data() + element * size, &*pattern, size);
    const auto checkpoint = bad.open();
    ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
    const auto model = Model::load(
        *checkpoint, {.quantization = testing::quantization(quantization), .threads = 2});
    ASSERT_FALSE(model) << name;
    const Error& error = model.error();
    EXPECT_EQ(error.kind, ErrorKind::kBadFile) << error.to_string();
    EXPECT_THAT(error.file, ::testing::EndsWith("/model.safetensors"));
    EXPECT_THAT(error.place, HasSubstr("tensor '" + name + "'"));
    EXPECT_EQ(error.need, "finite numbers");
    EXPECT_EQ(error.fact, index_of(tensor.shape, static_cast<int64_t>(element)) + " is nan");
    const bool fused = name.find(".experts.") != name.npos && tensor.shape.size() == 3;
    if (fused) {
      EXPECT_THAT(error.place, ::testing::EndsWith(str(", expert ", tensor.shape[0] - 1)));
    }
    ++spoiled;
  }
  EXPECT_GT(spoiled, 10 / testing::Sample::kStep);
}

class FiniteModelWeights : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Golden, FiniteModelWeights,
                         ::testing::ValuesIn(testing::sample_of(testing::golden_models(),
                                                                "FiniteModelWeights")),
                         [](const auto& instance) { return instance.param; });

TEST_P(FiniteModelWeights, NamesTensorWithNan) {
  expect_each_named(testing::golden_model(GetParam()), testing::Sample(GetParam()));
}

TEST(FiniteWeights, NamesTensorWithNanInEveryFormat) {
  const testing::SyntheticSize one{.layers = 1, .experts = 2};
  const testing::Sample sample("synthetic");
  expect_each_named(SyntheticCheckpoint::gptq({}, one), sample);
  expect_each_named(SyntheticCheckpoint::int8(one), sample);
  expect_each_named(SyntheticCheckpoint::plain(one), sample, "int8-per-channel");
}

TEST(FiniteWeights, ShowsSignOfInfinity) {
  for (const auto& [pattern, shown] : {std::pair{0x7f80, "inf"}, {0xff80, "-inf"}}) {
    auto bad = SyntheticCheckpoint::plain();
    bad.set<uint16_t>("model.embed_tokens.weight", 2 * 32 + 5, static_cast<uint16_t>(pattern));
    const auto checkpoint = bad.open();
    ASSERT_TRUE(checkpoint);
    const auto model = Model::load(*checkpoint, {.threads = 2});
    ASSERT_FALSE(model);
    EXPECT_THAT(model.error().to_string(),
                HasSubstr(str("tensor 'model.embed_tokens.weight': needs finite numbers; element "
                              "[2, 5] is ",
                              shown)));
  }
}

}  // namespace
}  // namespace moracle::finite_weights_test
