// Tests which keys and tensors of a checkpoint are listed as not used, and why.
#include "models/not_read.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/text.h"
#include "checkpoint/synthetic_checkpoint.h"
#include "moracle/model.h"
#include "support/must.h"

namespace moracle::not_read_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::must;
using testing::SyntheticCheckpoint;

NotRead not_read_of(const SyntheticCheckpoint& synthetic) {
  const Checkpoint checkpoint = must(synthetic.open());
  const Result<Description> described = describe(checkpoint);
  return not_read(checkpoint, described ? &*described : nullptr);
}

// "why: name, name", sorted.
std::vector<std::string> lines(const std::vector<NotRead::Entry>& parts) {
  std::vector<std::string> all;
  for (const NotRead::Entry& part : parts) {
    const std::string count = part.num_tensors > 0 ? str(" (", part.num_tensors, ")") : "";
    all.push_back(str(part.why, ": ", join(part.names), count));
  }
  std::sort(all.begin(), all.end());
  return all;
}

TEST(NotRead, IsEmptyForFileThatIsUsedWhole) {
  SyntheticCheckpoint checkpoint = SyntheticCheckpoint::plain();
  EXPECT_THAT(lines(not_read_of(checkpoint).keys),
              ElementsAre("not read for this architecture: intermediate_size"));  // of dense layers
  checkpoint.config.erase("intermediate_size");
  const NotRead unread = not_read_of(checkpoint);
  EXPECT_THAT(lines(unread.keys), IsEmpty());
  EXPECT_THAT(lines(unread.tensors), IsEmpty());
}

TEST(NotRead, GroupsKeysByReason) {
  SyntheticCheckpoint checkpoint = SyntheticCheckpoint::int8();
  checkpoint.config.erase("intermediate_size");
  checkpoint.config.update({{"attention_dropout", 0.1},
                            {"transformers_version", "4.57.0"},
                            {"bos_token_id", 1},
                            {"vision_config", {{"depth", 2}}},
                            {"num_mtp_modules", 3},
                            {"new_key", true},
                            {"empty", nullptr}});
  checkpoint.quantization()["config_groups"]["group_0"]["weights"]["observer"] = "minmax";
  checkpoint.quantization()["new_rule"] = 1;
  const NotRead unread = not_read_of(checkpoint);
  EXPECT_THAT(
      lines(unread.keys),
      ElementsAre("for images, video and sound, which are not run: vision_config",
                  "for multi-token prediction, which is not run: num_mtp_modules",
                  "for other programs: transformers_version",
                  "for training only: attention_dropout, "
                  "quantization_config.config_groups.group_0.weights.observer",
                  "not read for this architecture: new_key, quantization_config.new_rule",
                  "read when text is generated, or from generation_config.json: bos_token_id"));
}

TEST(NotRead, ListsBuffersThatConfigDetermines) {
  SyntheticCheckpoint checkpoint = SyntheticCheckpoint::plain();
  for (const int layer : {0, 1})
    checkpoint.add_floats(str("model.layers.", layer, ".self_attn.rotary_emb.inv_freq"), {8});
  EXPECT_THAT(lines(not_read_of(checkpoint).tensors),
              ElementsAre("rotary frequencies, which config.json determines: "
                          "*rotary_emb.inv_freq (2)"));
}

TEST(NotRead, ListsTensorsOutsideExpertsOfUnknownArchitecture) {
  SyntheticCheckpoint checkpoint = SyntheticCheckpoint::plain();
  checkpoint.config["architectures"] = {"UnknownForCausalLM"};
  const NotRead unread = not_read_of(checkpoint);
  ASSERT_EQ(unread.tensors.size(), 1u);
  EXPECT_THAT(unread.tensors[0].names,
              ::testing::Contains("model.layers.*.self_attn.q_proj.weight"));
  EXPECT_THAT(unread.tensors[0].names,
              ::testing::Not(::testing::Contains(::testing::HasSubstr("experts"))));
}

TEST(NotRead, ListsModulesThatTheFamilyIgnores) {
  SyntheticCheckpoint checkpoint = SyntheticCheckpoint::plain();
  checkpoint.config["architectures"] = {"Qwen3VLMoeForConditionalGeneration"};
  checkpoint.add_floats("model.visual.blocks.0.attn.proj.weight", {8, 8});
  checkpoint.add_floats("model.visual.blocks.1.attn.proj.weight", {8, 8});
  EXPECT_THAT(lines(not_read_of(checkpoint).tensors),
              ElementsAre("vision and audio, not run: model.visual. (2)"));
}

}  // namespace
}  // namespace moracle::not_read_test
