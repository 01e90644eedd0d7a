// Tiny models on ranks that are threads: results, reading, agreement.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "model_on_ranks.h"
#include "models/decoder/model_state.h"
#include "models/ranks.h"
#include "oracle/kernel_plan.h"
#include "ranks_of_threads.h"
#include "support/sample.h"

namespace moracle::models_on_ranks_test {
namespace {

using testing::check_on_ranks;
using testing::golden_folder;
using testing::golden_model;
using testing::golden_models;
using ::testing::HasSubstr;
using testing::on_ranks;
using testing::options_on;
using testing::SyntheticCheckpoint;

std::string errors_on(int64_t size, const std::string& model, Placement placement,
                      const std::string& quantization = "") {
  std::mutex mutex;
  std::string errors;
  on_ranks(size, [&](const std::shared_ptr<Group>& group) {
    const Status done = check_on_ranks(model, group, placement, quantization);
    if (done) return;
    group->abort(done.error());
    const std::lock_guard lock(mutex);
    errors += str("rank ", group->rank(), ": ", done.error().to_string(), "\n");
  });
  return errors;
}

class ModelsOnRanks : public ::testing::TestWithParam<std::string> {};

// Three ranks do not divide 4 or 8 experts.
TEST_P(ModelsOnRanks, ThreeRanksMatchOneProcess) {
  EXPECT_EQ(errors_on(3, GetParam(), Placement::kRoundRobin), "");
}
INSTANTIATE_TEST_SUITE_P(All, ModelsOnRanks,
                         ::testing::ValuesIn(testing::sample_of(golden_models(), "ModelsOnRanks")),
                         [](const auto& one) { return one.param; });

INSTANTIATE_TEST_SUITE_P(Compressed, ModelsOnRanks,
                         ::testing::ValuesIn(testing::compressed_models()),
                         [](const auto& one) { return one.param; });

TEST(ModelsOnRanks, RanksWithoutExpertsTakePart) {
  EXPECT_EQ(errors_on(6, "mixtral", Placement::kLinear), "");  // 4 experts
}

TEST(ModelsOnRanks, QuantizedModelsHaveTheBitsOfOneProcess) {
  for (const char* scheme : {"int8-per-channel", "int8-per-channel-weight-only", "fp8-per-block"})
    EXPECT_EQ(errors_on(3, "qwen3_moe", Placement::kLinear, scheme), "") << scheme;
}

// The experts that a rank does not hold are not read.
TEST(ModelsOnRanks, EachRankReadsOnlyItsExperts) {
  const std::string folder = golden_folder("qwen3_moe");
  const auto read = [&](const std::shared_ptr<Group>& group) {
    const Checkpoint checkpoint = *Checkpoint::open(folder);
    const auto model = Model::load(checkpoint, options_on(group, false, Placement::kLinear));
    EXPECT_TRUE(model) << model.error().to_string();
    const ReadRecord& record = checkpoint.state().tensors.record();
    return std::pair(record.common(), record.only_here());
  };
  const std::pair<ReadRecord::Sum, ReadRecord::Sum> alone = read(*open_group({}));
  const ReadRecord::Sum all = alone.second;
  EXPECT_GT(all.bytes, 0);
  int64_t bytes[3] = {};
  on_ranks(3, [&](const std::shared_ptr<Group>& group) {
    const auto [own_common, own] = read(group);
    bytes[group->rank()] = own.bytes;
    EXPECT_EQ(own_common.bytes, alone.first.bytes);
  });
  EXPECT_EQ(bytes[0] + bytes[1] + bytes[2], all.bytes);
  EXPECT_EQ(bytes[0], all.bytes / 2);  // 2 of 4 experts
  EXPECT_EQ(bytes[1], all.bytes / 4);
}

// Each rank measures its CPU's rates, which decide between f32 and bf16.
TEST(ModelsOnRanks, RanksCompareTypeOfProducts) {
  const Checkpoint checkpoint = *Checkpoint::open(golden_folder("qwen3_moe"));
  Model model = *Model::load(checkpoint, {});
  Model::State& state = ModelAccess::state(model);
  const auto plan = [&] {
    return facts_after_loading(state, checkpoint.state().tensors.record())[0].value;
  };
  const std::string before = plan();
  bool& attention = state.bf16_attention;
  attention = !attention;
  const std::string other_attention = plan();
  EXPECT_NE(other_attention, before);
  attention = !attention;
  EXPECT_EQ(plan(), before);
  MatrixPlan& matrix = state.choices.back().selection.plan->matrices[0];
  auto changed = std::make_shared<KernelPlan>(*matrix.kernel);
  CpuDotForm other{cpu::DotIsa::kAvx512Bf16};
  for (PlannedKernel& kernel : changed->kernels) {
    const auto* const form = std::get_if<CpuDotForm>(&kernel.form);
    if (form != nullptr && form->isa == other.isa) other.isa = cpu::DotIsa::kAvx512;
  }
  changed->kernels = {{other}};
  matrix.kernel = std::move(changed);
  EXPECT_NE(plan(), before);
  EXPECT_NE(plan(), other_attention);
}

// Loads on two ranks, the second from `other`. Returns both errors.
std::pair<std::string, std::string> errors_of_two(const SyntheticCheckpoint& first,
                                                  const SyntheticCheckpoint& other) {
  std::string errors[2];
  on_ranks(2, [&](const std::shared_ptr<Group>& group) {
    const auto checkpoint = group->rank() == 0 ? first.open() : other.open();
    const auto model = Model::load(*checkpoint, options_on(group, false, Placement::kLinear));
    if (!model) errors[group->rank()] = model.error().to_string();
  });
  return {errors[0], errors[1]};
}

TEST(ModelsOnRanks, RankWithOneDifferentWeightBitIsNamed) {
  const SyntheticCheckpoint model = golden_model("qwen3_moe");
  SyntheticCheckpoint other = model;
  auto& bytes = other.tensors.at("model.layers.1.self_attn.o_proj.weight").bytes;
  bytes[bytes.size() - 4] ^= std::byte{1};
  const auto [first, second] = errors_of_two(model, other);
  // Tensors this small are sampled whole; faults_test.py has a bit outside the samples.
  EXPECT_THAT(first, HasSubstr("rank 1: needs samples of all weights as on the other ranks"));
  EXPECT_EQ(first, second);
}

TEST(ModelsOnRanks, RankWithAnotherConfigIsNamed) {
  const SyntheticCheckpoint model = golden_model("qwen3_moe");
  SyntheticCheckpoint other = model;
  other.config["rms_norm_eps"] = 0.0123;
  const auto [first, second] = errors_of_two(model, other);
  EXPECT_THAT(first, HasSubstr("rank 1: needs a config.json as on the other ranks"));
  EXPECT_EQ(first, second);
}

TEST(ModelsOnRanks, PlanOfAnotherNumberOfRanksIsRefused) {
  ModelOptions options = options_on(*open_group({}), false, Placement::kLinear);
  options.parallel.ep_size = 2;
  const auto model = Model::load(*Checkpoint::open(golden_folder("qwen3_moe")), options);
  ASSERT_FALSE(model);
  EXPECT_THAT(model.error().to_string(), HasSubstr("needs ep=1 and rank 0, as in the group"));
  options.group = nullptr;  // a part of the experts alone would give wrong results
  const auto alone = Model::load(*Checkpoint::open(golden_folder("qwen3_moe")), options);
  ASSERT_FALSE(alone);
  EXPECT_THAT(alone.error().to_string(), HasSubstr("because there is no group"));
}

}  // namespace
}  // namespace moracle::models_on_ranks_test
