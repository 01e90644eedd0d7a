// Tests checkpoint files that are truncated at any time. The result is an error or unchanged; the
// process never ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/text.h"
#include "golden_model.h"
#include "support/model_words.h"
#include "support/must.h"

namespace moracle::changing_files_test {
namespace {

namespace fs = std::filesystem;
using testing::all_logits;
using ::testing::HasSubstr;
using testing::SyntheticCheckpoint;
using testing::TemporaryFolder;

const std::vector<int32_t> kIds = {3, 7, 1, 12};

class ChangingFile : public ::testing::TestWithParam<const char*> {
 protected:
  ChangingFile() {
    const std::string form = GetParam();
    const SyntheticCheckpoint checkpoint = form == "gptq"    ? SyntheticCheckpoint::gptq()
                                           : form == "int8"  ? SyntheticCheckpoint::int8()
                                           : form == "plain" ? SyntheticCheckpoint::plain()
                                                             : testing::golden_model("gpt_oss");
    EXPECT_TRUE(checkpoint.write(folder_.path()));
    size_ = fs::file_size(file_);
  }
  Checkpoint open() const { return testing::must(Checkpoint::open(folder_.path())); }
  void cut(uintmax_t size) const { fs::resize_file(file_, size); }
  std::vector<uintmax_t> cuts() const {
    return {0, 8, size_ / 4, size_ / 2, size_ * 3 / 4, size_ - 1};
  }
  void expect_named(const Error& error) const {
    EXPECT_EQ(error.kind, ErrorKind::kBadFile) << error.to_string();
    EXPECT_EQ(error.file, file_);
    EXPECT_THAT(error.place, HasSubstr("tensor '"));
    EXPECT_THAT(error.to_string(),
                HasSubstr(str("needs ", size_, " bytes, as when it was opened")));
    EXPECT_THAT(error.fact, HasSubstr("it now has at most "));
  }
  // Restores the whole file for the next round.
  void restore() const { fs::copy_file(copy_, file_, fs::copy_options::overwrite_existing); }
  void SetUp() override { fs::copy_file(file_, copy_); }

  const TemporaryFolder folder_;
  const std::string file_ = folder_.path() + "/model.safetensors";
  const std::string copy_ = folder_.path() + "/copy";
  uintmax_t size_ = 0;
  const ModelOptions options_{.threads = 2};
};

INSTANTIATE_TEST_SUITE_P(Forms, ChangingFile, ::testing::Values("plain", "gptq", "int8", "fused"),
                         [](const auto& instance) { return std::string(instance.param); });

TEST_P(ChangingFile, TruncationBeforeLoadIsAnError) {
  for (const uintmax_t size : cuts()) {
    SCOPED_TRACE(size);
    restore();
    const Checkpoint checkpoint = open();
    cut(size);
    const auto model = Model::load(checkpoint, options_);
    ASSERT_FALSE(model);
    expect_named(model.error());
  }
}

TEST_P(ChangingFile, TruncationDuringLoadIsAnErrorOrHarmless) {
  const auto whole = Model::load(open(), options_);
  ASSERT_TRUE(whole) << whole.error().to_string();
  bool failed = false;
  for (int when = 1; when < 40; ++when) {
    SCOPED_TRACE(when);
    restore();
    const Checkpoint checkpoint = open();
    int step = 0;
    ModelOptions options = options_;
    options.progress = [&](int64_t, int64_t) {
      if (++step == when) cut(0);
      return true;
    };
    auto model = Model::load(checkpoint, options);
    if (!model) {
      failed = true;
      expect_named(model.error());
      continue;
    }
    EXPECT_TRUE(all_logits(*model, kIds));
  }
  EXPECT_TRUE(failed);
}

TEST_P(ChangingFile, TruncationAfterLoadChangesNothing) {
  auto model = Model::load(open(), options_);
  ASSERT_TRUE(model) << model.error().to_string();
  const auto before = all_logits(*model, kIds);
  ASSERT_TRUE(before);
  cut(0);
  const auto after = all_logits(*model, kIds);
  ASSERT_TRUE(after);
  EXPECT_EQ(*before, *after);
}

TEST_P(ChangingFile, TruncationBeforeReloadKeepsOldWeights) {
  auto model = Model::load(open(), options_);
  ASSERT_TRUE(model) << model.error().to_string();
  const auto before = all_logits(*model, kIds);
  for (const uintmax_t size : cuts()) {
    SCOPED_TRACE(size);
    restore();
    const Checkpoint again = open();
    cut(size);
    const Status reloaded = model->reload(again);
    ASSERT_FALSE(reloaded.ok());
    expect_named(reloaded.error());
    const auto after = all_logits(*model, kIds);
    ASSERT_TRUE(before && after);
    EXPECT_EQ(*before, *after);
  }
}

TEST_P(ChangingFile, ReplacementByRenameReadsOldContent) {
  const Checkpoint checkpoint = open();
  auto want = Model::load(checkpoint, options_);
  ASSERT_TRUE(want) << want.error().to_string();
  std::ofstream(folder_.path() + "/new") << "another file";
  fs::rename(folder_.path() + "/new", file_);
  auto model = Model::load(checkpoint, options_);
  ASSERT_TRUE(model) << model.error().to_string();
  const auto a = all_logits(*want, kIds), b = all_logits(*model, kIds);
  ASSERT_TRUE(a && b);
  EXPECT_EQ(*a, *b);
}

}  // namespace
}  // namespace moracle::changing_files_test
