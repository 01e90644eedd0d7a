// backend.patch adds "twin", a copy of the backend reference.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "checkpoint/synthetic_checkpoint.h"
#include "cli/run_command.h"
#include "conformance/conformance.h"
#include "moracle/moracle.h"

namespace moracle::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Backend, ChosenOnlyByName) {
  const TemporaryFolder folder;
  ASSERT_TRUE(SyntheticCheckpoint::int8().write(folder.path()));
  const Ran named = run_command({"explain", folder.path(), "--backend", "twin"});
  EXPECT_EQ(named.code, 0) << named.err;
  EXPECT_THAT(named.out, HasSubstr("> twin "));
  EXPECT_THAT(named.out, HasSubstr("  twin of rows dequantized"));
  const Ran automatic = run_command({"explain", folder.path()});
  EXPECT_EQ(automatic.code, 0) << automatic.err;
  EXPECT_THAT(automatic.out, HasSubstr("> cpu"));
  EXPECT_THAT(automatic.out, Not(HasSubstr("> twin ")));
}

TEST(Backend, PassesConformanceCasesOfEveryScheme) {
  const Ran ran = run_command(
      {"check", "--backend", "twin", "--shape", "5x129x47x3", "--tokens", "5", "--threads", "2"});
  EXPECT_EQ(ran.code, 0) << ran.out << ran.err;
  EXPECT_THAT(ran.out, HasSubstr(str("\n", conformance::schemes().size(),
                                     " passed, 0 failed, 0 refused by the oracle\n")));
}

TEST(Backend, ServesWholeModelLikeOriginal) {
  const auto checkpoint = SyntheticCheckpoint::int8().open();
  ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
  std::vector<std::vector<int32_t>> texts;
  for (const char* backend : {"reference", "twin"}) {
    auto model = Model::load(*checkpoint, {.backend = *BackendMap::parse(backend), .threads = 1});
    ASSERT_TRUE(model) << model.error().to_string();
    for (const Choice& choice : model->choices()) {
      EXPECT_EQ(name(*choice.selection.plan->backend), backend) << choice.part;
    }
    const auto text = generate(*model, std::vector<int32_t>{3, 1, 4}, {.max_tokens = 5});
    ASSERT_TRUE(text) << text.error().to_string();
    texts.push_back(text->ids);
  }
  EXPECT_EQ(texts[0], texts[1]);
}

}  // namespace
}  // namespace moracle::testing
